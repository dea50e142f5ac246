"""Records that ledger tests start from."""

from dataclasses import dataclass

from domain.ledger_ports import Ledger
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import digest_of
from domain.records.experiment import (
    Experiment,
    ExperimentKind,
    ExperimentSpec,
    ExperimentState,
    Lease,
    TokenScope,
    Unit,
    UnitState,
)
from domain.records.model import BasePolicy, Checkpoint, FileEntry, PolicyVersion, Update, UpdateState
from domain.records.names import Reference, unit_key
from domain.records.profile import Plan
from domain.records.task import ObjectRef
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord

EXPERIMENT = "trn-01hzy3v9k4e8m2q7w5x6a0b1cd"
BASE = PolicyVersion(name="base-" + "b" * 12, base="b" * 64)


def ref(letter: str = "a") -> ObjectRef:
    """Return a reference to some object."""
    return ObjectRef(digest=letter * 64, size_bytes=3)


def spec(**changes: object) -> ExperimentSpec:
    """Return a spec."""
    fields: dict[str, object] = {
        "kind": ExperimentKind.TRAINING,
        "task_set": Reference(team="demo", name="sums", version=1),
        "task_set_digest": "d" * 64,
        "actor_digest": "a" * 64,
        "assessor": "verifier",
        "plan": Plan(batches=3, groups_per_batch=2),
        "policy": BASE,
    }
    return ExperimentSpec(**(fields | changes))  # pyright: ignore[reportArgumentType] - a test names the fields it varies


def experiment(experiment_id: str = EXPERIMENT, **changes: object) -> Experiment:
    """Return an accepted experiment."""
    pinned = spec(**changes)
    return Experiment(
        experiment_id=experiment_id,
        spec=pinned,
        spec_digest=digest_of(pinned),
        state=ExperimentState.ACCEPTED,
        n_units=3,
        created_ms=1_700_000_000_000,
    )


def unit(index: int = 0, experiment_id: str = EXPERIMENT) -> Unit:
    """Return an admitted unit."""
    return Unit(
        unit=unit_key(experiment_id, index),
        experiment_id=experiment_id,
        index=index,
        state=UnitState.ADMITTED,
        generation=0,
        policy=BASE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A ledger with one experiment, whose first unit is held."""

    ledger: Ledger
    unit: str
    lease: Lease

    def trial(self, trial_id: str = "t1", group: int = 0, attempt: int = 0, **changes: object) -> TrialRecord:
        """Return a completed trial of the unit."""
        fields: dict[str, object] = {
            "trial_id": trial_id,
            "key": AttemptKey(unit=self.unit, group=group, attempt=attempt),
            "experiment_id": EXPERIMENT,
            "task_name": "demo/sum",
            "task_digest": "e" * 64,
            "profile_digest": "a" * 64,
            "policy": BASE.name,
            "outcome": TrialOutcome.COMPLETED,
        }
        return TrialRecord(**(fields | changes))  # pyright: ignore[reportArgumentType] - as in spec

    def update(self) -> Update:
        """Return the unit's update."""
        return Update(
            update_id=self.unit,
            experiment_id=EXPERIMENT,
            unit=self.unit,
            index=0,
            state=UpdateState.PREPARING,
            parent=BASE,
        )

    def scope(self, trial_id: str = "t1") -> TokenScope:
        """Return a token's scope that ends at 1000 ms."""
        return TokenScope(
            experiment_id=EXPERIMENT,
            unit=self.unit,
            trial_id=trial_id,
            model="policy",
            policy=BASE.name,
            expires_ms=1000,
            max_tokens=64,
            temperature=1.0,
            seed=7,
        )


def scene(ledger: Ledger) -> Scene:
    """Accept an experiment with three units and take the first."""
    with ledger.begin() as tx:
        tx.experiments.add(experiment(), None)
        for index in range(3):
            tx.units.add(unit(index))
        lease = tx.units.acquire(unit().unit, "worker-1", 0, 60.0)
    return Scene(ledger=ledger, unit=unit().unit, lease=lease)


def assessment(
    trial_id: str, outcome: AssessmentOutcome = AssessmentOutcome.SCORED, assessor: str = "verifier:" + "c" * 12
) -> Assessment:
    """Return an assessment, with reward 1 when scored."""
    reward = 1.0 if outcome is AssessmentOutcome.SCORED else None
    return Assessment(trial_id=trial_id, assessor=assessor, outcome=outcome, reward=reward)


def checkpoint(unit: str, letter: str = "c", next_batch: int = 1) -> Checkpoint:
    """Return a checkpoint whose weights are named by one letter."""
    adapter = (FileEntry(path="adapter.safetensors", content=ref(letter)),)
    name = "ckpt-" + letter * 12
    return Checkpoint(
        checkpoint_id=name,
        experiment_id=EXPERIMENT,
        unit=unit,
        version=PolicyVersion(name=name, base=BASE.base, adapter=adapter, n_optimizer_steps=next_batch),
        state=adapter,
        next_batch=next_batch,
        parent=BASE.name,
        groups=(f"{unit}/g000",),
    )


def base_policy(name: str = "tiny", digest: str = "b" * 64) -> BasePolicy:
    """Return a base policy."""
    return BasePolicy(
        name=name,
        digest=digest,
        family="qwen3",
        files=(FileEntry(path="model.safetensors", content=ref("f")),),
        recipe_digest="9" * 64,
        context_tokens=1024,
        n_parameters=1,
        metrics={"loss": [1.5, 0.25], "note": None},
    )
