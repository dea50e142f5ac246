"""The records contract: every record of the domain comes back as it was, and nothing else is accepted."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import domain.records
from adapters import codec
from adapters.stores.records import StoredRecords
from domain.errors import LedgerError, NotFoundError, StoreError
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import Json, canonical_bytes
from domain.records.experiment import ExperimentSpec, TokenScope
from domain.records.model import Checkpoint
from domain.records.profile import Plan, Profile
from domain.records.task import ObjectRef, Task
from domain.records.trial import TrialRecord
from tests.fakes.store import MemoryStore


def holds_arrays(kind: type[Any]) -> bool:
    """Say whether a record is made of numpy arrays, which go into tables and not into JSON."""
    return any(get_origin(field.type) is np.ndarray for field in dataclasses.fields(kind))


def record_kinds() -> list[type[Any]]:
    """Return every dataclass of domain.records; those of arrays have tables instead."""
    modules = [
        importlib.import_module(f"domain.records.{found.name}")
        for found in pkgutil.iter_modules(domain.records.__path__)
    ]
    kinds = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and not holds_arrays(value)
    }
    return sorted(kinds, key=lambda kind: kind.__name__)


LEAVES: dict[object, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(min_value=-(2**63), max_value=2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    Json: st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of an annotation that records use."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return st.one_of(*(values(argument) for argument in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=4), values(arguments[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{field.name: values(field.type) for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", record_kinds(), ids=lambda kind: kind.__name__)
def test_every_record_comes_back(kind: type[Any]) -> None:
    """Whatever its values, a record is the same after a round through the store, and so are its bytes."""

    @settings(max_examples=15, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(values(kind))
    def round_trip(record: Any) -> None:
        records = StoredRecords(MemoryStore())
        ref = records.save(record)
        back = records.load(kind, ref)
        assert back == record
        assert type(back) is kind
        assert records.save(back) == ref

    round_trip()


def test_the_walk_finds_the_records() -> None:
    """The list above is not empty by accident."""
    assert {TrialRecord, Checkpoint, ExperimentSpec, Profile, Plan, TokenScope, Task, Assessment} <= set(record_kinds())


def save_bytes(document: bytes) -> tuple[StoredRecords, ObjectRef]:
    """Return records over a store that holds a document."""
    store = MemoryStore()
    return StoredRecords(store), store.put(document)


GOOD = b'{"digest":"aa","size_bytes":3}'


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (GOOD.replace(b"}", b',"extra":1}'), "extra"),
        (b'{"digest":"aa"}', "size_bytes"),
        (GOOD.replace(b"3", b'"3"'), "size_bytes"),
        (GOOD.replace(b"3", b"3.5"), "size_bytes"),
        (b"null", "document"),
        (b"[]", "document"),
        (GOOD[:-1], "document"),
        (b"\xff", "document"),
    ],
)
def test_other_documents_are_refused(document: bytes, field: str) -> None:
    """Unknown keys, missing keys, wrong types and torn bytes name the kind and the field."""
    records, ref = save_bytes(document)
    with pytest.raises(StoreError, match=rf"ObjectRef\.{field}") as refused:
        records.load(ObjectRef, ref)
    assert ref.digest in str(refused.value)


def test_unknown_keys_of_inner_records_are_refused() -> None:
    """Strictness reaches every level."""
    scope = codec.encode(Plan())
    records, ref = save_bytes(scope.replace(b'"sampling":{', b'"sampling":{"top_k":1,'))
    with pytest.raises(StoreError, match=r"Plan\.sampling\.top_k"):
        records.load(Plan, ref)


def test_non_finite_numbers_are_refused() -> None:
    """NaN is never written, and the error is the caller's boundary."""
    made = Assessment(trial_id="t", assessor="verifier:x", outcome=AssessmentOutcome.SCORED, reward=float("nan"))
    with pytest.raises(StoreError, match="Assessment"):
        StoredRecords(MemoryStore()).save(made)
    with pytest.raises(LedgerError):
        codec.encode(made, error=LedgerError)


def test_a_missing_record_is_not_found() -> None:
    """Absent and wrong are different errors."""
    with pytest.raises(NotFoundError):
        StoredRecords(MemoryStore()).load(Plan, ObjectRef(digest="0" * 64, size_bytes=1))


def test_saved_bytes_are_canonical() -> None:
    """The object's name is the record's digest."""
    store = MemoryStore()
    ref = StoredRecords(store).save(Plan())
    assert store.get(ref) == canonical_bytes(Plan())
