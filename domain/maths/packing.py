"""Packing: trajectories become training rows, token for token, each sampled token exactly once.

A row runs from a turn that starts anew to the turn before the next such one; context has mask 0. Nothing loops over
tokens or turns: a whole group is spread at once. ``DIVERGENCES.md`` beside this file lists where we leave the
reference on purpose; ``row_checks.py`` checks what is made here.

Source: facts/learning.md sections 1.3 and 1.4 (tinker_cookbook 0.6.1 rl/data_processing.py: trajectory_to_data,
supervised/common.py: create_rightshifted_model_input_and_leftshifted_targets).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import DatumError
from domain.maths.stitching import trajectories_of
from domain.records.assessment import Datum
from domain.records.trajectory import TokenTrajectory
from domain.records.trial import Interaction

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
    trajectories = trajectories_of(interactions, trial_id=trial_id)
    return pack_group(trajectories, advantages=[advantage] * len(trajectories), group=group)


def pack_trajectory(trajectory: TokenTrajectory, *, advantage: float, group: int) -> list[Datum]:
    """Return the rows of one agent. See :func:`pack_group`."""
    return pack_group([trajectory], advantages=[advantage], group=group)


def pack_group(trajectories: Sequence[TokenTrajectory], *, advantages: Sequence[float], group: int) -> list[Datum]:
    """Return the rows of all agents of a group, in order. Their arrays are views of arrays of the whole group.

    A row without a sampled token is left out: it would train nothing.

    Args:
        trajectories: K of them with T turns, P tokens and S sampled tokens in all.
        advantages: of each trajectory, put on each of its sampled tokens, shape (K,).
        group: index of the sampling group.

    Raises:
        DatumError: the arrays disagree in length, a value is not finite, or a row starts with a sampled token.
    """
    if len(advantages) != len(trajectories):
        raise DatumError(f"group {group}: {len(advantages)} advantages for {len(trajectories)} trajectories")
    if not trajectories:
        return []
    turns = _turns_of(trajectories, advantages)
    mask_P, logprobs_P, advantages_P = _spread(turns, trajectories, advantages)
    rows: list[Datum] = []
    for first, last, start, end, at in _trained_rows(turns, trajectories, mask_P):
        trajectory = trajectories[at]
        shift = turns.first_tokens[at]
        ids = trajectory.ids
        rows.append(
            Datum(
                input_ids=ids[start - shift : end - shift - 1],
                target_ids=ids[start - shift + 1 : end - shift],
                logprobs=logprobs_P[start + 1 : end],
                advantages=advantages_P[start + 1 : end],
                mask=mask_P[start + 1 : end],
                trial_id=trajectory.trial_id,
                group=group,
                interactions=_trained_names(turns, trajectory, first, last, turns.first_turns[at]),
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """The turns of K trajectories end to end: T turns, P tokens, S of them sampled."""

    prompt_lengths: NDArray[np.int64]
    sampled_lengths: NDArray[np.int64]
    starts: NDArray[np.bool_]
    ends: NDArray[np.int64]
    """Tokens before each turn, and in all; shape (T + 1,)."""
    first_turns: list[int]
    """Shape (K + 1,)."""
    first_tokens: list[int]
    """Shape (K + 1,)."""
    every_turn_trains: bool


def _turns_of(trajectories: Sequence[TokenTrajectory], advantages: Sequence[float]) -> _Turns:
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        _refuse_shapes(trajectory, advantage)
    prompt_T = np.concatenate([trajectory.prompt_lengths for trajectory in trajectories])
    sampled_T = np.concatenate([trajectory.sampled_lengths for trajectory in trajectories])
    first_turns = np.cumsum([0, *(len(trajectory.interactions) for trajectory in trajectories)])
    ends_T1 = _before(prompt_T + sampled_T)
    first_tokens = ends_T1[first_turns].tolist()
    first_sampled = _before(sampled_T)[first_turns].tolist()
    for at, trajectory in enumerate(trajectories):
        _refuse_lengths(trajectory, first_tokens[at + 1] - first_tokens[at], first_sampled[at + 1] - first_sampled[at])
    if len(prompt_T) and min(prompt_T.min(), sampled_T.min()) < 0:
        bad = next(one for one in trajectories if (one.prompt_lengths < 0).any() or (one.sampled_lengths < 0).any())
        raise DatumError(f"{_where(bad)}: a turn has a negative length")
    return _Turns(
        prompt_lengths=prompt_T,
        sampled_lengths=sampled_T,
        starts=np.concatenate([trajectory.starts for trajectory in trajectories]),
        ends=ends_T1,
        first_turns=first_turns.tolist(),
        first_tokens=first_tokens,
        every_turn_trains=bool(sampled_T.all()),
    )


def _before(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the running total before each of N lengths, and the total; shape (N + 1,)."""
    totals = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=totals[1:])
    return totals


