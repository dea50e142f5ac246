"""The ledger contract: what workers write. Trials, assessments, groups, updates, tokens."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from domain.errors import ConflictError, FenceError, NotFoundError
from domain.ledger_ports import Ledger, Transaction
from domain.records.assessment import AssessmentOutcome, Member, QualifiedGroup
from domain.records.capacity import Capacity, Grant
from domain.records.experiment import Lease, UnitState
from domain.records.model import UpdateState
from domain.records.trial import AttemptKey, TrialOutcome
from tests.contracts.ledger_scene import (
    BASE,
    EXPERIMENT,
    Scene,
    assessment,
    checkpoint,
    experiment,
    ref,
    scene,
    unit,
)


def group(scene: Scene, index: int = 0) -> QualifiedGroup:
    """Return a group with one member."""
    member = Member(trial_id="t1", attempt=0, reward=1.0, advantage=0.5, n_sampled_tokens=4)
    return QualifiedGroup(
        group_id=f"{scene.unit}/g{index:03d}",
        unit=scene.unit,
        group=index,
        task_name="demo/sum",
        task_digest="e" * 64,
        policy=BASE.name,
        members=(member,),
        excluded=(),
        has_signal=False,
    )


Write = Callable[[Transaction, Scene, Lease], object]
WRITES: dict[str, Write] = {
    "heartbeat": lambda tx, _, lease: tx.units.heartbeat(lease, 0, 60.0),
    "check": lambda tx, _, lease: tx.units.check(lease),
    "release": lambda tx, _, lease: tx.units.release(lease, UnitState.SUCCEEDED),
    "add_manifest": lambda tx, _, lease: tx.units.add_manifest(lease, "trials", ref("9")),
    "add_trial": lambda tx, scene, lease: tx.trials.add(lease, scene.trial("t2", 1)),
    "add_assessment": lambda tx, _, lease: tx.trials.add_assessment(lease, assessment("t1", assessor="judge:x")),
    "add_group": lambda tx, scene, lease: tx.trials.add_group(lease, group(scene), None),
    "begin_update": lambda tx, scene, lease: tx.updates.begin(lease, scene.update()),
    "intend": lambda tx, scene, lease: tx.updates.intend(lease, scene.unit, ("k",)),
    "commit": lambda tx, scene, lease: tx.updates.commit(lease, scene.unit, checkpoint(scene.unit)),
    "skip": lambda tx, scene, lease: tx.updates.skip(lease, scene.unit),
    "issue": lambda tx, scene, lease: tx.tokens.issue(lease, "h2", scene.scope("t2")),
}


def everything(tx: Transaction, scene: Scene) -> object:
    """Return all that a worker could have changed."""
    return (
        tx.units.get(scene.unit),
        tx.units.manifest(scene.unit, "trials"),
        tx.trials.of_unit(scene.unit),
        tx.trials.assessments_of("t1"),
        tx.trials.groups(scene.unit),
        tx.updates.of(EXPERIMENT),
        tx.updates.checkpoints(),
        tx.tokens.scope("h2", 0),
    )


def attempt(scene: Scene, write: Write, lease: Lease) -> None:
    """Write in a transaction that has changed something before."""
    with scene.ledger.begin() as tx:
        tx.units.set_state(scene.unit, UnitState.FAILED)
        write(tx, scene, lease)


def test_stale_lease_is_refused_everywhere_and_changes_nothing(ledger: Ledger) -> None:
    """Every write of a worker that lost its unit fails, and so does what it did before in that transaction."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.trials.add(held.lease, held.trial())
        tx.updates.begin(held.lease, held.update())
        tx.units.acquire(held.unit, "worker-2", 60_000, 60.0)
        before = everything(tx, held)
    for name, write in WRITES.items():
        for lease in (held.lease, Lease(unit=held.unit, holder="worker-2", fence=99)):
            with pytest.raises(FenceError):
                attempt(held, write, lease)
            with ledger.snapshot() as tx:
                assert everything(tx, held) == before, name


