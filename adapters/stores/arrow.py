"""Datums as Arrow IPC files in a store: each id once, mask and advantages as runs, never a loop over tokens.

Schema version 2. A row of N positions holds N + 1 ``ids``: inputs are all but the last, targets all but the first. Over
its positions lie runs, in which mask and advantage are constant: ``run_lengths``, ``run_mask``, ``run_advantages``.
``logprobs`` holds a value for each position whose mask is not 0. What comes back has the same bits as what went in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from domain.errors import DatumError, StoreError
from domain.ports import Store
from domain.records.assessment import Datum
from domain.records.task import ObjectRef

arrow: Any = pa
"""The module, whose own annotations are not complete enough to check against."""

_VERSION = b"2"
_KIND = b"synth.datums"
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)
_ARRAYS = {
    "input_ids": _INT32,
    "target_ids": _INT32,
    "logprobs": _FLOAT32,
    "advantages": _FLOAT32,
    "mask": _FLOAT32,
}
"""The arrays of a datum; all of one row have the same length."""

_INT, _FLOAT = (
    arrow.large_list(arrow.field("item", kind, nullable=False)) for kind in (arrow.int32(), arrow.float32())
)
_SCHEMA = arrow.schema(
    [
        ("ids", _INT),
        ("run_lengths", _INT),
        ("run_mask", _FLOAT),
        ("run_advantages", _FLOAT),
        ("logprobs", _FLOAT),
        ("trial_id", arrow.string()),
        ("group", arrow.int64()),
        ("interactions", arrow.large_list(arrow.field("item", arrow.string(), nullable=False))),
    ],
    metadata={b"kind": _KIND, b"schema_version": _VERSION},
)


class ArrowDatumTables:
    """Datum tables over a store. See domain.ports.DatumTables."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, datums: Sequence[Datum]) -> ObjectRef:
        """Keep rows in order; the same rows give the same bytes.

        Raises:
            DatumError: the arrays of a row differ in length, have another type or shape, its targets are not its
                inputs shifted by one, or it has a logprob outside its mask.
            StoreError: the store cannot keep the table.
        """
        lengths_R = np.array([_length(datum, index) for index, datum in enumerate(datums)], dtype=np.int64)
        starts_R = np.cumsum(lengths_R) - lengths_R
        runs = _runs(datums, starts_R, lengths_R)
        logprobs = _logprobs(datums, runs, starts_R + lengths_R)
        columns = [
            _lists(_ids(datums, lengths_R), lengths_R + (lengths_R > 0)),
            *(_lists(values, runs.n_runs) for values in (runs.lengths, runs.mask, runs.advantages)),
            _lists(logprobs, runs.n_trained),
            arrow.array([datum.trial_id for datum in datums], arrow.string()),
            arrow.array([datum.group for datum in datums], arrow.int64()),
            arrow.array([datum.interactions for datum in datums], _SCHEMA.field("interactions").type),
        ]
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(arrow.record_batch(columns, schema=_SCHEMA))
        return self._store.put(sink.getvalue().to_pybytes())

    def read(self, ref: ObjectRef) -> tuple[Datum, ...]:
        """Return the rows; their arrays are writable views of arrays of the whole table.

        Inputs and targets of a row are views of the same ids.

        Raises:
            NotFoundError: no such object.
            StoreError: the object is not a table of datums of this version.
        """
        batch = self._batch(ref)
        where = self._store.location(ref)
        ids = _values(batch, "ids")
        id_starts = batch.column("ids").offsets.to_numpy()
        lengths_R = np.maximum(np.diff(id_starts) - 1, 0)
        mask, advantages = _expanded(batch, lengths_R, where)
        is_trained = mask != 0
        logprobs = np.zeros(len(mask), dtype=np.float32)
        kept = _values(batch, "logprobs")
        if len(kept) != np.count_nonzero(is_trained):
            raise StoreError(f"{where}: {len(kept)} logprobs for {np.count_nonzero(is_trained)} trained positions")
        logprobs[is_trained] = kept
        ends = np.cumsum(lengths_R).tolist()
        rows = zip(
            id_starts[:-1].tolist(),
            [0, *ends],
            ends,
            *(batch.column(name).to_pylist() for name in ("trial_id", "group", "interactions")),
            strict=False,
        )
        return tuple(
            Datum(
                input_ids=ids[first : first + end - start],
                target_ids=ids[first + 1 : first + 1 + end - start],
                logprobs=logprobs[start:end],
                advantages=advantages[start:end],
                mask=mask[start:end],
                trial_id=trial_id,
                group=group,
                interactions=tuple(interactions),
            )
            for first, start, end, trial_id, group, interactions in rows
        )

    def _batch(self, ref: ObjectRef) -> Any:
        data = self._store.get(ref)
        where = self._store.location(ref)
        try:
            with arrow.ipc.open_file(data) as reader:
                _refuse_schema(reader.schema, where)
                return reader.get_batch(0)
        except arrow.ArrowException as cause:
            raise StoreError(f"{where}: {cause}", hint="this is not a datum table") from cause


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Runs of all rows end to end; a row starts a run."""

    n_runs: NDArray[np.int64]
    """Of each row."""
    n_trained: NDArray[np.int64]
    """Positions of each row whose mask is not 0."""
    lengths: NDArray[np.int32]
    mask: NDArray[np.float32]
    advantages: NDArray[np.float32]


def _refuse_schema(schema: Any, where: str) -> None:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    if metadata.get(b"kind") != _KIND:
        raise StoreError(f"{where}: an Arrow file, but not a datum table")
    version = metadata.get(b"schema_version", b"none")
    if version != _VERSION:
        message = f"{where}: a datum table of schema version {version.decode()}; this Synth reads {_VERSION.decode()}"
        raise StoreError(message, hint="read it with the Synth that wrote it, or run its training again")
    if not schema.equals(_SCHEMA, check_metadata=True):
        raise StoreError(f"{where}: its columns are not those of datum tables of schema version {_VERSION.decode()}")


def _length(datum: Datum, index: int) -> int:
    """Return the number of positions of a row. Raises DatumError when its arrays do not align."""
    ids, targets = datum.input_ids, datum.target_ids
    logprobs, advantages, mask = datum.logprobs, datum.advantages, datum.mask
    shape = ids.shape
    if not (
        shape == targets.shape == logprobs.shape == advantages.shape == mask.shape
        and len(shape) == 1
        and ids.dtype == targets.dtype == _INT32
        and logprobs.dtype == advantages.dtype == mask.dtype == _FLOAT32
    ):
        raise _misaligned(datum, index)
    return shape[0]


def _misaligned(datum: Datum, index: int) -> DatumError:
    """Return the error that names the first array that differs from what the first one makes it be."""
    shape = datum.input_ids.shape[:1]
    arrays: dict[str, NDArray[Any]] = {name: getattr(datum, name) for name in _ARRAYS}
    name = next(
        (name for name, values in arrays.items() if (values.shape, values.dtype) != (shape, _ARRAYS[name])), "input_ids"
    )
    found = f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, not {_ARRAYS[name]}{list(shape)}"
    return _refused(datum, index, found, "every array of a datum has one value for each position")


def _refused(datum: Datum, index: int, what: str, hint: str) -> DatumError:
    return DatumError(f"row {index} (trial {datum.trial_id or 'unknown'}): {what}", hint=hint)


def _joined(datums: Sequence[Datum], name: str) -> NDArray[Any]:
    """Return all rows of one array, end to end."""
    return np.concatenate([getattr(datum, name) for datum in datums] or [np.empty(0, dtype=_ARRAYS[name])])


def _ids(datums: Sequence[Datum], lengths_R: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the first input and all targets of each row, which must be its inputs and its last target."""
    none = [np.empty(0, dtype=np.int32)]
    ids = np.concatenate([piece for row in datums for piece in (row.input_ids[:1], row.target_ids)] or none)
    same = np.concatenate([piece for row in datums for piece in (row.input_ids, row.target_ids[-1:])] or none)
    differs = ids != same
    if differs.any():
        index = int(np.searchsorted(np.cumsum(lengths_R + (lengths_R > 0)), int(differs.argmax()), side="right"))
        raise _refused(datums[index], index, "target_ids are not input_ids shifted by one", "a table keeps ids once")
    return ids


