"""The datum table contract: the same rows back, the same bytes for the same rows."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from adapters.stores.arrow import ArrowDatumTables
from domain.errors import DatumError, NotFoundError, StoreError
from domain.records.assessment import Datum
from domain.records.task import ObjectRef
from tests.fakes.store import MemoryStore

arrow: Any = pa
"""The module, whose own annotations are not complete enough to check against."""
ARRAYS = ("input_ids", "target_ids", "logprobs", "advantages", "mask")


def datum(length: int, seed: int = 0, **changes: object) -> Datum:
    """Return a row of random values."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 1000, length + 1, dtype=np.int32)
    mask = draw.integers(0, 2, length).astype(np.float32)
    made = Datum(
        input_ids=ids[:-1],
        target_ids=ids[1:],
        logprobs=np.where(mask > 0, draw.standard_normal(length, dtype=np.float32), np.float32(0)),
        advantages=draw.standard_normal(length, dtype=np.float32) * mask,
        mask=mask,
        trial_id=f"trial-{seed}",
        group=seed,
        interactions=tuple(f"i{number}" for number in range(seed % 3)),
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType] - a test names the fields it varies


@pytest.fixture
def tables() -> ArrowDatumTables:
    """Tables over a store in memory."""
    return ArrowDatumTables(MemoryStore())


@pytest.mark.parametrize("lengths", [(), (1,), (5, 1, 300), (0, 4, 0)])
def test_rows_come_back(tables: ArrowDatumTables, lengths: tuple[int, ...]) -> None:
    """Every value, type and row, in order."""
    rows = [datum(length, seed) for seed, length in enumerate(lengths)]
    back = tables.read(tables.write(rows))
    assert len(back) == len(rows)
    for row, read in zip(rows, back, strict=True):
        for name in ARRAYS:
            assert getattr(read, name).dtype == getattr(row, name).dtype
            assert getattr(read, name).tobytes() == getattr(row, name).tobytes()
        assert (read.trial_id, read.group, read.interactions) == (row.trial_id, row.group, row.interactions)


def test_same_rows_same_bytes(tables: ArrowDatumTables) -> None:
    """The name of a table depends on its rows alone, not on how their memory lies."""
    rows = [datum(7, seed) for seed in range(3)]
    strided = [replace(row, logprobs=np.repeat(row.logprobs, 2)[::2]) for row in rows]
    assert tables.write(rows) == tables.write(tuple(strided)) == tables.write(tables.read(tables.write(rows)))
    assert tables.write(rows) != tables.write(rows[::-1])


def test_values_are_exact(tables: ArrowDatumTables) -> None:
    """Extreme values keep their bits: the importance ratio depends on them."""
    extremes = np.array([-0.0, np.finfo(np.float32).tiny, -np.inf, np.nan, -1e-45], dtype=np.float32)
    row = datum(5, mask=np.ones(5, dtype=np.float32), logprobs=extremes, advantages=extremes)
    (back,) = tables.read(tables.write([row]))
    assert back.logprobs.tobytes() == extremes.tobytes()
    assert back.advantages.tobytes() == extremes.tobytes()


def test_a_negative_zero_outside_the_mask_stays(tables: ArrowDatumTables) -> None:
    """A negative advantage times mask 0 is -0.0, and comes back so."""
    mask = np.array([0, 1, 1, 0], dtype=np.float32)
    row = datum(4, mask=mask, advantages=mask * np.float32(-0.5), logprobs=-mask * mask)
    row = replace(row, logprobs=np.where(mask > 0, row.logprobs, np.float32(0)))
    (back,) = tables.read(tables.write([row]))
    assert np.signbit(back.advantages).all()
    assert back.advantages.tobytes() == row.advantages.tobytes()