def _where(trajectory: TokenTrajectory) -> str:
    return f"trial {trajectory.trial_id}, agent {trajectory.agent}"


def _refuse_shapes(trajectory: TokenTrajectory, advantage: float) -> None:
    if not abs(advantage) <= _FLOAT32_MAX:
        raise DatumError(f"{_where(trajectory)}: advantage {advantage} is not a finite float32")
    n_turns = len(trajectory.interactions)
    if not len(trajectory.prompt_lengths) == len(trajectory.sampled_lengths) == len(trajectory.starts) == n_turns or (
        n_turns and not trajectory.starts[0]
    ):
        message = f"{n_turns} turns, but the turn arrays disagree or the first does not start a row"
        raise DatumError(f"{_where(trajectory)}: {message}")


def _refuse_lengths(trajectory: TokenTrajectory, n_ids: int, n_sampled: int) -> None:
    if len(trajectory.logprobs) != n_sampled or trajectory.logprobs.dtype != np.float32:
        found = f"{len(trajectory.logprobs)} logprobs of {trajectory.logprobs.dtype}"
        raise DatumError(f"{_where(trajectory)}: {found} for {n_sampled} sampled ids, expected float32")
    if len(trajectory.ids) != n_ids or trajectory.ids.dtype != np.int32:
        found = f"{len(trajectory.ids)} ids of {trajectory.ids.dtype}"
        raise DatumError(f"{_where(trajectory)}: {found}, expected {n_ids} of int32")


def _spread(
    turns: _Turns, trajectories: Sequence[TokenTrajectory], advantages: Sequence[float]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return mask, logprobs and advantages at every token, shape (P,) each."""
    logprobs_S = np.concatenate([trajectory.logprobs for trajectory in trajectories])
    if not np.isfinite(logprobs_S).all():
        bad = next(one for one in trajectories if not np.isfinite(one.logprobs).all())
        raise DatumError(f"{_where(bad)}: a logprob is not finite")
    lengths_2T = np.stack([turns.prompt_lengths, turns.sampled_lengths], axis=1).reshape(-1)
    flags_2T = np.tile(np.array([False, True]), len(turns.prompt_lengths))
    advantages_T = np.repeat(np.array(advantages, dtype=np.float32), np.diff(turns.first_turns))
    is_sampled_P = np.repeat(flags_2T, lengths_2T)
    logprobs_P = np.zeros(len(is_sampled_P), dtype=np.float32)
    logprobs_P[is_sampled_P] = logprobs_S
    return (
        is_sampled_P.astype(np.float32),
        logprobs_P,
        np.repeat(flags_2T.astype(np.float32) * np.repeat(advantages_T, 2), lengths_2T),
    )


def _trained_rows(
    turns: _Turns, trajectories: Sequence[TokenTrajectory], mask_P: NDArray[np.float32]
) -> list[tuple[int, int, int, int, int]]:
    """Return (first turn, turn after the last, first token, token after the last, trajectory) of trained rows.

    Raises:
        DatumError: the first token of a row is a sampled one: nothing predicts it.
    """
    first_R = np.flatnonzero(turns.starts)
    last_R = np.append(first_R[1:], len(turns.starts))
    n_sampled_R = np.diff(_before(turns.sampled_lengths)[np.append(first_R, len(turns.starts))])
    trained = n_sampled_R > 0
    first_R, last_R = first_R[trained], last_R[trained]
    start_R = turns.ends[first_R]
    trajectory_R = np.searchsorted(turns.first_turns, first_R, side="right") - 1
    unseen = np.flatnonzero(mask_P[start_R])
    if len(unseen):
        at = int(trajectory_R[unseen[0]])
        within = turns.sampled_lengths[first_R[unseen[0]] :]
        turn = int(first_R[unseen[0]] + np.flatnonzero(within)[0]) - turns.first_turns[at]
        name = trajectories[at].interactions[turn]
        raise DatumError(f"interaction {name}: no prompt, so nothing predicts its first sampled id")
    columns = (first_R, last_R, start_R, turns.ends[last_R], trajectory_R)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _trained_names(turns: _Turns, trajectory: TokenTrajectory, first: int, last: int, shift: int) -> tuple[str, ...]:
    names = trajectory.interactions[first - shift : last - shift]
    if turns.every_turn_trains:
        return names
    return tuple(name for name, n in zip(names, turns.sampled_lengths[first:last].tolist(), strict=True) if n)
