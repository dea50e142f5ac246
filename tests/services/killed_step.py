"""A training whose worker dies by SIGKILL at an exact point of its optimizer step.

As a program (``python -m tests.services.killed_step HOME POINT``) it is that worker: with the trainer in its own
process and a point named, or as a client of the model process with the point ``client``.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from adapters.codec import encode
from adapters.stores.arrow import ArrowDatumTables
from adapters.trainers.applied_log import AppliedLog, AppliedStep
from adapters.trainers.peft import PeftTrainer
from domain.ports import Store
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState
from domain.records.model import BasePolicy
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Optimisation, Plan, Profile
from domain.service.accept import admit_unit
from domain.service.learning import advance
from domain.service.platform import Platform
from domain.service.publish import publish_profile, publish_task_set
from resources.settings import read_settings
from resources.wiring import connect
from tests.fakes.models import tiny_policy
from tests.fakes.platform import write_task
from tests.services.test_fence import TRAINING

OPTIMISATION = Optimisation(lora_rank=2, lora_alpha=2, learning_rate=1e-2)
UNIT = unit_key(TRAINING, 0)
HOLDER = "worker"
"""One name for all workers, so that none has to wait for a dead one's lease."""


def admit_training(platform: Platform, tasks: Path) -> None:
    """Admit the first of two batches of a training on the tiny policy."""
    tiny = tiny_policy()
    for data in tiny.store.objects.values():
        platform.store.put(data)
    write_task(tasks, "a1")
    reference = parse_reference("team/practice@v1", field="test")
    task_set = publish_task_set(platform, reference, str(tasks))
    spec = ExperimentSpec(
        kind=ExperimentKind.TRAINING,
        task_set=reference,
        task_set_digest=task_set.digest,
        actor_digest=publish_profile(platform, Profile(name="actor", engine="nop")),
        assessor="verifier",
        plan=Plan(
            attempts=2,
            batches=2,
            groups_per_batch=2,
            optimisation=OPTIMISATION,
        ),
        policy=tiny.version,
    )
    experiment = Experiment(
        experiment_id=TRAINING,
        spec=spec,
        spec_digest=digest_of(spec),
        state=ExperimentState.RUNNING,
        n_units=2,
        created_ms=1,
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(tiny.base)
        tx.experiments.add(experiment, None)
        admit_unit(tx, experiment, 0, tiny.version, 1)


def real_trainer(platform: Platform, home: Path, store: Store | None = None) -> PeftTrainer:
    """Return the trainer with its record below a home."""

    def base(digest: str) -> BasePolicy:
        with platform.ledger.snapshot() as tx:
            return tx.catalog.base_policy(digest)

    kept = store or platform.store
    return PeftTrainer(kept, ArrowDatumTables(kept), home / "trainer", base, threads=1)


def record(home: Path) -> Path:
    """Return the trainer's own record of applied steps."""
    return home / "trainer" / TRAINING / "applied.jsonl"


def _dying(point: str) -> None:
    """End this process when the weights are stepped and kept: before, in or after the writing of the record."""
    append = AppliedLog.append

    def dies(self: AppliedLog, step: AppliedStep) -> None:
        if point == "torn":
            path = record(Path(sys.argv[1]))
            path.parent.mkdir(parents=True, exist_ok=True)
            line = encode(step)
            path.write_bytes(line[: len(line) // 2])
        elif point == "after":
            append(self, step)
        os.kill(os.getpid(), signal.SIGKILL)

    AppliedLog.append = dies


def main() -> None:
    """Take the first batch's step, unless death comes first."""
    home, point = Path(sys.argv[1]), sys.argv[2]
    platform = connect(read_settings({"SYNTH_HOME": str(home)}))
    if point != "client":
        _dying(point)
        platform = replace(platform, trainer=real_trainer(platform, home))
    asyncio.run(advance(platform, UNIT, HOLDER))


if __name__ == "__main__":
    main()
