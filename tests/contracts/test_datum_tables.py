"""The datum table contract: the same rows back, the same bytes for the same rows."""

import time
from dataclasses import replace

import numpy as np
import pytest

from adapters.stores.arrow import ArrowDatumTables
from domain.errors import DatumError, NotFoundError, StoreError
from domain.records.assessment import Datum
from domain.records.task import ObjectRef
from tests.fakes.store import MemoryStore

ARRAYS = ("input_ids", "target_ids", "logprobs", "advantages", "mask")


def datum(length: int, seed: int = 0, **changes: object) -> Datum:
    """Return a row of random values."""
    draw = np.random.default_rng(seed)
    made = Datum(
        input_ids=draw.integers(0, 1000, length, dtype=np.int32),
        target_ids=draw.integers(0, 1000, length, dtype=np.int32),
        logprobs=draw.standard_normal(length, dtype=np.float32),
        advantages=draw.standard_normal(length, dtype=np.float32),
        mask=draw.integers(0, 2, length).astype(np.float32),
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
            np.testing.assert_array_equal(getattr(read, name), getattr(row, name))
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
    (back,) = tables.read(tables.write([datum(5, logprobs=extremes)]))
    assert back.logprobs.tobytes() == extremes.tobytes()


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


def test_another_schema_version_is_refused() -> None:
    """A table of a later version is not misread."""
    store = MemoryStore()
    tables = ArrowDatumTables(store)
    ref = tables.write([datum(3)])
    # The marker and its value have fixed lengths, so the file stays a valid Arrow file.
    later = store.get(ref).replace(b"synth.datums", b"synth.things")
    with pytest.raises(StoreError, match="schema version"):
        tables.read(store.put(later))


def test_is_fast() -> None:
    """A million tokens take far less than a second of CPU; the benchmark holds the real target."""
    tables = ArrowDatumTables(MemoryStore())
    rows = [datum(2000, seed) for seed in range(500)]
    tables.read(tables.write(rows[:1]))
    started = time.process_time()
    tables.read(tables.write(rows))
    assert time.process_time() - started < 0.5
