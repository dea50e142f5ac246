"""Datums as Arrow IPC files in a store: flat buffers and offsets, never a loop over tokens."""

from collections.abc import Sequence
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

_VERSION = b"1"
_KIND = b"synth.datums"
_FLAT = {
    "input_ids": np.dtype(np.int32),
    "target_ids": np.dtype(np.int32),
    "logprobs": np.dtype(np.float32),
    "advantages": np.dtype(np.float32),
    "mask": np.dtype(np.float32),
}
"""The per-token columns; all of one row have the same length."""

_SCHEMA = arrow.schema(
    [
        *(
            (name, arrow.large_list(arrow.field("item", arrow.from_numpy_dtype(kind), nullable=False)))
            for name, kind in _FLAT.items()
        ),
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
            DatumError: the arrays of a row differ in length, or have another type or shape.
            StoreError: the store cannot keep the table.
        """
        offsets = _offsets([_length(datum, index) for index, datum in enumerate(datums)])
        columns = [_lists(offsets, _flat(datums, name), kind) for name, kind in _FLAT.items()]
        columns += [
            arrow.array([datum.trial_id for datum in datums], arrow.string()),
            arrow.array([datum.group for datum in datums], arrow.int64()),
            arrow.array([datum.interactions for datum in datums], _SCHEMA.field("interactions").type),
        ]
        batch = arrow.record_batch(columns, schema=_SCHEMA)
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        return self._store.put(sink.getvalue().to_pybytes())

    def read(self, ref: ObjectRef) -> tuple[Datum, ...]:
        """Return the rows; their arrays are writable views of one buffer for each column.

        Raises:
            NotFoundError: no such object.
            StoreError: the object is not a table of datums of this version.
        """
        batch = self._batch(ref)
        offsets = batch.column("input_ids").offsets.to_pylist()
        flat = {name: batch.column(name).values.to_numpy(zero_copy_only=False, writable=True) for name in _FLAT}
        rows = zip(
            offsets[:-1],
            offsets[1:],
            batch.column("trial_id").to_pylist(),
            batch.column("group").to_pylist(),
            batch.column("interactions").to_pylist(),
            strict=True,
        )
        return tuple(
            Datum(
                **{name: values[start:end] for name, values in flat.items()},
                trial_id=trial_id,
                group=group,
                interactions=tuple(interactions),
            )
            for start, end, trial_id, group, interactions in rows
        )

    def _batch(self, ref: ObjectRef) -> Any:
        data = self._store.get(ref)
        hint = "this is not a datum table, or another version of Synth wrote it"
        try:
            with arrow.ipc.open_file(data) as reader:
                schema = reader.schema
                if not schema.equals(_SCHEMA, check_metadata=True):
                    message = f"{self._store.location(ref)}: its columns or schema version are not those of datums"
                    raise StoreError(message, hint=hint)
                return reader.get_batch(0)
        except arrow.ArrowException as cause:
            raise StoreError(f"{self._store.location(ref)}: {cause}", hint=hint) from cause


def _length(datum: Datum, index: int) -> int:
    """Return the number of positions of a row. Raises DatumError when its arrays do not align."""
    shape = datum.input_ids.shape
    for name, kind in _FLAT.items():
        values: NDArray[Any] = getattr(datum, name)
        if values.ndim != 1 or values.shape != shape or values.dtype != kind:
            message = (
                f"row {index} (trial {datum.trial_id or 'unknown'}): {name} is {values.dtype}{list(values.shape)}, "
                f"not {kind}{list(shape)}"
            )
            raise DatumError(message, hint="every array of a datum has one value for each position")
    return shape[0]


def _offsets(lengths: list[int]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _flat(datums: Sequence[Datum], name: str) -> NDArray[Any]:
    """Return all rows of one column, end to end."""
    return np.concatenate([getattr(datum, name) for datum in datums] or [np.empty(0, dtype=_FLAT[name])])


def _lists(offsets: NDArray[np.int64], values: NDArray[Any], kind: np.dtype[Any]) -> Any:
    item = arrow.field("item", arrow.from_numpy_dtype(kind), nullable=False)
    return arrow.LargeListArray.from_arrays(arrow.array(offsets), arrow.array(values), type=arrow.large_list(item))