def test_a_lease_gives_no_right_to_another_unit(ledger: Ledger) -> None:
    """The holder of one unit cannot write a trial of another."""
    held = scene(ledger)
    foreign = held.trial(key=AttemptKey(unit=unit(1).unit, group=0, attempt=0))
    with pytest.raises(FenceError), ledger.begin() as tx:
        tx.trials.add(held.lease, foreign)


def test_an_attempt_counts_once(ledger: Ledger) -> None:
    """A second counting record of an attempt is refused; so is a trial id used twice."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.trials.add(held.lease, held.trial())
    for again in (held.trial("t2"), held.trial("t1", 1), held.trial("t2", outcome=TrialOutcome.AGENT_TIMEOUT)):
        with pytest.raises(ConflictError), ledger.begin() as tx:
            tx.trials.add(held.lease, again)
    with ledger.snapshot() as tx:
        assert tx.trials.of_unit(held.unit) == (held.trial(),)
        assert tx.trials.get("t1") == held.trial()
        with pytest.raises(NotFoundError):
            tx.trials.get("t2")


def test_infrastructure_errors_do_not_occupy_an_attempt(ledger: Ledger) -> None:
    """Lost trials are kept and counted, and the attempt can still succeed; one lost later is kept too."""
    held = scene(ledger)
    key = held.trial().key
    with ledger.begin() as tx:
        for name in ("t1", "t2"):
            tx.trials.add(held.lease, held.trial(name, outcome=TrialOutcome.INFRA_ERROR))
        tx.trials.add(held.lease, held.trial("t3", outcome=TrialOutcome.CANCELLED))
        assert tx.trials.of_unit(held.unit) == ()
        tx.trials.add(held.lease, held.trial("t4", n_infra_retries=2))
        tx.trials.add(held.lease, held.trial("t5", outcome=TrialOutcome.INFRA_ERROR))
        assert tx.trials.infra_failures(key) == 3
        assert tx.trials.infra_failures(AttemptKey(unit=held.unit, group=1, attempt=0)) == 0
        assert [trial.trial_id for trial in tx.trials.of_unit(held.unit)] == ["t4"]


def test_trials_come_in_order_of_attempt(ledger: Ledger) -> None:
    """Whatever the order of arrival."""
    held = scene(ledger)
    with ledger.begin() as tx:
        for group_index, attempt in ((1, 0), (0, 1), (10, 0), (0, 0)):
            tx.trials.add(held.lease, held.trial(f"t{group_index}-{attempt}", group_index, attempt))
            tx.trials.add_assessment(held.lease, assessment(f"t{group_index}-{attempt}"))
    with ledger.snapshot() as tx:
        expected = ["t0-0", "t0-1", "t1-0", "t10-0"]
        assert [trial.trial_id for trial in tx.trials.of_unit(held.unit)] == expected
        assert [trial.trial_id for trial in tx.trials.of_experiment(EXPERIMENT)] == expected
        assert [made.trial_id for made in tx.trials.assessments(held.unit)] == expected


def test_a_fresh_sample_counts_alone_and_overwrites_nothing(ledger: Ledger) -> None:
    """Its attempts have numbers of their own; what the earlier one left is kept, and found when all is asked for."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.trials.add(held.lease, held.trial())
        tx.trials.add_assessment(held.lease, assessment("t1"))
        assert tx.units.next_sample(held.unit, 2, "again")
        assert not tx.units.next_sample(held.unit, 2, "again")
        assert (tx.units.get(held.unit).first_attempt, tx.units.get(held.unit).sample_key) == (2, "again")
        assert tx.trials.of_unit(held.unit) == tx.trials.of_experiment(EXPERIMENT) == ()
        assert tx.trials.assessments(held.unit) == tx.trials.assessments(held.unit, "verifier") == ()
        tx.trials.add(held.lease, held.trial("t2", 0, 2))
        tx.trials.add_assessment(held.lease, assessment("t2"))
    with ledger.snapshot() as tx:
        assert tx.trials.of_unit(held.unit) == tx.trials.of_experiment(EXPERIMENT) == (held.trial("t2", 0, 2),)
        assert tx.trials.of_unit(held.unit, every_sample=True) == (held.trial(), held.trial("t2", 0, 2))
        assert tx.trials.assessments(held.unit) == (assessment("t2"),)
        assert (tx.trials.get("t1"), tx.trials.assessments_of("t1")) == (held.trial(), (assessment("t1"),))
        with pytest.raises(NotFoundError):
            tx.units.next_sample("trn-x.b00000", 2, "again")