def test_each_id_is_kept_once(tables: ArrowDatumTables) -> None:
    """A long row with few runs takes four bytes for an id, four for a trained logprob, and little more."""
    mask = np.repeat(np.array([0, 1], dtype=np.float32), 5000)
    row = datum(10_000, mask=mask, advantages=mask * np.float32(0.5), logprobs=-mask)
    row = replace(row, logprobs=np.where(mask > 0, row.logprobs, np.float32(0)))
    assert tables.write([row]).size_bytes < 10_001 * 4 + 5000 * 4 + 4000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_ids": np.arange(5, dtype=np.int32) + 2000}, "not input_ids shifted by one"),
        (
            {"mask": np.zeros(5, dtype=np.float32), "logprobs": np.full(5, -0.0, dtype=np.float32)},
            "logprobs is not \\+0.0 where mask is 0",
        ),
    ],
)
def test_what_a_table_cannot_keep_is_refused(
    tables: ArrowDatumTables, changes: dict[str, object], message: str
) -> None:
    """Targets that are not the shifted inputs, and logprobs outside the mask, are refused with the row's name."""
    with pytest.raises(DatumError, match=rf"row 2 \(trial trial-2\): .*{message}"):
        tables.write([datum(3), datum(0, 1), datum(5, 2, **changes), datum(4, 3)])


def test_arrays_can_be_given_to_torch(tables: ArrowDatumTables) -> None:
    """Read arrays are contiguous and writable, as torch.from_numpy wants them."""
    (_, back) = tables.read(tables.write([datum(3), datum(4)]))
    for name in ARRAYS:
        flags = getattr(back, name).flags
        assert flags.writeable
        assert flags.c_contiguous


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": np.ones(4, dtype=np.float32)},
        {"logprobs": np.ones(5, dtype=np.float64)},
        {"input_ids": np.ones((5, 1), dtype=np.int32)},
    ],
)
def test_misaligned_rows_are_refused(tables: ArrowDatumTables, changes: dict[str, object]) -> None:
    """The row, its trial and the array are named."""
    (name,) = changes
    with pytest.raises(DatumError, match=rf"row 1 \(trial trial-1\): {name}"):
        tables.write([datum(5), datum(5, 1, **changes)])


def test_other_objects_are_refused() -> None:
    """Bytes that are no datum table are named as such."""
    store = MemoryStore()
    tables = ArrowDatumTables(store)
    with pytest.raises(StoreError, match="memory:"):
        tables.read(store.put(b"not arrow at all"))
    with pytest.raises(NotFoundError):
        tables.read(ObjectRef(digest="0" * 64, size_bytes=1))


@pytest.mark.parametrize("version", [b"1", b"3"])
def test_another_schema_version_is_refused(version: bytes) -> None:
    """A table of an earlier or later version is not misread; the error names both versions."""
    store = MemoryStore()
    tables = ArrowDatumTables(store)
    table = arrow.ipc.open_file(store.get(tables.write([datum(3)]))).read_all()
    other = table.replace_schema_metadata({b"kind": b"synth.datums", b"schema_version": version})
    with pytest.raises(StoreError, match=f"schema version {version.decode()}; this Synth reads 2"):
        tables.read(store.put(_file(other)))


def test_damaged_tables_are_refused() -> None:
    """Arrow files of another kind, other columns, or runs and logprobs that do not fit the ids are named."""
    store = MemoryStore()
    tables = ArrowDatumTables(store)
    mask = np.array([0, 1, 1], dtype=np.float32)
    row = datum(3, mask=mask, advantages=mask, logprobs=mask)
    table = arrow.ipc.open_file(store.get(tables.write([row]))).read_all()
    kinds = {name: table.schema.field(name).type for name in ("run_lengths", "logprobs")}
    damaged = {
        "not a datum table": table.replace_schema_metadata({b"kind": b"other"}),
        "columns are not those": table.drop_columns(["group"]),
        "do not cover": table.set_column(1, "run_lengths", arrow.array([[1, 1]], kinds["run_lengths"])),
        "1 logprobs for 2": table.set_column(4, "logprobs", arrow.array([[1.0]], kinds["logprobs"])),
    }
    for message, content in damaged.items():
        with pytest.raises(StoreError, match=message):
            tables.read(store.put(_file(content)))


def _file(table: Any) -> bytes:
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_is_fast() -> None:
    """A million tokens take far less than a second of CPU; the benchmark holds the real target."""
    tables = ArrowDatumTables(MemoryStore())
    rows = [datum(2000, seed) for seed in range(500)]
    tables.read(tables.write(rows[:1]))
    started = time.process_time()
    tables.read(tables.write(rows))
    assert time.process_time() - started < 0.5
