"""Stitching: the calls of a trial become one flat trajectory for each agent, each id held once.

A turn extends the one before when both are of one segment and its prompt starts with every token that the one before
saw and sampled; otherwise its whole prompt starts a new row. Nothing is decoded, re-encoded or truncated here.

Source: facts/learning.md section 1.3 (tinker_cookbook 0.6.1 rl/data_processing.py: trajectory_to_data).
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from domain.errors import DatumError
from domain.maths.alignment import agent_interactions, find_defect
from domain.records.trajectory import TokenCall, TokenTrajectory
from domain.records.trial import Interaction

_INT32_MAX = 2**31 - 1
C = TypeVar("C", Interaction, TokenCall)


def stitch(calls: Sequence[TokenCall], *, trial_id: str) -> list[TokenTrajectory]:
    """Return one trajectory for each agent, in order of first call.

    Args:
        calls: every captured call of the trial in any order; those that are not an agent's action only serve as bases.
        trial_id: the trial.

    Raises:
        DatumError: a call is misaligned, not finite, has no prompt or builds on a call that is not there, naming it.
    """
    own = _sound(calls, trial_id)
    known = {call.sequence: call for call in calls}
    if len(known) != len(calls):
        raise DatumError(f"trial {trial_id}: two calls share a sequence number")
    by_agent: dict[str, list[TokenCall]] = {}
    for call in own:
        by_agent.setdefault(call.agent, []).append(call)
    return [_trajectory(trial_id, agent, turns, known) for agent, turns in by_agent.items()]


def trajectories_of(interactions: Sequence[Interaction], *, trial_id: str) -> list[TokenTrajectory]:
    """Return the same from interactions, each of which holds its whole prompt.

    Raises:
        DatumError: as :func:`stitch`, or ids that are not integers of 31 bits.
    """
    latest: dict[str, Interaction] = {}
    calls: list[TokenCall] = []
    for interaction in _sound(interactions, trial_id):
        calls.append(_call_of(interaction, latest.get(interaction.agent)))
        latest[interaction.agent] = interaction
    return stitch(calls, trial_id=trial_id)


def _sound(calls: Sequence[C], trial_id: str) -> list[C]:
    own = agent_interactions(calls)
    defect = find_defect(trial_id, own)
    if defect is not None:
        raise DatumError(f"trial {trial_id}: {defect.detail}", hint=f"exclude it as {defect.reason.value}")
    return own


def _call_of(interaction: Interaction, previous: Interaction | None) -> TokenCall:
    """Tuples are compared rather than arrays: ids that a decoder shares between prompts compare by identity."""
    n_known = 0
    if previous is not None:
        n_prompt = len(previous.prompt_ids)
        n_both = n_prompt + len(previous.sampled_ids)
        prompt = interaction.prompt_ids
        if prompt[n_prompt:n_both] == previous.sampled_ids and prompt[:n_prompt] == previous.prompt_ids:
            n_known = n_both
    return TokenCall(
        interaction_id=interaction.interaction_id,
        trial_id=interaction.trial_id,
        sequence=interaction.sequence,
        agent=interaction.agent,
        segment=interaction.segment,
        purpose=interaction.purpose,
        sampler_version=interaction.sampler_version,
        base=previous.sequence if previous is not None and n_known else None,
        n_prompt_ids=len(interaction.prompt_ids),
        new_prompt_ids=_id_array(interaction.prompt_ids[n_known:], interaction),
        sampled_ids=_id_array(interaction.sampled_ids, interaction),
        logprobs=np.array(interaction.logprobs, dtype=np.float64),
    )


def _id_array(ids: Sequence[int], call: Interaction) -> NDArray[np.int32]:
    kinds = set(map(type, ids))
    if kinds - {int}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {int}))
        raise DatumError(f"interaction {call.interaction_id}: token ids hold {names}", hint="token ids are integers")
    if ids and not (min(ids) >= 0 and max(ids) <= _INT32_MAX):
        raise DatumError(f"interaction {call.interaction_id}: a token id is outside 0..2^31-1")
    return np.array(ids, dtype=np.int32)


def _trajectory(
    trial_id: str, agent: str, turns: Sequence[TokenCall], known: Mapping[int, TokenCall]
) -> TokenTrajectory:
    pieces: list[NDArray[np.int32]] = []
    starts: list[bool] = []
    prompt_lengths: list[int] = []
    previous: TokenCall | None = None
    for turn in turns:
        added = None if previous is None else _added(turn, previous, known)
        starts.append(added is None)
        new = _whole_prompt(turn, known) if added is None else added
        prompt_lengths.append(sum(map(len, new)))
        pieces += [*new, turn.sampled_ids]
        previous = turn
    # A value that float32 cannot hold becomes infinite here and is refused by packing.
    with np.errstate(over="ignore"):
        logprobs = np.concatenate([turn.logprobs for turn in turns]).astype(np.float32)
    return TokenTrajectory(
        trial_id=trial_id,
        agent=agent,
        interactions=tuple(turn.interaction_id for turn in turns),
        ids=np.concatenate(pieces, dtype=np.int32),
        logprobs=logprobs,
        prompt_lengths=np.array(prompt_lengths, dtype=np.int64),
        sampled_lengths=np.array([turn.n_sampled_ids for turn in turns], dtype=np.int64),
        starts=np.array(starts, dtype=np.bool_),
    )


def _added(turn: TokenCall, previous: TokenCall, known: Mapping[int, TokenCall]) -> list[NDArray[np.int32]] | None:
    """Return the ids that a turn's prompt adds to what ``previous`` saw and sampled; None: it does not extend that."""
    n_known = previous.n_prompt_ids + previous.n_sampled_ids
    if turn.segment != previous.segment or n_known == 0 or turn.n_prompt_ids < n_known:
        return None
    if turn.base == previous.sequence:
        return [turn.new_prompt_ids]
    # The call between them may be a count of the same conversation, or no base was found: compare the ids themselves.
    whole = np.concatenate(_whole_prompt(turn, known))
    seen = np.concatenate([*_whole_prompt(previous, known), previous.sampled_ids])
    return [whole[n_known:]] if np.array_equal(whole[:n_known], seen) else None


def _whole_prompt(call: TokenCall, known: Mapping[int, TokenCall]) -> list[NDArray[np.int32]]:
    """Return the pieces of a whole prompt, in order."""
    pieces = [call.new_prompt_ids]
    at = call
    while at.base is not None:
        base = known.get(at.base)
        if base is None or base.sequence >= at.sequence:
            message = f"interaction {at.interaction_id}: builds on call {at.base}, which is not before it"
            raise DatumError(message, hint="the evidence of this trial is damaged: exclude the trial")
        pieces += [base.sampled_ids, base.new_prompt_ids]
        at = base
    return pieces[::-1]