def test_a_regrade_keeps_what_it_found_of_an_earlier_sample(ledger: Ledger) -> None:
    """Its unit's assessments are of the trials it read, whatever is sampled afterwards."""
    held = scene(ledger)
    regrade = unit(0, "rgr-1")
    with ledger.begin() as tx:
        tx.experiments.add(experiment("rgr-1", source=EXPERIMENT), None)
        tx.units.add(regrade)
        lease = tx.units.acquire(regrade.unit, "worker-1", 0, 60.0)
        tx.trials.add(held.lease, held.trial())
        tx.trials.add_assessment(lease, assessment("t1"))
        tx.units.next_sample(held.unit, 2, "again")
        assert tx.trials.assessments(regrade.unit) == (assessment("t1"),)
        assert tx.trials.assessments(held.unit, "verifier") == ()


def test_only_an_ungraded_assessment_is_replaced(ledger: Ledger) -> None:
    """A verdict stands; a missing one can be made again."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.trials.add(held.lease, held.trial())
        tx.trials.add_assessment(held.lease, assessment("t1", AssessmentOutcome.UNGRADED))
        tx.trials.add_assessment(held.lease, assessment("t1", AssessmentOutcome.UNGRADED))
        tx.trials.add_assessment(held.lease, assessment("t1"))
        with pytest.raises(ConflictError):
            tx.trials.add_assessment(held.lease, assessment("t1", AssessmentOutcome.UNGRADED))
        with pytest.raises(NotFoundError):
            tx.trials.add_assessment(held.lease, assessment("t9"))
        assert tx.trials.assessments_of("t1") == (assessment("t1"),)


def test_canonical_assessments_are_the_pinned_assessors(ledger: Ledger) -> None:
    """A regrade lies beside the canonical assessment and is found by name, from both units."""
    held = scene(ledger)
    judge = "judge:" + "1" * 64
    regrade = unit(0, "rgr-1")
    verdict, second = assessment("t1"), assessment("t1", assessor=judge[: len("judge:") + 12])
    with ledger.begin() as tx:
        tx.experiments.add(experiment("rgr-1", assessor=judge, source=EXPERIMENT), None)
        tx.units.add(regrade)
        lease = tx.units.acquire(regrade.unit, "worker-1", 0, 60.0)
        tx.trials.add(held.lease, held.trial())
        tx.trials.add_assessment(held.lease, verdict)
        tx.trials.add_assessment(lease, second)
    with ledger.snapshot() as tx:
        assert tx.trials.assessments(held.unit) == (verdict,)
        assert tx.trials.assessments(regrade.unit) == (second,)
        assert tx.trials.assessments(held.unit, judge) == tx.trials.assessments(held.unit, second.assessor) == (second,)
        assert tx.trials.assessments(held.unit, "verifier") == (verdict,)
        assert tx.trials.assessments_of("t1") == (verdict, second)


def test_groups_are_replaced_and_ordered(ledger: Ledger) -> None:
    """A group settles once more with its datums; groups come by index."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.trials.add_group(held.lease, group(held, 10), None)
        tx.trials.add_group(held.lease, group(held, 2), None)
        tx.trials.add_group(held.lease, group(held, 2), ref("7"))
    with ledger.snapshot() as tx:
        assert tx.trials.groups(held.unit) == ((group(held, 2), ref("7")), (group(held, 10), None))


