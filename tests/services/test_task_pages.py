"""Task sets in pages: what is read of them, and that their size changes nothing else."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from adapters.stores.directory import DirectoryStore
from adapters.stores.records import StoredRecords
from domain.errors import AdmissionError, NotFoundError, TaskError
from domain.lifecycle.refusals import needs
from domain.ports import Records
from domain.records.capacity import UNBOUNDED
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Order, Plan, Profile
from domain.records.task import NetworkMode, ObjectRef, Task, TaskEntry, TaskPage, TaskSet
from domain.service import task_pages
from domain.service.accept import Submission, accept
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.task_pages import TaskSetWriter, entries_at, entries_of, entries_with
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform, write_task


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


T = TypeVar("T")
REFERENCE = parse_reference("team/paged@v1", field="test")


class CountingRecords:
    """Records that count what is loaded, by kind."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.loaded: Counter[str] = Counter()

    def save(self, record: object) -> ObjectRef:
        """Keep a record."""
        return self._records.save(record)

    def load(self, kind: type[T], ref: ObjectRef) -> T:
        """Return the record, counted."""
        self.loaded[kind.__name__] += 1
        return self._records.load(kind, ref)


@pytest.fixture
def records(tmp_path: Path) -> CountingRecords:
    """Records over a real store."""
    return CountingRecords(StoredRecords(DirectoryStore(tmp_path / "store")))


def entry(number: int, family: str | None = None) -> TaskEntry:
    """Return a task to list."""
    return TaskEntry(
        name=f"t/{number}", digest=f"{number:064x}", record=ObjectRef(digest="0" * 64, size_bytes=1), family=family
    )


def paged(records: Records, n_tasks: int) -> TaskSet:
    """Return a set of ``n_tasks`` of two classes and three families."""
    writer = TaskSetWriter(records, REFERENCE)
    for number in range(n_tasks):
        writer.add(entry(number, f"f{number % 3}"), f"kind{number % 2}")
    return writer.close()


def test_a_set_is_written_in_pages_and_read_in_order(records: CountingRecords) -> None:
    """2,500 tasks are three pages; the header says what a list of sets shows."""
    task_set = paged(records, 2500)
    assert (task_set.n_tasks, task_set.n_families, len(task_set.pages)) == (2500, 3, 3)
    assert [(kind.n_tasks, kind.example.name) for kind in task_set.classes] == [(1250, "t/0"), (1250, "t/1")]
    names: Iterator[str] = (item.name for item in entries_of(records, task_set))
    assert list(names) == [f"t/{number}" for number in range(2500)]


def test_a_unit_reads_only_its_pages(records: CountingRecords) -> None:
    """Positions come back in their order, doubled ones too."""
    task_set = paged(records, 2500)
    assert [item.name for item in entries_at(records, task_set, (2001, 3, 3, 2400))] == [
        "t/2001", "t/3", "t/3", "t/2400",
    ]  # fmt: skip
    assert records.loaded[TaskPage.__name__] == 2
    found = entries_with(records, task_set, [entry(5).digest, entry(7).digest])
    assert sorted(item.name for item in found.values()) == ["t/5", "t/7"]
    assert records.loaded[TaskPage.__name__] == 3
    with pytest.raises(NotFoundError, match=r"team/paged@v1"):
        entries_with(records, task_set, ["f" * 64])


def test_two_tasks_of_one_name_are_refused(records: CountingRecords) -> None:
    """Whatever source they come from."""
    writer = TaskSetWriter(records, REFERENCE)
    writer.add(entry(1), "kind")
    with pytest.raises(TaskError, match="t/1"):
        writer.add(replace(entry(2), name="t/1"), "kind")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """A platform with twelve published tasks in pages of five; one of them takes more memory."""
    monkeypatch.setattr(task_pages, "PAGE_TASKS", 5)
    made = make_platform(tmp_path / "home")
    for number in range(12):
        task = write_task(tmp_path / "tasks", f"n{number:02d}")
        if number == 7:
            with (task / "task.toml").open("a") as toml:
                toml.write("[environment]\nmemory_mb = 4096\n")
    publish_task_set(made, REFERENCE, str(tmp_path / "tasks"))
    return made


def submission(**plan: object) -> Submission:
    """Return an evaluation of the set."""
    return Submission(
        kind=ExperimentKind.EVALUATION,
        task_set=str(REFERENCE),
        actor=Profile(name="nop", engine="nop"),
        plan=replace(Plan(sandbox="memory"), **plan),  # pyright: ignore[reportArgumentType] - fields of Plan
    )


def test_acceptance_looks_at_one_task_of_each_kind(platform: Platform) -> None:
    """Not at all of them; the refusal names the task that cannot run here, and how many."""
    counting = CountingRecords(platform.records)
    budget = replace(UNBOUNDED, memory_mb=3000.0)
    with pytest.raises(AdmissionError, match=r"1 of 12 tasks:\n  t/n07: memory_mb: a trial takes 4096"):
        accept(replace(platform, records=counting, budget=budget), submission())
    assert counting.loaded == {Task.__name__: 2}


def test_what_admission_does_not_ask_for_keeps_tasks_alike(platform: Platform) -> None:
    """Name, text and image do not matter; network, size and malformed images do."""
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(REFERENCE)
    task = platform.records.load(Task, task_set.classes[0].example.record)
    place = task.environment
    for alike in (
        replace(task, name="t/other", instruction="x", metadata={"a": 1}, family="b"),
        replace(task, environment=replace(place, docker_image=None)),
    ):
        assert needs(alike) == needs(task)
    images = [needs(replace(task, environment=replace(place, docker_image=name))) for name in ("a:1", "b:2", "no way")]
    assert (images[0] == images[1], images[1] == images[2], images[0] == needs(task)) == (True, False, False)
    for other in (
        replace(task, environment=replace(place, network_mode=NetworkMode.NO_NETWORK)),
        replace(task, environment=replace(place, gpus=1)),
    ):
        assert needs(other) != needs(task)


async def test_units_of_a_paged_set_run_each_task_once(platform: Platform) -> None:
    """Three shards of a shuffled set in pages of five hold each task once."""
    accepted = accept(platform, submission(order=Order.SHUFFLED, shard_tasks=4)).experiment
    with platform.ledger.snapshot() as tx:
        units = [unit.unit for unit in tx.units.of(accepted.experiment_id)]
    names: list[str] = []
    for unit in units:
        result = await run_unit(platform, unit, "worker", frozenset({Stage.TRIALS}), silent)
        names += [trial.task_name for trial in result.trials.trials]
    assert sorted(names) == [f"t/n{number:02d}" for number in range(12)]
    assert names != sorted(names)