def _runs(datums: Sequence[Datum], starts_R: NDArray[np.int64], lengths_R: NDArray[np.int64]) -> _Runs:
    mask, advantages = _joined(datums, "mask"), _joined(datums, "advantages")
    # Bits rather than numbers: -0.0 and NaN come back as they are.
    mask_bits, advantage_bits = mask.view(np.int32), advantages.view(np.int32)
    begins = np.ones(len(mask), dtype=np.bool_)
    np.not_equal(mask_bits[1:], mask_bits[:-1], out=begins[1:])
    begins[1:] |= advantage_bits[1:] != advantage_bits[:-1]
    begins[starts_R[lengths_R > 0]] = True
    firsts = np.flatnonzero(begins)
    lengths = np.diff(np.append(firsts, len(mask)))
    before_R1 = np.searchsorted(firsts, np.append(starts_R, len(mask)))
    trained = np.append(0, np.cumsum(lengths * (mask[firsts] != 0)))
    return _Runs(
        n_runs=np.diff(before_R1),
        n_trained=np.diff(trained[before_R1]),
        lengths=lengths.astype(np.int32),
        mask=mask[firsts],
        advantages=advantages[firsts],
    )


def _logprobs(datums: Sequence[Datum], runs: _Runs, ends_R: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the logprobs of trained positions."""
    logprobs = _joined(datums, "logprobs")
    is_trained = np.repeat(runs.mask != 0, runs.lengths)
    kept = logprobs[is_trained]
    if np.count_nonzero(logprobs.view(np.int32)) != np.count_nonzero(kept.view(np.int32)):
        outside = int(((logprobs.view(np.int32) != 0) & ~is_trained).argmax())
        index = int(np.searchsorted(ends_R, outside, side="right"))
        raise _refused(datums[index], index, "logprobs is not +0.0 where mask is 0", "a table keeps trained ones only")
    return kept


def _lists(values: NDArray[Any], lengths_R: NDArray[np.int64]) -> Any:
    offsets = np.zeros(len(lengths_R) + 1, dtype=np.int64)
    np.cumsum(lengths_R, out=offsets[1:])
    kind = _INT if values.dtype == np.int32 else _FLOAT
    return arrow.LargeListArray.from_arrays(arrow.array(offsets), arrow.array(values), type=kind)


def _values(batch: Any, name: str) -> NDArray[Any]:
    """Return a writable copy of all values of a list column, end to end."""
    return batch.column(name).values.to_numpy(zero_copy_only=False, writable=True)


def _expanded(batch: Any, lengths_R: NDArray[np.int64], where: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mask and advantages at every position."""
    lengths = _values(batch, "run_lengths")
    totals = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=totals[1:])
    if not np.array_equal(np.diff(totals[batch.column("run_lengths").offsets.to_numpy()]), lengths_R):
        raise StoreError(f"{where}: the runs of a row do not cover its positions")
    return np.repeat(_values(batch, "run_mask"), lengths), np.repeat(_values(batch, "run_advantages"), lengths)
