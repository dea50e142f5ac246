"""The ledger contract: transactions, catalog, experiments, units and leases, events."""

import threading
from dataclasses import replace

import pytest

from domain.errors import ConflictError, FenceError, LedgerError, NotFoundError
from domain.ledger_ports import Ledger
from domain.records.canonical import digest_of
from domain.records.experiment import ExperimentState, Lease, UnitState
from domain.records.names import Reference
from domain.records.profile import Profile
from domain.records.task import TaskClass, TaskEntry, TaskSet
from tests.contracts.ledger_scene import EXPERIMENT, base_policy, experiment, ref, scene, spec, unit


def test_rolls_back_on_any_exception(ledger: Ledger) -> None:
    """Whatever ends the block undoes everything in it."""

    def interrupted() -> None:
        with ledger.begin() as tx:
            tx.experiments.add(experiment(), None)
            tx.events.append(EXPERIMENT, "experiment.accepted", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with ledger.begin() as tx:
        assert tx.experiments.all() == ()
        assert tx.events.append(EXPERIMENT, "experiment.accepted", 1) == 1


def test_passes_the_callers_own_exception(ledger: Ledger) -> None:
    """An exception of the block is not renamed."""
    with pytest.raises(ZeroDivisionError), ledger.begin():
        _ = 1 // 0


def test_survives_a_conflict_inside_a_transaction(ledger: Ledger) -> None:
    """A refused write leaves the transaction usable."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), "key")
        with pytest.raises(ConflictError):
            tx.experiments.add(experiment("trn-other", assessor="judge:" + "1" * 64), "key")
        tx.units.add(unit())
    with ledger.snapshot() as tx:
        assert tx.units.of(EXPERIMENT) == (unit(),)


def test_refuses_a_transaction_inside_a_transaction(ledger: Ledger) -> None:
    """A thread that would wait for itself is told so at once."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        with pytest.raises(LedgerError, match="already inside"), ledger.begin():
            pass
    with ledger.begin() as tx:
        assert tx.experiments.get(EXPERIMENT) == experiment()


def test_snapshot_does_not_see_an_open_transaction(ledger: Ledger) -> None:
    """Readers neither wait for a writer nor see half of its work."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        with ledger.snapshot() as reader:
            assert reader.experiments.all() == ()


def test_idempotency_key_returns_the_first_experiment(ledger: Ledger) -> None:
    """The same key with the same spec is the same experiment."""
    with ledger.begin() as tx:
        first = tx.experiments.add(experiment(), "key")
        assert tx.experiments.add(experiment("trn-second"), "key") == first
        assert tx.experiments.add(experiment(), None) == first
    with ledger.snapshot() as tx:
        assert tx.experiments.all() == (first,)


def test_idempotency_key_refuses_another_spec(ledger: Ledger) -> None:
    """The same key or the same id with another spec is refused."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), "key")
    for name, key in (("trn-second", "key"), (EXPERIMENT, None)):
        with pytest.raises(ConflictError), ledger.begin() as tx:
            tx.experiments.add(experiment(name, assessor="judge:" + "1" * 64), key)


def test_terminal_state_never_changes(ledger: Ledger) -> None:
    """Once ended, an experiment stays as it ended, and is no longer open."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        tx.experiments.set_state(EXPERIMENT, ExperimentState.RUNNING)
        assert [held.state for held in tx.experiments.open()] == [ExperimentState.RUNNING]
        tx.experiments.set_state(EXPERIMENT, ExperimentState.CANCELLED)
    with ledger.begin() as tx:
        tx.experiments.set_state(EXPERIMENT, ExperimentState.SUCCEEDED)
        assert tx.experiments.get(EXPERIMENT).state is ExperimentState.CANCELLED
        assert tx.experiments.open() == ()
        with pytest.raises(NotFoundError):
            tx.experiments.set_state("trn-unknown", ExperimentState.RUNNING)


def test_an_ended_experiment_runs_again_when_asked(ledger: Ledger) -> None:
    """Unless its end was asked for."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        tx.experiments.set_state(EXPERIMENT, ExperimentState.FAILED)
        tx.experiments.reopen(EXPERIMENT)
        assert tx.experiments.get(EXPERIMENT).state is ExperimentState.RUNNING
        assert [item.experiment_id for item in tx.experiments.open()] == [EXPERIMENT]
        tx.experiments.request_cancel(EXPERIMENT)
        with pytest.raises(ConflictError):
            tx.experiments.reopen(EXPERIMENT)
        with pytest.raises(NotFoundError):
            tx.experiments.reopen("trn-unknown")


def test_lists_experiments_newest_first_and_open_ones_oldest_first(ledger: Ledger) -> None:
    """The two lists have the orders their readers need."""
    names = [f"trn-{number}" for number in range(3)]
    with ledger.begin() as tx:
        for name in names:
            tx.experiments.add(experiment(name), None)
    with ledger.snapshot() as tx:
        assert [held.experiment_id for held in tx.experiments.all(2)] == ["trn-2", "trn-1"]
        assert [held.experiment_id for held in tx.experiments.open()] == names
        with pytest.raises(NotFoundError):
            tx.experiments.get("trn-9")


def test_published_things_never_change(ledger: Ledger) -> None:
    """Publishing the same again is fine; another content under the name is refused."""
    reference = Reference(team="demo", name="sums", version=1)
    entry = TaskEntry(name="demo/sum", digest="e" * 64, record=ref(), family="sums")
    tasks = TaskSet(
        reference=reference,
        n_tasks=1,
        n_families=1,
        digest="1" * 64,
        page_tasks=1000,
        pages=(ref("f"),),
        classes=(TaskClass(n_tasks=1, example=entry),),
    )
    profile = Profile(name="mini", engine="mini", settings={"turns": 3, "nested": {"list": [1, None, "x"]}})
    with ledger.begin() as tx:
        for _ in range(2):
            tx.catalog.add_task_set(tasks, ref())
            tx.catalog.add_profile(profile, digest_of(profile), None)
            tx.catalog.add_profile(profile, digest_of(profile), reference)
            tx.catalog.add_base_policy(base_policy())
        with pytest.raises(ConflictError):
            tx.catalog.add_task_set(replace(tasks, digest="2" * 64), ref())
        with pytest.raises(ConflictError):
            tx.catalog.add_profile(Profile(name="other", engine="nop"), "3" * 64, reference)
        with pytest.raises(ConflictError):
            tx.catalog.add_base_policy(base_policy(digest="4" * 64))
    with ledger.snapshot() as tx:
        assert tx.catalog.task_set(reference) == (tasks, ref())
        assert tx.catalog.task_sets() == (reference,)
        assert tx.catalog.profile(str(reference)) == tx.catalog.profile(digest_of(profile)) == profile
        assert tx.catalog.profiles() == ((str(reference), digest_of(profile)),)
        assert tx.catalog.base_policy("tiny") == tx.catalog.base_policy("b" * 64) == base_policy()
        assert tx.catalog.base_policies() == (base_policy(),)
        assert tx.updates.policy("base-" + "b" * 12).base == "b" * 64


def test_unknown_catalog_names(ledger: Ledger) -> None:
    """What was never published is not found."""
    with ledger.snapshot() as tx:
        with pytest.raises(NotFoundError):
            tx.catalog.task_set(Reference(team="demo", name="sums", version=2))
        with pytest.raises(NotFoundError):
            tx.catalog.profile("demo/none@v1")
        with pytest.raises(NotFoundError):
            tx.catalog.base_policy("none")
        with pytest.raises(NotFoundError):
            tx.updates.policy("base-000000000000")


def test_units(ledger: Ledger) -> None:
    """Units are inserted once, need their experiment, and come in order of index."""
    with ledger.begin() as tx:
        with pytest.raises(NotFoundError):
            tx.units.add(unit())
        tx.experiments.add(experiment(), None)
        assert [tx.units.add(unit(index)) for index in (2, 0, 1, 0)] == [True, True, True, False]
        tx.units.set_state(unit(1).unit, UnitState.LAUNCHED, detail="run r1")
        assert [tx.units.next_generation(unit(1).unit) for _ in range(2)] == [1, 2]
        with pytest.raises(NotFoundError):
            tx.units.set_state("trn-x.b00000", UnitState.FAILED)
    with ledger.snapshot() as tx:
        assert [held.index for held in tx.units.of(EXPERIMENT)] == [0, 1, 2]
        moved = tx.units.get(unit(1).unit)
        assert (moved.state, moved.detail, moved.generation) == (UnitState.LAUNCHED, "run r1", 2)


def test_lease_is_exclusive_until_it_expires(ledger: Ledger) -> None:
    """Another holder waits for the expiry; then the fence grows."""
    held = scene(ledger)
    with pytest.raises(FenceError), ledger.begin() as tx:
        tx.units.acquire(held.unit, "worker-2", 59_999, 60.0)
    with ledger.begin() as tx:
        second = tx.units.acquire(held.unit, "worker-2", 60_000, 60.0)
        assert second.fence > held.lease.fence
        assert tx.units.get(held.unit).state is UnitState.RUNNING
        with pytest.raises(FenceError):
            tx.units.check(held.lease)
        tx.units.check(second)


def test_heartbeat_extends_and_conveys_cancellation(ledger: Ledger) -> None:
    """A heartbeat keeps the lease and brings the wish to end."""
    held = scene(ledger)
    with ledger.begin() as tx:
        assert tx.units.heartbeat(held.lease, 50_000, 60.0) is False
        tx.experiments.request_cancel(EXPERIMENT)
        assert tx.units.heartbeat(held.lease, 50_000, 60.0) is True
    with pytest.raises(FenceError), ledger.begin() as tx:
        tx.units.acquire(held.unit, "worker-2", 109_999, 60.0)


def test_release_ends_the_lease(ledger: Ledger) -> None:
    """After the release its holder cannot write, and the unit can be taken again."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.units.release(held.lease, UnitState.SUCCEEDED, detail="done")
        with pytest.raises(FenceError):
            tx.units.check(held.lease)
    with ledger.begin() as tx:
        ended = tx.units.get(held.unit)
        assert (ended.state, ended.detail, ended.lease_holder) == (UnitState.SUCCEEDED, "done", None)
        assert tx.units.acquire(held.unit, "worker-2", 0, 1.0).fence == held.lease.fence + 1


def test_two_workers_race_for_one_lease(ledger: Ledger) -> None:
    """Of many threads that want a unit at the same time, one gets it."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        tx.units.add(unit())
    gate = threading.Barrier(4)
    leases: list[Lease] = []
    refused: list[FenceError] = []

    def race(name: str) -> None:
        gate.wait()
        try:
            with ledger.begin() as tx:
                lease = tx.units.acquire(unit().unit, name, 0, 60.0)
            leases.append(lease)
        except FenceError as error:
            refused.append(error)

    threads = [threading.Thread(target=race, args=(f"worker-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(leases), len(refused)) == (1, 3)
    with ledger.snapshot() as tx:
        assert tx.units.get(unit().unit).lease_holder == leases[0].holder


def test_manifests_name_the_newest(ledger: Ledger) -> None:
    """A later manifest of a kind takes the place of the earlier one."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.units.add_manifest(held.lease, "trials", ref("1"))
        tx.units.add_manifest(held.lease, "datums", ref("2"))
        tx.units.add_manifest(held.lease, "trials", ref("3"))
    with ledger.snapshot() as tx:
        assert tx.units.manifest(held.unit, "trials") == ref("3")
        assert tx.units.manifest(held.unit, "datums") == ref("2")
        assert tx.units.manifest(held.unit, "assessments") is None


def test_events_are_ordered_and_numbered_without_gaps(ledger: Ledger) -> None:
    """Cursors are 1, 2, ... over all experiments, and a rollback uses none up."""
    with ledger.begin() as tx:
        assert [tx.events.append(f"trn-{number % 2}", "tick", number) for number in range(4)] == [1, 2, 3, 4]

    def failing() -> None:
        with ledger.begin() as tx:
            assert tx.events.append("trn-0", "lost", 9) == 5
            tx.experiments.get("trn-unknown")

    with pytest.raises(NotFoundError):
        failing()
    with ledger.begin() as tx:
        assert tx.events.append("trn-0", "kept", 10, "trn-0.b00000", {"reward": 0.5, "who": ["é", None]}) == 5
    with ledger.snapshot() as tx:
        assert [event.cursor for event in tx.events.after(None, 0)] == [1, 2, 3, 4, 5]
        assert [event.cursor for event in tx.events.after("trn-0", 1)] == [3, 5]
        assert [event.cursor for event in tx.events.after(None, 1, limit=2)] == [2, 3]
        last = tx.events.after(None, 4)[0]
        assert (last.kind, last.at_ms, last.unit) == ("kept", 10, "trn-0.b00000")
        assert last.body == {"reward": 0.5, "who": ["é", None]}


def test_a_reader_of_events_never_misses_one(ledger: Ledger) -> None:
    """A reader that keeps its cursor sees each event of several writers exactly once, in order."""
    n_writers, n_events = 3, 15

    def write() -> None:
        for number in range(n_events):
            with ledger.begin() as tx:
                tx.events.append(EXPERIMENT, "tick", number)

    writers = [threading.Thread(target=write) for _ in range(n_writers)]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    while len(seen) < n_writers * n_events:
        is_over = not any(writer.is_alive() for writer in writers)
        with ledger.snapshot() as tx:
            seen += [event.cursor for event in tx.events.after(None, seen[-1] if seen else 0)]
        if is_over:
            break
    assert seen == list(range(1, n_writers * n_events + 1))


def test_spec_comes_back_as_it_was(ledger: Ledger) -> None:
    """An experiment with every optional part keeps all of it."""
    full = experiment(labels={"team": "demo"}, source="trn-source")
    with ledger.begin() as tx:
        tx.experiments.add(full, None)
        assert tx.experiments.get(EXPERIMENT) == full
        assert tx.experiments.get(EXPERIMENT).spec == spec(labels={"team": "demo"}, source="trn-source")
