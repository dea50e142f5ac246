"""Trainers under test, and random rows to train them on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapters.stores.arrow import ArrowDatumTables
from adapters.trainers.peft import PeftTrainer
from domain.ports import Contribution, StepResult, Trainer, TrainingRun
from domain.records.assessment import Datum
from domain.records.profile import Objective, Optimisation
from tests.fakes.models import tiny_policy
from tests.fakes.store import MemoryStore
from tests.fakes.trainer import LinearTrainer, TrainerDisk

RUN = "trn-01"
OPTIMISATION = Optimisation(learning_rate=1e-2, lora_rank=4, lora_alpha=8)
TRAINING = TrainingRun(run=RUN, base=tiny_policy().version, optimisation=OPTIMISATION, seed=3)


def row(seed: int, *, length: int = 30, trial_id: str = "t") -> Datum:
    """Return a random row with about a third of its targets sampled."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 300, length + 1).astype(np.int32)
    mask = (random.random(length) < 0.35).astype(np.float32)
    mask[-1] = 1.0
    return Datum(
        input_ids=ids[:-1],
        target_ids=ids[1:],
        logprobs=np.where(mask > 0, random.uniform(-7, -4, length), 0.0).astype(np.float32),
        advantages=(mask * random.choice([-0.5, 0.25, 1.0])).astype(np.float32),
        mask=mask,
        trial_id=trial_id,
    )


def rows(group: int, update: int = 0) -> list[Datum]:
    """Return a group's rows, of different lengths."""
    return [row(1000 * update + 10 * group + index, length=20 + 7 * index) for index in range(4)]


@dataclass(slots=True, kw_only=True)
class Bench:
    """A trainer and how to replace it by a new one with the same durable state."""

    tables: ArrowDatumTables
    make: Callable[[], Trainer]
    trainer: Trainer

    def restart(self) -> None:
        """Lose everything that is not durable."""
        if isinstance(self.trainer, PeftTrainer):
            self.trainer.close()
        self.trainer = self.make()

    def contribution(self, group: int, update: int = 0, datums: Sequence[Datum] | None = None) -> Contribution:
        """Return a contribution over random rows."""
        table = self.tables.write(rows(group, update) if datums is None else datums)
        return Contribution(
            update_id=f"{RUN}.b{update:05d}",
            group=group,
            datums=table,
            objective=Objective.IMPORTANCE_SAMPLING,
        )

    async def update(self, update: int, groups: Sequence[int] = (0, 1, 2)) -> StepResult:
        """Submit groups in the given order and step."""
        await self.trainer.begin_update(RUN, f"{RUN}.b{update:05d}")
        found = [await self.trainer.forward_backward(RUN, self.contribution(group, update)) for group in groups]
        return await self.trainer.optim_step(RUN, f"{RUN}.b{update:05d}", tuple(one.key for one in found))


def real_bench(directory: Path, *, threads: int = 2) -> Bench:
    """Return the real trainer over the tiny policy."""
    tiny = tiny_policy()
    tables = ArrowDatumTables(tiny.store)

    def make() -> Trainer:
        return PeftTrainer(tiny.store, tables, directory, tiny.files_of_base, threads=threads, padded_tokens=96)

    return Bench(tables=tables, make=make, trainer=make())


def fake_bench(directory: Path) -> Bench:
    """Return the fake."""
    del directory
    store, disk = MemoryStore(), TrainerDisk()
    tables = ArrowDatumTables(store)

    def make() -> Trainer:
        return LinearTrainer(store, tables, disk)

    return Bench(tables=tables, make=make, trainer=make())
