"""Packing: interactions become training rows, token for token, each sampled token exactly once.

A turn extends the current row when it belongs to the same segment and its prompt starts with every token of the row;
otherwise it starts a new row whose earlier context has mask 0. Nothing is decoded, re-encoded or truncated here.
``DIVERGENCES.md`` beside this file lists where we leave the reference on purpose.

Source: facts/learning.md sections 1.3 and 1.4 (tinker_cookbook 0.6.1 rl/data_processing.py: trajectory_to_data,
supervised/common.py: create_rightshifted_model_input_and_leftshifted_targets).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domain.errors import DatumError
from domain.maths.alignment import agent_interactions, find_defect
from domain.records.assessment import Datum
from domain.records.trajectory import TokenTrajectory
from domain.records.trial import Interaction

_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def pack(interactions: Sequence[Interaction], *, advantage: float, trial_id: str, group: int) -> list[Datum]:
    """Return the rows of one trial: for each agent, in order of its first call, its rows in order.

    Args:
        interactions: every captured call of the trial; calls that are not an agent's action are left out.
        advantage: of the trial, put on each sampled token.
        trial_id: the trial.
        group: index of its sampling group.

    Raises:
        DatumError: an interaction is misaligned, not finite, not integer or has no prompt, naming it.
    """
    return [
        datum
        for trajectory in trajectories_of(interactions, trial_id=trial_id)
        for datum in pack_trajectory(trajectory, advantage=advantage, group=group)
    ]


def trajectories_of(interactions: Sequence[Interaction], *, trial_id: str) -> list[TokenTrajectory]:
    """Return one trajectory for each agent, in order of first call; a growing prompt is converted once.

    Raises:
        DatumError: as :func:`pack`.
    """
    calls = agent_interactions(interactions)
    defect = find_defect(trial_id, calls)
    if defect is not None:
        raise DatumError(f"trial {trial_id}: {defect.detail}", hint=f"exclude it as {defect.reason.value}")
    by_agent: dict[str, list[Interaction]] = {}
    for call in calls:
        by_agent.setdefault(call.agent, []).append(call)
    return [_trajectory(trial_id, agent, own) for agent, own in by_agent.items()]


def _trajectory(trial_id: str, agent: str, calls: Sequence[Interaction]) -> TokenTrajectory:
    pieces: list[NDArray[np.int32]] = []
    starts: list[bool] = []
    prompt_lengths: list[int] = []
    previous: Interaction | None = None
    for call in calls:
        known = 0 if previous is None else _extended_length(previous, call)
        pieces.append(_id_array(call.prompt_ids[known:], call))
        pieces.append(_id_array(call.sampled_ids, call))
        starts.append(known == 0)
        prompt_lengths.append(len(call.prompt_ids) - known)
        previous = call
    return TokenTrajectory(
        trial_id=trial_id,
        agent=agent,
        interactions=tuple(call.interaction_id for call in calls),
        ids=np.concatenate(pieces),
        logprobs=np.array([value for call in calls for value in call.logprobs], dtype=np.float32),
        prompt_lengths=np.array(prompt_lengths, dtype=np.int64),
        sampled_lengths=np.array([len(call.sampled_ids) for call in calls], dtype=np.int64),
        starts=np.array(starts, dtype=np.bool_),
    )


def _extended_length(previous: Interaction, call: Interaction) -> int:
    """Return how many ids of ``call``'s prompt are exactly what ``previous`` saw and sampled; 0: not an extension.

    Tuples are compared rather than arrays: ids that a decoder shares between prompts compare by identity.
    """
    n_prompt = len(previous.prompt_ids)
    n_known = n_prompt + len(previous.sampled_ids)
    if call.segment != previous.segment or call.prompt_ids[n_prompt:n_known] != previous.sampled_ids:
        return 0
    return n_known if call.prompt_ids[:n_prompt] == previous.prompt_ids else 0


def _id_array(ids: Sequence[int], call: Interaction) -> NDArray[np.int32]:
    kinds = set(map(type, ids))
    if kinds - {int}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {int}))
        raise DatumError(f"interaction {call.interaction_id}: token ids hold {names}", hint="token ids are integers")
    if ids and not (min(ids) >= 0 and max(ids) <= _INT32_MAX):
        raise DatumError(f"interaction {call.interaction_id}: a token id is outside 0..2^31-1")
    return np.array(ids, dtype=np.int32)


def pack_trajectory(trajectory: TokenTrajectory, *, advantage: float, group: int) -> list[Datum]:
    """Return the rows of one agent. Their arrays are views of arrays of the whole trajectory.

    A row without a sampled token is left out: it would train nothing.

    Args:
        trajectory: T turns, P tokens, S of them sampled.
        advantage: put on each sampled token.
        group: index of the sampling group.

    Raises:
        DatumError: the arrays disagree in length, a value is not finite, or a row starts with a sampled token.
    """
    _refuse_inconsistent(trajectory, advantage)
    mask_P, logprobs_P = _spread(trajectory)
    advantages_P = mask_P * np.float32(advantage)
    every_turn_trains = bool(trajectory.sampled_lengths.all())
    rows: list[Datum] = []
    for first, last, start, end in _trained_rows(trajectory):
        ids = trajectory.interactions[first:last]
        if not every_turn_trains:
            lengths = trajectory.sampled_lengths[first:last].tolist()
            ids = tuple(name for name, length in zip(ids, lengths, strict=True) if length)
        if trajectory.prompt_lengths[first] == 0 and trajectory.sampled_lengths[first] > 0:
            raise DatumError(f"interaction {ids[0]}: no prompt, so nothing predicts its first sampled id")
        rows.append(
            Datum(
                input_ids=trajectory.ids[start : end - 1],
                target_ids=trajectory.ids[start + 1 : end],
                logprobs=logprobs_P[start + 1 : end],
                advantages=advantages_P[start + 1 : end],
                mask=mask_P[start + 1 : end],
                trial_id=trajectory.trial_id,
                group=group,
                interactions=ids,
            )
        )
    return rows


def _spread(trajectory: TokenTrajectory) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mask and logprobs at every token, shape (P,) each."""
    n_turns = len(trajectory.interactions)
    lengths_2T = np.empty((n_turns, 2), dtype=np.int64)
    lengths_2T[:, 0], lengths_2T[:, 1] = trajectory.prompt_lengths, trajectory.sampled_lengths
    flags_2T = np.zeros((n_turns, 2), dtype=np.float32)
    flags_2T[:, 1] = 1.0
    mask_P = np.repeat(flags_2T.reshape(-1), lengths_2T.reshape(-1))
    logprobs_P = np.zeros(len(mask_P), dtype=np.float32)
    logprobs_P[mask_P.astype(np.bool_)] = trajectory.logprobs
    return mask_P, logprobs_P


