"""The trainer of one machine: torch and peft in this process, LoRA adapters on a base from the store."""

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from adapters.lora_format import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from adapters.torch_weights import fetch_files, files_digest, keep_files
from adapters.trainers.applied_log import AppliedLog, AppliedStep
from adapters.trainers.determinism import workers
from adapters.trainers.lora_run import Gradients, LoraRun
from adapters.trainers.microbatches import check_datums, microbatches
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
from domain.records.model import BasePolicy, FileEntry, PolicyVersion

T = TypeVar("T")

_OPEN_RUNS = 4
_PADDED_TOKENS = 1024  # small parts run beside each other and pad little


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """A contribution's result and gradients, kept apart until the step."""

    group: int
    result: ContributionResult
    gradients: Gradients


@dataclass(slots=True, kw_only=True, eq=False)
class _OpenRun:
    run: TrainingRun
    policy: LoraRun
    update_id: str | None = None
    held: dict[str, _Held] = field(default_factory=dict[str, _Held])


class PeftTrainer:
    """Ordered learning operations over runs in memory; see the Trainer port.

    Operations run one after another in one thread. Gradients of contributions are kept apart and added in group
    order at the step, so weights do not depend on the order of arrival.
    """

    def __init__(
        self,
        store: Store,
        datums: DatumTables,
        records: Path,
        files_of_base: Callable[[str], BasePolicy],
        *,
        threads: int = 2,
        padded_tokens: int = _PADDED_TOKENS,
    ) -> None:
        """Take where state goes.

        Args:
            store: keeps adapters and optimizer states; holds bases.
            datums: reads datum tables.
            records: directory of the durable records of applied steps.
            files_of_base: returns the base policy of a digest; raises NotFoundError.
            threads: micro-batches that run at once; results do not depend on it.
            padded_tokens: positions of one micro-batch; results depend on it in the last bits.
        """
        self._store = store
        self._datums = datums
        self._records = records
        self._files_of_base = files_of_base
        self._padded_tokens = padded_tokens
        self._operations = workers(1, "trainer")
        self._pool = workers(threads, "trainer-batch")
        self._runs: OrderedDict[str, _OpenRun] = OrderedDict()
        self._stepping: set[tuple[str, str]] = set()
        self._stepping_lock = threading.Lock()

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Bring the run to ``state`` (empty: a fresh adapter from the seed) and drop open updates.

        Raises:
            TrainerError: the state does not fit.
            NotFoundError: the base policy or a file of the state is unknown.
        """
        await self._ordered(lambda: self._open(run, state))

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Open an update or return to it; returns the contribution keys it holds.

        Raises:
            TrainerError: the run is not open, or has another update open.
        """
        return await self._ordered(lambda: self._begin(run, update_id))

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Add one contribution; the same key again returns the first result.

        Raises:
            TrainerError: its update is not open, a row is wrong, or a number is not finite (nothing is kept).
        """
        return await self._ordered(lambda: self._contribute(run, contribution))

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step once over exactly ``keys``; durable before it returns; the same id again returns it.

        Raises:
            TrainerError: other keys are held, the update is not open, or a number is not finite.
            StoreError: the step could not be kept; it was taken back.
        """
        with self._stepping_lock:
            # From here on until it ends, nobody can say whether this step will be applied.
            self._stepping.add((run, update_id))
        return await self._ordered(lambda: self._step(run, update_id, keys))

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Say what the durable record proves; UNKNOWN while that step runs or when the record is torn."""
        return await asyncio.to_thread(self._status, run, update_id)

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop an open update and its gradients; anything else is left alone."""
        await self._ordered(lambda: self._abandon(run, update_id))

    def close(self) -> None:
        """End the worker threads after what was asked already."""
        self._operations.shutdown()
        self._pool.shutdown()

    async def _ordered(self, operation: Callable[[], T]) -> T:
        """Run in order of call; an operation that was asked for runs to its end, even when its caller gives up."""
        return await asyncio.shield(asyncio.wrap_future(self._operations.submit(operation)))

    # --- operations, in the worker thread --------------------------------------------------------

    def _open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        log = AppliedLog(self._records, run.run)
        if log.read()[1]:
            log.set_torn_line_aside()
        self._runs.pop(run.run, None)
        files = fetch_files(self._store, self._files_of_base(run.base.base).files)
        policy = LoraRun(files, run.base.base, run.optimisation, run.seed)
        if state:
            policy.restore(fetch_files(self._store, state))
        self._runs[run.run] = _OpenRun(run=run, policy=policy)
        while len(self._runs) > _OPEN_RUNS:
            self._runs.popitem(last=False)

    def _get(self, run: str) -> _OpenRun:
        if run not in self._runs:
            raise TrainerError(f"run {run} is not open", hint="open it with its last saved state")
        self._runs.move_to_end(run)
        return self._runs[run]

    def _applied(self, run: str, update_id: str) -> AppliedStep | None:
        return AppliedLog(self._records, run).read()[0].get(update_id)

    def _begin(self, run: str, update_id: str) -> tuple[str, ...]:
        opened = self._get(run)
        applied = self._applied(run, update_id)
        if applied is not None:
            return applied.keys
        if opened.update_id not in {None, update_id}:
            raise TrainerError(
                f"run {run} has update {opened.update_id} open, not {update_id}",
                hint="step or abandon the open update first",
            )
        opened.update_id = update_id
        return tuple(opened.held)

    def _contribute(self, run: str, contribution: Contribution) -> ContributionResult:
        opened = self._get(run)
        key = contribution.key
        if opened.update_id != contribution.update_id:
            applied = self._applied(run, contribution.update_id)
            for result in applied.contributions if applied else ():
                if result.key == key:
                    return result
            raise TrainerError(f"contribution {key}: its update is not open", hint="begin the update first")
        if key not in opened.held:
            opened.held[key] = self._compute(opened.policy, contribution)
        return opened.held[key].result

    def _compute(self, policy: LoraRun, contribution: Contribution) -> _Held:
        rows = self._datums.read(contribution.datums)
        check_datums(rows, policy.vocabulary, contribution.key)
        batches = microbatches(rows, self._padded_tokens)
        found = policy.backward(batches, contribution.objective, self._pool)
        metrics = found.drift.metrics()
        finite = math.isfinite(found.loss) and all(map(math.isfinite, metrics.values()))
        if not finite or not all(bool(gradient.isfinite().all()) for gradient in found.gradients):
            raise TrainerError(
                f"contribution {contribution.key}: loss {found.loss} or its gradient is not finite",
                hint="nothing was kept; look at the logprobs and advantages of its datums",
            )
        result = ContributionResult(
            key=contribution.key, loss_sum=found.loss, n_tokens=int(found.drift.n), metrics=metrics
        )
        return _Held(group=contribution.group, result=result, gradients=found.gradients)

    def _step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        try:
            return self._step_once(run, update_id, keys)
        finally:
            with self._stepping_lock:
                self._stepping.discard((run, update_id))

    def _step_once(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        opened = self._get(run)
        applied = self._applied(run, update_id)
        if applied is not None:
            return self._replay(opened, applied, keys)
        if opened.update_id != update_id:
            raise TrainerError(f"update {update_id} is not open in run {run}", hint="begin the update first")
        if sorted(keys) != sorted(opened.held) or not keys:
            missing = sorted(set(keys) - set(opened.held))
            beyond = sorted(set(opened.held) - set(keys))
            raise TrainerError(
                f"update {update_id}: {len(keys)} keys given, {len(opened.held)} held; missing {missing[:3]}, "
                f"not named {beyond[:3]}",
                hint="submit what is missing, or abandon the update and submit again",
            )
        result = self._apply(opened, update_id)
        opened.update_id = None
        opened.held.clear()
        return result

    def _apply(self, opened: _OpenRun, update_id: str) -> StepResult:
        """Step, keep the state, write the record; any failure before the record takes the step back."""
        held = sorted(opened.held.items(), key=lambda item: (item[1].group, item[0]))
        policy = opened.policy
        before = policy.state()
        done = False
        try:
            norm = policy.step([each.gradients for _, each in held])
            state = keep_files(self._store, policy.state())
            result = _step_result(opened.run, update_id, policy.n_steps, norm, state)
            step = AppliedStep(
                keys=tuple(key for key, _ in held),
                contributions=tuple(each.result for _, each in held),
                result=result,
            )
            AppliedLog(self._records, opened.run.run).append(step)
            done = True
        finally:
            if not done:
                policy.restore(before)
        return result

    def _replay(self, opened: _OpenRun, applied: AppliedStep, keys: tuple[str, ...]) -> StepResult:
        """Return a recorded step; a run that was reopened before it moves to its state."""
        result = applied.result
        if sorted(keys) != sorted(applied.keys):
            raise TrainerError(
                f"update {result.update_id} was applied with other contributions",
                hint="take the recorded step: ask step_status",
            )
        if opened.policy.n_steps + 1 == result.n_optimizer_steps:
            opened.policy.restore(fetch_files(self._store, result.state))
        if opened.update_id == result.update_id:
            opened.update_id = None
            opened.held.clear()
        return result

    def _status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        with self._stepping_lock:
            in_flight = (run, update_id) in self._stepping
        steps, torn = AppliedLog(self._records, run).read()
        applied = steps.get(update_id)
        if applied is not None:
            return StepStatus.APPLIED, applied.result
        unknown = in_flight or torn
        return (StepStatus.UNKNOWN if unknown else StepStatus.NOT_APPLIED), None

    def _abandon(self, run: str, update_id: str) -> None:
        opened = self._runs.get(run)
        if opened is not None and opened.update_id == update_id:
            opened.update_id = None
            opened.held.clear()


def _step_result(run: TrainingRun, update_id: str, n_steps: int, norm: float, state: Sequence[FileEntry]) -> StepResult:
    adapter = tuple(entry for entry in state if entry.path in {ADAPTER_CONFIG, ADAPTER_WEIGHTS})
    version = PolicyVersion(
        name=f"ckpt-{files_digest(adapter)[:12]}",
        base=run.base.base,
        adapter=adapter,
        n_optimizer_steps=n_steps,
    )
    return StepResult(
        update_id=update_id, n_optimizer_steps=n_steps, grad_norm=norm, state=tuple(state), sampler=version
    )