def test_an_update_is_applied_with_its_checkpoint(ledger: Ledger) -> None:
    """Begin, intend, commit: the step is fenced and the checkpoint arrives with it."""
    held = scene(ledger)
    made = checkpoint(held.unit)
    with ledger.begin() as tx:
        assert tx.updates.begin(held.lease, held.update()) == held.update()
        with pytest.raises(ConflictError):
            tx.updates.commit(held.lease, held.unit, made)
        tx.updates.intend(held.lease, held.unit, ("g0", "g1"))
        assert tx.updates.begin(held.lease, held.update()).state is UpdateState.UNRESOLVED
        with pytest.raises(ConflictError):
            tx.updates.intend(held.lease, held.unit, ("g0",))
        with pytest.raises(ConflictError):
            tx.updates.skip(held.lease, held.unit)
        with pytest.raises(NotFoundError):
            tx.updates.checkpoint(f"{EXPERIMENT}@0")
    with ledger.begin() as tx:
        tx.updates.commit(held.lease, held.unit, made)
        with pytest.raises(ConflictError):
            tx.updates.commit(held.lease, held.unit, made)
    with ledger.snapshot() as tx:
        applied = tx.updates.get(held.unit)
        assert (applied.state, applied.contributions) == (UpdateState.APPLIED, ("g0", "g1"))
        assert tx.updates.of(EXPERIMENT) == (applied,)
        assert tx.updates.checkpoint(made.checkpoint_id) == tx.updates.checkpoint(f"{EXPERIMENT}@0") == made
        assert tx.updates.checkpoints() == tx.updates.checkpoints(EXPERIMENT) == (made,)
        assert tx.updates.checkpoints("trn-other") == ()
        assert tx.updates.policy(made.checkpoint_id) == made.version


def test_an_unresolved_update_waits_for_evidence(ledger: Ledger) -> None:
    """Reopened when the step did not happen, resolved when it did; never otherwise."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.updates.begin(held.lease, held.update())
        with pytest.raises(ConflictError):
            tx.updates.reopen(held.unit)
        with pytest.raises(ConflictError):
            tx.updates.resolve(held.unit, UpdateState.APPLIED, checkpoint(held.unit))
        tx.updates.intend(held.lease, held.unit, ("g0",))
        tx.updates.reopen(held.unit)
        assert tx.updates.get(held.unit) == held.update()
        tx.updates.intend(held.lease, held.unit, ("g0", "g1"))
        for state, made in ((UpdateState.APPLIED, None), (UpdateState.SKIPPED, None), (UpdateState.PREPARING, None)):
            with pytest.raises(ConflictError):
                tx.updates.resolve(held.unit, state, made)
        tx.updates.resolve(held.unit, UpdateState.APPLIED, checkpoint(held.unit))
        assert tx.updates.get(held.unit).state is UpdateState.APPLIED
        assert tx.updates.checkpoints() == (checkpoint(held.unit),)


def test_a_skipped_batch_keeps_the_policy(ledger: Ledger) -> None:
    """After a batch without signal, ``<experiment>@<batch>`` means the checkpoint before it."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.updates.begin(held.lease, held.update())
        tx.updates.intend(held.lease, held.unit, ())
        tx.updates.commit(held.lease, held.unit, checkpoint(held.unit))
        second = Scene(ledger=ledger, unit=unit(1).unit, lease=tx.units.acquire(unit(1).unit, "w", 0, 1.0))
        update = second.update()
        tx.updates.begin(second.lease, replace(update, index=1))
        tx.updates.skip(second.lease, second.unit)
        assert tx.updates.checkpoint(f"{EXPERIMENT}@1") == checkpoint(held.unit)
        with pytest.raises(NotFoundError):
            tx.updates.checkpoint(f"{EXPERIMENT}@2")