def _trained_rows(trajectory: TokenTrajectory) -> list[tuple[int, int, int, int]]:
    """Return (first turn, turn after the last, first token, token after the last) of rows with a sampled token."""
    if not trajectory.interactions:
        return []
    firsts_R = np.flatnonzero(trajectory.starts)
    n_sampled = np.add.reduceat(trajectory.sampled_lengths, firsts_R).tolist()
    ends = [0, *np.cumsum(trajectory.prompt_lengths + trajectory.sampled_lengths).tolist()]
    firsts = firsts_R.tolist()
    return [
        (first, last, ends[first], ends[last])
        for first, last, n_tokens in zip(firsts, [*firsts[1:], len(ends) - 1], n_sampled, strict=True)
        if n_tokens
    ]


def _refuse_inconsistent(trajectory: TokenTrajectory, advantage: float) -> None:
    where = f"trial {trajectory.trial_id}, agent {trajectory.agent}"
    if not abs(advantage) <= _FLOAT32_MAX:
        raise DatumError(f"{where}: advantage {advantage} is not a finite float32")
    n_turns = len(trajectory.interactions)
    turn_arrays = (trajectory.prompt_lengths, trajectory.sampled_lengths, trajectory.starts)
    if any(len(array) != n_turns for array in turn_arrays) or (n_turns and not trajectory.starts[0]):
        raise DatumError(f"{where}: {n_turns} turns, but the turn arrays disagree or the first does not start a row")
    n_sampled = int(trajectory.sampled_lengths.sum())
    if len(trajectory.logprobs) != n_sampled:
        raise DatumError(f"{where}: {len(trajectory.logprobs)} logprobs for {n_sampled} sampled ids")
    n_ids = int(trajectory.prompt_lengths.sum()) + n_sampled
    if len(trajectory.ids) != n_ids or trajectory.ids.dtype != np.int32:
        raise DatumError(f"{where}: {len(trajectory.ids)} ids of {trajectory.ids.dtype}, expected {n_ids} of int32")
    if not np.isfinite(trajectory.logprobs).all():
        raise DatumError(f"{where}: a logprob is not finite")


