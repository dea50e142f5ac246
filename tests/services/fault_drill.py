"""The fault drill: trials of every kind of fault in worker processes that die, and what became of each by the table.

Used by the test (few trials, one kill) and by ``tests/benchmarks/faults.py`` (200, three kills).
"""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from domain.errors import LedgerError
from domain.records.assessment import Assessment
from domain.records.experiment import ExperimentKind, UnitState
from domain.records.manifest import AssessmentManifest, TrialManifest
from domain.records.model import BasePolicy
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.records.trial import TrialOutcome, TrialRecord
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch, unit_run_ended
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.relaunch import end_lease
from tests.benchmarks.processes import ROOT
from tests.fakes.scripted_model import BASE, model_process
from tests.services.fault_table import FAULTS, RETRIES, kind_of, spread, write
from tests.services.faulty import FaultySampler, connected, proxy_of

_TICK_S = 0.3
_STOPPED_S = 16.0
"""How long a worker stands still: longer than its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How hard the drill is."""

    trials: int = 200
    shard: int = 40
    concurrency: int = 8
    kills: int = 3
    doubles: int = 2
    """Units delivered to two workers at once."""
    stops: int = 1
    """Workers that stand still for longer than their lease, and then go on."""
    seed: int = 0
    timeout_s: float = 1200.0
    pauses_s: tuple[float, float] = (1.0, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one attempt."""

    task: str
    wrong: tuple[str, ...]
    """How it differs from the table; empty: as it should be."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What the drill found."""

    rows: list[Row] = field(default_factory=list[Row])
    lost: list[str] = field(default_factory=list[str])
    """Planned attempts without a record."""
    doubled: list[str] = field(default_factory=list[str])
    """Attempts with more than one counting record or settled assessment."""
    boxes_left: int = 0
    """After the last worker ended and the janitor swept once."""
    disturbed: dict[str, int] = field(default_factory=dict[str, int])
    refused: int = 0
    """Workers that were told that the unit is another's."""
    wall_s: float = 0.0

    @property
    def misclassified(self) -> list[Row]:
        """Those that differ from the table."""
        return [row for row in self.rows if row.wrong]


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    unit: str
    holder: str
    process: subprocess.Popen[bytes]


async def run_drill(home: Path, plan: FaultPlan) -> Findings:
    """Run it below ``home`` and compare."""
    started_s = time.monotonic()
    platform = connected(home)
    _publish(platform, home, plan.trials)
    proxy_of(home).mkdir(exist_ok=True)
    driver = _Driver(platform, home, plan)
    sampler = FaultySampler()
    async with model_process(proxy_of(home), platform.store, sampler=sampler, ledger=platform.ledger):
        try:
            await driver.run()
        finally:
            driver.end()
    found = _compare(platform, driver)
    await platform.sandboxes["local"].sweep(platform.clock.now_ms())
    found.boxes_left = len(list((home / "boxes" / "boxes").iterdir()))
    found.wall_s = time.monotonic() - started_s
    return found


def _publish(platform: Platform, home: Path, n: int) -> None:
    base = BasePolicy(
        name="tiny", digest=BASE.base, family="scripted", files=(), recipe_digest="", context_tokens=1, n_parameters=1
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)
    for task in spread(n):
        asks_model = bool(FAULTS[kind_of(task)].model)
        write(home / ("asking" if asks_model else "working"), task)
    for name in ("working", "asking"):
        publish_task_set(platform, parse_reference(f"team/{name}@v1", field="drill"), str(home / name))


class _Driver:
    """Stands for dispatcher and failure sensor, and for whatever kills, stops and repeats their workers."""

    def __init__(self, platform: Platform, home: Path, plan: FaultPlan) -> None:
        self._platform, self._home, self._plan = platform, home, plan
        self._dice = random.Random(plan.seed)  # noqa: S311 - a drill, no secret
        self._workers: list[_Worker] = []
        self._launched: set[str] = set()
        self._due = ["kill"] * plan.kills + ["stop"] * plan.stops
        self._dice.shuffle(self._due)
        self._next_s = time.monotonic() + self._dice.uniform(*plan.pauses_s)
        self._stopped: list[_Worker] = []
        self.disturbed: Counter[str] = Counter()
        self.disturbed_units: set[str] = set()
        self.refused = 0
        self.experiments = [self._accept("working", "oracle", None), self._accept("asking", "mini", "base:tiny")]

    def _accept(self, task_set: str, engine: str, model: str | None) -> str:
        plan = Plan(
            concurrency=self._plan.concurrency,
            shard_tasks=self._plan.shard,
            infra_retries=RETRIES,
            trial_deadline_s=300.0,
        )
        submission = Submission(
            kind=ExperimentKind.EVALUATION,
            task_set=f"team/{task_set}@v1",
            actor=Profile(name=engine, engine=engine, model=model),
            plan=plan,
        )
        return accept(self._platform, submission).experiment.experiment_id

    async def run(self) -> None:
        """Bring all units to their end."""
        deadline_s = time.monotonic() + self._plan.timeout_s
        while not self._done():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the drill did not end within {self._plan.timeout_s:g} s")
            with suppress(LedgerError):  # a sensor comes again, too
                await asyncio.to_thread(self._tick)  # may wait for the ledger; the model process lives in this loop
            await asyncio.sleep(_TICK_S)

    def _tick(self) -> None:
        self._reap()
        self._launch()
        if self._due and time.monotonic() > self._next_s and self._disturb(self._due[-1]):
            self.disturbed[self._due.pop()] += 1
            self._next_s = time.monotonic() + self._dice.uniform(*self._plan.pauses_s)

    def _launch(self) -> None:
        for launch in dispatch(self._platform).launches:
            if launch.run_key not in self._launched:
                self._launched.add(launch.run_key)
                self._start(launch.unit, launch.run_key)
                if self.disturbed["double"] < self._plan.doubles:
                    self.disturbed["double"] += 1
                    self.disturbed_units.add(launch.unit)
                    self._start(launch.unit, f"{launch.run_key}-again")

    def _units(self) -> list[tuple[str, UnitState]]:
        with self._platform.ledger.snapshot() as tx:
            return [(row.unit, row.state) for name in self.experiments for row in tx.units.of(name)]

    def _done(self) -> bool:
        return not self._stopped and not self._workers and all(state.is_terminal() for _, state in self._units())

    def _start(self, unit: str, holder: str) -> None:
        command = [sys.executable, "-m", "tests.services.faulty", str(self._home), unit, holder]
        with (self._home / f"worker-{holder.replace('#', '-')}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        self._workers.append(_Worker(unit=unit, holder=holder, process=process))

    def _reap(self) -> None:
        """Do as the failure sensor does: a run that failed and still owns its unit has it run again."""
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            if worker.process.returncode != 0:
                self._failed(worker)
                self.refused += worker.process.returncode > 0
            self._workers.remove(worker)

    def _failed(self, worker: _Worker) -> None:
        with self._platform.ledger.snapshot() as tx:
            row = tx.units.get(worker.unit)
        if row.lease_holder not in {None, worker.holder}:
            return
        unit_run_ended(self._platform, worker.unit, reason=f"{worker.holder} ended with {worker.process.returncode}")
        with self._platform.ledger.begin() as tx:
            row = tx.units.get(worker.unit)
            if row.lease_holder == worker.holder:
                end_lease(tx, row, worker.holder, self._platform.clock.now_ms())

    def _disturb(self, how: str) -> bool:
        """Kill or stop a worker that is at work; says whether there was one."""
        running = {unit for unit, state in self._units() if state is UnitState.RUNNING}
        chosen = [worker for worker in self._workers if worker.unit in running and worker not in self._stopped]
        if not chosen:
            return False
        worker = self._dice.choice(chosen)
        self.disturbed_units.add(worker.unit)
        if how == "kill":
            worker.process.kill()
        else:
            worker.process.send_signal(signal.SIGSTOP)
            self._stopped.append(worker)
            threading.Timer(_STOPPED_S, self._go_on, (worker,)).start()  # it may hold the ledger that we wait for
        return True

    def _go_on(self, worker: _Worker) -> None:
        worker.process.send_signal(signal.SIGCONT)
        self._stopped.remove(worker)

    def end(self) -> None:
        """Leave no process of ours."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(10)


def _compare(platform: Platform, driver: _Driver) -> Findings:
    found = Findings(disturbed=dict(driver.disturbed), refused=driver.refused)
    for experiment in driver.experiments:
        with platform.ledger.snapshot() as tx:
            units = tx.units.of(experiment)
            events = tx.events.after(experiment, 0, 1_000_000)
        ended = Counter(
            str(event.body["attempt"])
            for event in events
            if event.kind == "trial.ended" and event.body["outcome"] != TrialOutcome.INFRA_ERROR.value
        )
        settled = Counter(
            str(event.body["trial"])
            for event in events
            if event.kind == "assessment.made" and event.body["reward"] is not None
        )
        found.doubled += [name for counted in (ended, settled) for name, n in counted.items() if n > 1]
        for unit in units:
            _compare_unit(platform, unit.unit, found, disturbed=unit.unit in driver.disturbed_units)
    return found


def _compare_unit(platform: Platform, unit: str, found: Findings, *, disturbed: bool) -> None:
    with platform.ledger.snapshot() as tx:
        refs = [tx.units.manifest(unit, kind) for kind in ("trials", "assessments")]
        failures = {trial.trial_id: tx.trials.infra_failures(trial.key) for trial in tx.trials.of_unit(unit)}
    if refs[0] is None or refs[1] is None:
        found.lost.append(f"{unit}: all of it")
        return
    manifest = platform.records.load(TrialManifest, refs[0])
    assessments = platform.records.load(AssessmentManifest, refs[1]).assessments
    found.lost += [f"{unit}: an attempt"] * (manifest.n_planned - len(manifest.trials))
    by_trial = {item.trial_id: item for item in assessments}
    for trial in manifest.trials:
        wrong = _wrong(trial, by_trial.get(trial.trial_id), disturbed=disturbed)
        if failures.get(trial.trial_id, trial.n_infra_retries) != trial.n_infra_retries:
            wrong.append(f"retries {trial.n_infra_retries}, the ledger has {failures[trial.trial_id]}")
        found.rows.append(Row(task=trial.task_name.rpartition("/")[2], wrong=tuple(wrong)))


def _wrong(trial: TrialRecord, assessment: Assessment | None, *, disturbed: bool) -> list[str]:
    """Return how a trial differs from the table, with what it says of itself."""
    expected = FAULTS[kind_of(trial.task_name)].expected
    told = f"{trial.detail} {'' if assessment is None else assessment.reason}".strip()
    wrong: list[str] = []
    if trial.outcome is not expected.outcome:
        wrong.append(f"{trial.outcome}, not {expected.outcome} ({told})")
    if assessment is None:
        return [*wrong, "no assessment"]
    if assessment.outcome is not expected.graded:
        wrong.append(f"{assessment.outcome}, not {expected.graded} ({told})")
    if assessment.reward != expected.reward:
        wrong.append(f"reward {assessment.reward}, not {expected.reward} ({told})")
    if assessment.tampered is not expected.tampered:
        wrong.append(f"tampered: {assessment.tampered} ({told})")
    if not _retries_fit(trial, expected.retries, disturbed=disturbed):
        wrong.append(f"{trial.n_infra_retries} retries, not {expected.retries} ({told})")
    return wrong


def _retries_fit(trial: TrialRecord, expected: int, *, disturbed: bool) -> bool:
    """A unit that runs again tries again what infrastructure cost; a kill may take the record of a first failure."""
    if not disturbed:
        return trial.n_infra_retries == expected
    if trial.outcome is TrialOutcome.INFRA_ERROR:
        return trial.n_infra_retries >= expected
    return trial.n_infra_retries <= expected


def summary(found: Findings) -> dict[str, object]:
    """Return the figures, for people."""
    kinds: dict[str, Sequence[int]] = {}
    for row in found.rows:
        n, n_wrong = kinds.get(kind_of(row.task), (0, 0))
        kinds[kind_of(row.task)] = (n + 1, n_wrong + bool(row.wrong))
    return {
        "n_trials": len(found.rows),
        "n_kinds": len(kinds),
        "misclassified": len(found.misclassified),
        "lost": found.lost,
        "doubled": found.doubled,
        "boxes_left": found.boxes_left,
        "disturbed": found.disturbed,
        "refused": found.refused,
        "kinds": {name: f"{n}, {n_wrong} of them wrong" if n_wrong else f"{n}" for name, (n, n_wrong) in kinds.items()},
        "wrong": {row.task: list(row.wrong) for row in found.misclassified},
        "wall_s": round(found.wall_s, 1),
    }
