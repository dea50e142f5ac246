"""Two checks of training rows: against flat trajectories, for every batch, and against interactions, for tests.

Neither shares code with packing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import DatumError
from domain.maths.alignment import agent_interactions
from domain.records.assessment import Datum
from domain.records.trajectory import TokenTrajectory
from domain.records.trial import Interaction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What R rows of P tokens must hold: P - R target positions."""

    trials: list[str]
    names: list[tuple[str, ...]]
    row_tokens: NDArray[np.int64]
    ids: NDArray[np.int32]
    mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]


def check_rows(datums: Sequence[Datum], trajectories: Sequence[TokenTrajectory], advantages: Sequence[float]) -> None:
    """Check all rows of a group against its trajectories, without a loop over tokens.

    The rows, put end to end, must be the trajectories less what trains nothing: the same ids, mask 1 exactly at the
    place of each sampled token, its logprob, the advantage of its trajectory, nothing elsewhere.

    Args:
        datums: all rows of a group, in order.
        trajectories: of all agents of the group, in order, shape (K,).
        advantages: of each trajectory, shape (K,).

    Raises:
        DatumError: naming the first row that differs.
    """
    if len(advantages) != len(trajectories) or not np.isfinite(advantages).all():
        message = f"advantages {list(advantages)} are not one finite value for each of {len(trajectories)} agents"
        raise DatumError(message)
    expected = _expected(trajectories, advantages)
    shapes = zip(datums, expected.trials, expected.row_tokens.tolist(), strict=False)
    for index, (datum, trial_id, n_tokens) in enumerate(shapes):
        if datum.trial_id != trial_id or not _has_shape(datum, (n_tokens - 1,)):
            raise DatumError(f"row {index}, trial {datum.trial_id}: expected {n_tokens - 1} targets of {trial_id}")
    if len(datums) != len(expected.trials):
        raise DatumError(f"{len(datums)} rows, expected {len(expected.trials)}")
    if datums:
        _compare(datums, expected)
    if [datum.interactions for datum in datums] != expected.names:
        raise DatumError("rows name other interactions than those whose sampled ids they hold")


def _compare(datums: Sequence[Datum], expected: _Expected) -> None:
    """Compare every value of rows of the right shapes."""
    ends_R = np.cumsum(expected.row_tokens)
    target_ends_R = ends_R - np.arange(1, len(datums) + 1)
    # A row of tokens a b c has inputs a b and targets b c: first input and targets, or inputs and last target.
    one_first = [piece for datum in datums for piece in (datum.input_ids[:1], datum.target_ids)]
    one_last = [piece for datum in datums for piece in (datum.input_ids, datum.target_ids[-1:])]
    for name, values, pieces, ends in (
        ("target ids", expected.ids, one_first, ends_R),
        ("input ids", expected.ids, one_last, ends_R),
        ("mask", expected.mask, [datum.mask for datum in datums], target_ends_R),
        ("logprobs", expected.logprobs, [datum.logprobs for datum in datums], target_ends_R),
        ("advantages", expected.advantages, [datum.advantages for datum in datums], target_ends_R),
    ):
        row = _first_difference(values, np.concatenate(pieces), ends)
        if row is not None:
            where = f"row {row}, trial {datums[row].trial_id}"
            raise DatumError(f"{where}: {name} differ from what was seen and sampled")


def _expected(trajectories: Sequence[TokenTrajectory], advantages: Sequence[float]) -> _Expected:
    n_turns = [len(one.interactions) for one in trajectories]
    owner_T: NDArray[np.int64] = np.repeat(np.arange(len(trajectories)), n_turns)
    prompt_T = _joined([one.prompt_lengths for one in trajectories], np.dtype(np.int64))
    sampled_T = _joined([one.sampled_lengths for one in trajectories], np.dtype(np.int64))
    starts_T = _joined([one.starts for one in trajectories], np.dtype(np.bool_))
    ids_P = _joined([one.ids for one in trajectories], np.dtype(np.int32))
    names_T = list(chain.from_iterable(one.interactions for one in trajectories))
    row_T = np.cumsum(starts_T) - 1
    trains_T = (np.bincount(row_T, weights=sampled_T) > 0)[row_T]
    if not trains_T.all():
        ids_P = ids_P[np.repeat(trains_T, prompt_T + sampled_T)]
        names_T = list(compress(names_T, trains_T.tolist()))
        owner_T, starts_T = owner_T[trains_T], starts_T[trains_T]
        prompt_T, sampled_T = prompt_T[trains_T], sampled_T[trains_T]
        row_T = np.cumsum(starts_T) - 1
    # The first token of a row is no target.
    targets_T = prompt_T - starts_T
    if (targets_T < 0).any():
        raise DatumError("a row starts with a sampled id, which nothing predicts")
    lengths_2T = np.stack([targets_T, sampled_T], axis=1).reshape(-1)
    runs_2T = np.zeros((len(owner_T), 2), dtype=np.float32)
    runs_2T[:, 1] = 1.0
    mask = np.repeat(runs_2T.reshape(-1), lengths_2T)
    runs_2T[:, 1] = np.asarray(advantages, dtype=np.float32)[owner_T]
    logprobs = np.zeros(len(mask), dtype=np.float32)
    logprobs[mask.astype(np.bool_)] = _joined([one.logprobs for one in trajectories], np.dtype(np.float32))
    return _Expected(
        trials=[trajectories[int(at)].trial_id for at in owner_T[starts_T].tolist()],
        names=_names(names_T, row_T, sampled_T),
        row_tokens=np.bincount(row_T, weights=prompt_T + sampled_T).astype(np.int64),
        ids=ids_P,
        mask=mask,
        logprobs=logprobs,
        advantages=np.repeat(runs_2T.reshape(-1), lengths_2T),
    )


def _joined(pieces: Sequence[NDArray[np.generic]], kind: np.dtype[np.generic]) -> NDArray[Any]:
    """Return arrays end to end, of type ``kind`` where there are none."""
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=kind)


def _names(names_T: list[str], row_T: NDArray[np.int64], sampled_T: NDArray[np.int64]) -> list[tuple[str, ...]]:
    """Return, for each row, the interactions with a sampled id."""
    trains_T = sampled_T > 0
    names = names_T if trains_T.all() else list(compress(names_T, trains_T.tolist()))
    ends_R = np.cumsum(np.bincount(row_T[trains_T])).tolist()
    return [tuple(names[start:end]) for start, end in zip([0, *ends_R], ends_R, strict=False)]


def _first_difference(expected: NDArray[Any], found: NDArray[Any], ends_R: NDArray[np.int64]) -> int | None:
    """Return the first row that differs, or None. NaN differs from everything, itself included."""
    if expected.dtype != found.dtype:
        return 0
    differs = expected != found
    return int(np.searchsorted(ends_R, int(differs.argmax()), side="right")) if differs.any() else None


def _has_shape(datum: Datum, shape: tuple[int, ...]) -> bool:
    ids = datum.input_ids.shape == datum.target_ids.shape == shape
    return ids and datum.mask.shape == datum.logprobs.shape == datum.advantages.shape == shape


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