def check_rows(datums: Sequence[Datum], trajectories: Sequence[TokenTrajectory]) -> None:
    """Check all rows of a group against its agents' arrays: the fast form of :func:`check_datums`, for every batch.

    The rows, put end to end, must be the trajectories less what trains nothing, mask and logprobs included.

    Raises:
        DatumError: naming the first row that differs.
    """
    remaining = iter(datums)
    index = -1
    for trajectory in trajectories:
        ids = trajectory.ids
        mask_P, logprobs_P = _spread(trajectory)
        for _, _, start, end in _trained_rows(trajectory):
            index += 1
            datum = next(remaining, None)
            if datum is None:
                raise DatumError(f"{len(datums)} rows, but trial {trajectory.trial_id} has more")
            if not (
                _same(datum.input_ids, ids[start : end - 1])
                and _same(datum.target_ids, ids[start + 1 : end])
                and _same(datum.mask, mask_P[start + 1 : end])
                and _same(datum.logprobs, logprobs_P[start + 1 : end])
            ):
                raise DatumError(f"row {index}, trial {datum.trial_id}: differs from what was seen and sampled")
            inside = datum.advantages * datum.mask
            if not _same(inside, datum.advantages) or not math.isfinite(float(inside @ datum.mask)):
                raise DatumError(f"row {index}, trial {datum.trial_id}: an advantage outside the mask or not finite")
    if next(remaining, None) is not None:
        raise DatumError(f"{len(datums)} rows, expected {index + 1}")


def _same(left: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    """Compare bit for bit, without array temporaries of the size of a group."""
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def check_datums(datums: Sequence[Datum], interactions: Sequence[Interaction]) -> None:
    """Check that rows hold every sampled token of the agent interactions exactly once, in its exact context.

    It reads the interactions again and shares no code with packing.

    Raises:
        DatumError: naming the first interaction or row that breaks the rule.
    """
    open_calls = {call.interaction_id: call for call in agent_interactions(interactions) if call.sampled_ids}
    for index, datum in enumerate(datums):
        row = (*datum.input_ids[:1].tolist(), *datum.target_ids.tolist())
        if row[:-1] != tuple(datum.input_ids.tolist()):
            raise DatumError(f"row {index}: targets are not the inputs shifted by one")
        mask = datum.mask > 0
        if datum.logprobs[~mask].any() or datum.advantages[~mask].any():
            raise DatumError(f"row {index}: a logprob or advantage outside the mask")
        n_trained = 0
        for name in datum.interactions:
            call = open_calls.pop(name, None)
            if call is None:
                raise DatumError(f"row {index}: interaction {name} is unknown or trained twice")
            _check_call(index, row, datum, call)
            n_trained += len(call.sampled_ids)
        if n_trained != int(mask.sum()):
            raise DatumError(f"row {index}: {int(mask.sum())} trained tokens, its interactions sampled {n_trained}")
    if open_calls:
        raise DatumError(f"interaction {next(iter(open_calls))}: its sampled tokens are in no row")


def _check_call(index: int, row: tuple[int, ...], datum: Datum, call: Interaction) -> None:
    start = len(call.prompt_ids)
    end = start + len(call.sampled_ids)
    where = f"row {index}, interaction {call.interaction_id}"
    if row[:start] != call.prompt_ids or row[start:end] != call.sampled_ids:
        raise DatumError(f"{where}: tokens differ from what the sampler saw and sampled")
    targets = slice(start - 1, end - 1)
    if not (datum.mask[targets] > 0).all():
        raise DatumError(f"{where}: a sampled token is masked")
    if not np.array_equal(datum.logprobs[targets], np.array(call.logprobs, dtype=np.float32)):
        raise DatumError(f"{where}: logprobs differ from the sampler's")
