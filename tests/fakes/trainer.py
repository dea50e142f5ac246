"""A trainer without a model: a vector of weights, one per id, moved by the sum of masked advantages."""

import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domain.errors import TrainerError
from domain.ports import (
    Contribution,
    ContributionResult,
    DatumTables,
    StepResult,
    StepStatus,
    Store,
    TrainingRun,
)
from domain.records.canonical import digest_bytes
from domain.records.model import FileEntry, PolicyVersion

_N_IDS = 64


@dataclass(slots=True, kw_only=True)
class _Run:
    run: TrainingRun
    weights: NDArray[np.float64]
    n_steps: int = 0
    update_id: str | None = None
    held: dict[str, tuple[int, ContributionResult, NDArray[np.float64]]] = field(
        default_factory=dict[str, tuple[int, ContributionResult, NDArray[np.float64]]]
    )


@dataclass(slots=True, kw_only=True)
class TrainerDisk:
    """What survives a trainer's death: applied steps by (run, update id), with the keys they consumed."""

    applied: dict[tuple[str, str], tuple[tuple[str, ...], StepResult]] = field(
        default_factory=dict[tuple[str, str], tuple[tuple[str, ...], StepResult]]
    )
    torn: bool = False
    """Set by a test: the record ends in a line that says nothing."""


class LinearTrainer:
    """The Trainer port over numpy; give the next one the same disk to play a restart."""

    def __init__(self, store: Store, datums: DatumTables, disk: TrainerDisk | None = None) -> None:
        """Take where state goes."""
        self._store = store
        self._datums = datums
        self.disk = disk or TrainerDisk()
        self._runs: dict[str, _Run] = {}

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Bring the run to a state; an empty one starts from the seed."""
        weights = np.random.default_rng(run.seed).normal(size=_N_IDS)
        opened = _Run(run=run, weights=weights)
        for entry in state:
            saved = json.loads(self._store.get(entry.content))
            opened.weights, opened.n_steps = np.array(saved["weights"]), int(saved["n_steps"])
        self._runs[run.run] = opened
        self.disk.torn = False

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Open an update or return to it."""
        opened = self._get(run)
        if (run, update_id) in self.disk.applied:
            return self.disk.applied[run, update_id][0]
        if opened.update_id not in {None, update_id}:
            message = f"run {run} has update {opened.update_id} open, not {update_id}"
            raise TrainerError(message)
        opened.update_id = update_id
        return tuple(opened.held)

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Add one contribution."""
        opened = self._get(run)
        if opened.update_id != contribution.update_id:
            message = f"contribution {contribution.key}: its update is not open"
            raise TrainerError(message)
        if contribution.key not in opened.held:
            gradient = np.zeros(_N_IDS)
            n_tokens = 0
            for row in self._datums.read(contribution.datums):
                np.add.at(gradient, row.target_ids % _N_IDS, -row.advantages.astype(np.float64) * row.mask)
                n_tokens += int((row.mask > 0).sum())
            if not np.isfinite(gradient).all():
                message = f"contribution {contribution.key}: its gradient is not finite"
                raise TrainerError(message)
            result = ContributionResult(
                key=contribution.key,
                loss_sum=float(gradient.sum()),
                n_tokens=n_tokens,
                metrics={"kl_v1": 0.0, "kl_v2": 0.0, "logprob_gap_max": 0.0, "ess": 1.0, "entropy": 0.0},
            )
            opened.held[contribution.key] = (contribution.group, result, gradient)
        return opened.held[contribution.key][1]

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step once over exactly ``keys``."""
        opened = self._get(run)
        applied = self.disk.applied.get((run, update_id))
        if applied is not None:
            return applied[1]
        if opened.update_id != update_id or sorted(keys) != sorted(opened.held) or not keys:
            message = f"update {update_id}: {len(keys)} keys given, {len(opened.held)} held"
            raise TrainerError(message)
        held = sorted((group, key) for key, (group, _, _) in opened.held.items())
        total = np.zeros(_N_IDS)
        for _, key in held:
            total += opened.held[key][2]
        opened.weights = opened.weights - opened.run.optimisation.learning_rate * total
        opened.n_steps += 1
        result = self._result(opened, update_id, float(np.linalg.norm(total)))
        self.disk.applied[run, update_id] = (tuple(key for _, key in held), result)
        opened.update_id = None
        opened.held.clear()
        return result

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Answer from the disk."""
        applied = self.disk.applied.get((run, update_id))
        if applied is not None:
            return StepStatus.APPLIED, applied[1]
        return (StepStatus.UNKNOWN if self.disk.torn else StepStatus.NOT_APPLIED), None

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop an open update."""
        opened = self._runs.get(run)
        if opened is not None and opened.update_id == update_id:
            opened.update_id = None
            opened.held.clear()

    def _get(self, run: str) -> _Run:
        if run not in self._runs:
            message = f"run {run} is not open"
            raise TrainerError(message)
        return self._runs[run]

    def _result(self, opened: _Run, update_id: str, norm: float) -> StepResult:
        data = json.dumps({"weights": opened.weights.tolist(), "n_steps": opened.n_steps}).encode()
        entry = FileEntry(path="weights.json", content=self._store.put(data))
        version = PolicyVersion(
            name=f"ckpt-{digest_bytes(data)[:12]}",
            base=opened.run.base.base,
            adapter=(entry,),
            n_optimizer_steps=opened.n_steps,
        )
        return StepResult(
            update_id=update_id,
            n_optimizer_steps=opened.n_steps,
            grad_norm=norm,
            state=(entry,),
            sampler=version,
        )