def test_equal_trainings_reach_equal_checkpoints(ledger: Ledger) -> None:
    """Two updates may end in the same weights and name; the same name for other weights is refused."""
    held = scene(ledger)
    with ledger.begin() as tx:
        other = tx.units.acquire(unit(1).unit, "worker-1", 0, 60.0)
        second = Scene(ledger=ledger, unit=other.unit, lease=other)
        for index, place in enumerate((held, second)):
            tx.updates.begin(place.lease, replace(place.update(), index=index))
            tx.updates.intend(place.lease, place.unit, ("g0",))
        first, twin = checkpoint(held.unit), checkpoint(second.unit, next_batch=2)
        tx.updates.commit(held.lease, held.unit, first)
        impostor = replace(twin, version=replace(twin.version, base="0" * 64))
        with pytest.raises(ConflictError):
            tx.updates.commit(other, second.unit, impostor)
        with pytest.raises(ConflictError):
            tx.updates.commit(other, second.unit, first)
        tx.updates.commit(other, second.unit, twin)
        assert tx.updates.checkpoint(first.checkpoint_id) == first
        assert tx.updates.checkpoints(EXPERIMENT) == (first, twin)


def test_tokens_end(ledger: Ledger) -> None:
    """A token lives until it expires, its trial ends, or its worker is replaced."""
    held = scene(ledger)
    with ledger.begin() as tx:
        for name in ("t1", "t2"):
            tx.tokens.issue(held.lease, f"hash-{name}", held.scope(name))
        with pytest.raises(ConflictError):
            tx.tokens.issue(held.lease, "hash-t1", held.scope("t3"))
    with ledger.begin() as tx:
        assert tx.tokens.scope("hash-t1", 999) == held.scope("t1")
        assert tx.tokens.scope("hash-t1", 1000) is None
        assert tx.tokens.scope("unknown", 0) is None
        tx.tokens.revoke_trial("t1")
        assert tx.tokens.scope("hash-t1", 0) is None
        lease = tx.units.acquire(held.unit, "worker-2", 60_000, 60.0)
        tx.tokens.issue(lease, "hash-t3", held.scope("t3"))
        assert tx.tokens.scope("hash-t2", 0) == held.scope("t2")
        tx.tokens.revoke_stale(held.unit, lease.fence)
        assert tx.tokens.scope("hash-t2", 0) is None
        assert tx.tokens.scope("hash-t3", 0) == held.scope("t3")


def test_a_grant_lives_as_long_as_the_lease_it_was_written_under(ledger: Ledger) -> None:
    """Replaced by its unit, gone with the lease, and never written or removed by a worker that lost it."""
    here = scene(ledger)
    grant = Grant(
        unit=here.unit,
        experiment_id=EXPERIMENT,
        weight=2.0,
        wanted=Capacity(trials=4, memory_mb=512),
        head=Capacity(trials=1),
        used=Capacity(),
        share=Capacity(trials=2),
        held=Capacity(trials=2),
        service=0.25,
        at_ms=5,
    )
    with ledger.begin() as tx:
        tx.grants.put(here.lease, grant)
        tx.grants.put(here.lease, replace(grant, service=0.5))
    with ledger.snapshot() as tx:
        assert tx.grants.live(59_999) == (replace(grant, service=0.5),)
        assert tx.grants.live(60_001) == ()
    with ledger.begin() as tx:
        later = tx.units.acquire(here.unit, "worker-2", 60_001, 60.0)
        assert tx.grants.live(60_002) == ()
        tx.grants.put(later, grant)
        tx.grants.end(here.lease)
        assert tx.grants.live(60_002) == (grant,)
    with pytest.raises(FenceError), ledger.begin() as tx:
        tx.grants.put(here.lease, grant)
    with ledger.begin() as tx:
        tx.grants.end(later)
        assert tx.grants.live(60_002) == ()


def test_a_session_has_a_token_of_no_unit(ledger: Ledger) -> None:
    """A developer's token needs no lease, outlives every worker, and ends when it is revoked."""
    held = scene(ledger)
    with ledger.begin() as tx:
        tx.tokens.issue_session("hash-s", held.scope("session-1"))
        with pytest.raises(ConflictError):
            tx.tokens.issue_session("hash-s", held.scope("session-2"))
        tx.tokens.revoke_stale(held.unit, 99)
    with ledger.begin() as tx:
        assert tx.tokens.scope("hash-s", 0) == replace(held.scope("session-1"), unit="")
        tx.tokens.revoke_trial("session-1")
        assert tx.tokens.scope("hash-s", 0) is None
