"""Three experiments of weights 2, 1 and 1 on one budget: shares, waits and overshoot. Prints JSON.

Each has 300 trials that sleep, by a fixed heavy-tailed list, in local boxes of one or two CPUs; the first one floods
the machine before the others come. Each unit runs in a process of its own, as units do, and all ask one ledger.

* ``jain``: index of weighted seconds of dominant share in windows of 10 s in which all three have work in line
  (1: each has what its weight says). Source: Jain, Chiu and Hawe, 1984.
* ``overshoot``: the most by which what runs exceeded the budget, from the ledger's live rows ten times a second and
  from the begin and end of every trial.
* ``wait_over_fair``: 95th percentile of the waits of an experiment of weight 1, over what it would be with exactly its
  share of the budget from the beginning.

The peer, when Harbor (0.26, in its own virtual environment) is there: two ``harbor run`` side by side, each with the
budget's number of trials, and boxes that are nothing but the same sleeps. They know nothing of each other.

Run: ``python -m tests.benchmarks.fairness [--trials 300]``.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from domain.maths.fair_share import HORIZON_S
from domain.records.capacity import Capacity
from domain.records.experiment import ExperimentKind
from domain.records.names import experiment_of, parse_reference, unit_key
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from resources.budget import read_budget
from resources.settings import Settings
from resources.wiring import connect
from tests.benchmarks.processes import ROOT, machine
from tests.fakes.platform import TASK_TOML
from tests.services.harbor_lint import find_python, install

WEIGHTS = {"flood": 2.0, "second": 1.0, "third": 1.0}
_BUDGET = "trials=8 cpus=8 memory_mb=8192"
_WINDOW_S = 10.0
_HEAD_START_S = 2.0
_UNIT = """
import asyncio, sys
from domain.service.units import Stage, run_unit
from resources.settings import read_settings
from resources.wiring import connect
import os
platform = connect(read_settings(os.environ))
asyncio.run(run_unit(platform, sys.argv[1], sys.argv[1], frozenset(Stage), lambda *_: None))
"""
_BOXES = """
import asyncio, json, os
from pathlib import Path
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.environment_type import EnvironmentType


class Sleeper(BaseEnvironment):
    @staticmethod
    def type(): return EnvironmentType.DOCKER
    @property
    def is_mounted(self): return True
    @property
    def supports_gpus(self): return False
    @property
    def can_disable_internet(self): return True
    def _validate_definition(self): pass
    async def start(self, force_build=False):
        await asyncio.sleep(float((self.environment_dir / "seconds").read_text()))
    async def stop(self, delete=True): pass
    async def exec(self, *args, **kwargs): return ExecResult(stdout="", stderr="", return_code=0)
    async def upload_file(self, *args, **kwargs): pass
    async def upload_dir(self, *args, **kwargs): pass
    async def download_file(self, *args, **kwargs): pass
    async def download_dir(self, *args, **kwargs): pass
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one trial takes."""

    seconds: float
    cpus: int
    memory_mb: int

    @property
    def demand(self) -> Capacity:
        """As admission counts it."""
        return Capacity(trials=1, cpus=self.cpus, memory_mb=self.memory_mb)


def jobs(n: int) -> list[Job]:
    """Return the fixed list: most sleep 0.1-0.4 s, some ten times as long; a third takes two CPUs."""
    draw = random.Random(20261201)  # noqa: S311 - a fixed list, no secret
    return [
        Job(
            seconds=round(min(4.0, 0.1 * draw.paretovariate(1.3)), 3),
            cpus=draw.choice((1, 1, 2)),
            memory_mb=draw.choice((256, 512, 1024)),
        )
        for _ in range(n)
    ]


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index, 1 for equal shares; of nothing, 1."""
    values = np.asarray(shares)
    return float(values.sum() ** 2 / (len(values) * (values**2).sum())) if values.any() else 1.0


@dataclass(slots=True)
class Watch:
    """What the ledger's live rows said while it ran."""

    budget: Capacity
    names: dict[str, str]
    started_s: float = field(default_factory=time.monotonic)
    rows: list[tuple[float, dict[str, float], bool]] = field(default_factory=list[tuple[float, dict[str, float], bool]])
    """(second, share by experiment, whether all have work in line)."""
    overshoot: Capacity = field(default_factory=Capacity)

    def look(self, platform: Any) -> None:
        """Take one sample."""
        with platform.ledger.snapshot() as tx:
            grants = tx.grants.live(platform.clock.now_ms())
        total = Capacity()
        for grant in grants:
            total = total.plus(grant.used)
        self.overshoot = self.overshoot.larger(total.minus(self.budget))
        shares = {self.names[grant.experiment_id]: grant.used.share_of(self.budget) for grant in grants}
        waiting = len(shares) == len(WEIGHTS) and all(grant.head != Capacity() for grant in grants)
        self.rows.append((time.monotonic() - self.started_s, shares, waiting))

    def windows(self) -> list[float]:
        """Return Jain's index of every whole window in which all had work in line throughout."""
        found: list[float] = []
        last_s = self.rows[-1][0] if self.rows else 0.0
        for begin in np.arange(0.0, last_s - _WINDOW_S, _WINDOW_S):
            inside = [row for row in self.rows if begin <= row[0] < begin + _WINDOW_S]
            if inside and all(waiting for _, _, waiting in inside):
                found.append(jain([sum(row[1][name] for row in inside) / WEIGHTS[name] for name in WEIGHTS]))
        return found


def _write_tasks(directory: Path, work: Sequence[Job]) -> None:
    for number, job in enumerate(work):
        task = directory / f"t{number:03d}"
        for part in ("environment", "tests", "solution"):
            (task / part).mkdir(parents=True)
        sizes = f"[environment]\ncpus = {job.cpus}\nmemory_mb = {job.memory_mb}\n"
        (task / "task.toml").write_text(TASK_TOML.format(name=f"t/t{number:03d}", family="f") + sizes)
        (task / "instruction.md").write_text("Sleep.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
        (task / "environment" / "seconds").write_text(f"{job.seconds}")
        (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        (task / "solution" / "solve.sh").write_text(f"sleep {job.seconds}\n")


def ours(scratch: Path, work: Sequence[Job]) -> dict[str, Any]:
    """Run the three experiments and return what the ledger and the trials say."""
    home = scratch / "home"
    environment = {"SYNTH_HOME": str(home), "SYNTH_BUDGET": _BUDGET}
    budget = read_budget(_BUDGET).capacity
    platform = connect(Settings(home=home, ledger_url=f"sqlite:///{home / 'ledger.db'}", budget=read_budget(_BUDGET)))
    publish_task_set(platform, parse_reference("team/sleep@v1", field="benchmark"), str(scratch / "tasks"))
    units: dict[str, str] = {}
    for name, weight in WEIGHTS.items():
        plan = Plan(sandbox="local", concurrency=64, weight=weight)
        profile = Profile(name=name, engine="oracle")
        submission = Submission(kind=ExperimentKind.EVALUATION, task_set="team/sleep@v1", actor=profile, plan=plan)
        units[name] = unit_key(accept(platform, submission).experiment.experiment_id, 0)
    watch = Watch(budget=budget, names={experiment_of(unit): name for name, unit in units.items()})
    running: list[subprocess.Popen[bytes]] = []
    begun_ms: dict[str, int] = {}
    for name, unit in units.items():
        begun_ms[name] = platform.clock.now_ms()
        command = [sys.executable, "-c", _UNIT, unit]
        inherited = dict(os.environ)  # noqa: TID251 - a benchmark hands its environment on
        running.append(subprocess.Popen(command, cwd=ROOT, env={**inherited, **environment}))
        until_s = time.monotonic() + (_HEAD_START_S if name == "flood" else 0.0)
        while time.monotonic() < until_s:
            watch.look(platform)
            time.sleep(0.1)
    while any(process.poll() is None for process in running):
        watch.look(platform)
        time.sleep(0.1)
    if any(process.returncode for process in running):
        raise RuntimeError("a unit failed")
    spans: list[tuple[int, int, Capacity]] = []
    waits: dict[str, list[float]] = {}
    for name, unit in units.items():
        with platform.ledger.snapshot() as tx:
            trials = tx.trials.of_unit(unit)
        waits[name] = [(trial.started_ms - begun_ms[name]) / 1000 for trial in trials]
        spans += [(trial.started_ms, trial.ended_ms, work[trial.key.group].demand) for trial in trials]
    fair_s = sum(job.demand.share_of(budget) * job.seconds for job in work) / (1 / sum(WEIGHTS.values()))
    windows = watch.windows()
    last = max(WEIGHTS, key=lambda name: (WEIGHTS[name] == 1.0, np.percentile(waits[name], 95)))
    return {
        "jain": {"median": round(float(np.median(windows)), 4), "min": round(min(windows), 4), "n": len(windows)}
        if windows
        else None,
        "overshoot": {"live": _over(watch.overshoot, budget), "trials": _over(_excess(spans, budget), budget)},
        "wait_p95_s": {name: round(float(np.percentile(waits[name], 95)), 2) for name in WEIGHTS},
        "wait_over_fair": round(float(np.percentile(waits[last], 95)) / (0.95 * fair_s), 3),
        "wall_s": round(watch.rows[-1][0], 1),
    }


def _excess(spans: Sequence[tuple[int, int, Capacity]], budget: Capacity) -> Capacity:
    """Return the most by which what overlaps exceeds the budget."""
    edges = [(begin, 1, demand) for begin, _, demand in spans] + [(end, 0, demand) for _, end, demand in spans]
    now = most = Capacity()
    for _, begins, demand in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        now = now.plus(demand) if begins else now.minus(demand)
        most = most.larger(now.minus(budget))
    return most


def _over(excess: Capacity, budget: Capacity) -> dict[str, float]:
    return {name: amount for name, amount in excess.bounded().items() if name in budget.bounded()}


def harbors(scratch: Path, work: Sequence[Job], at_once: int) -> dict[str, Any]:
    """Run two of Harbor's jobs side by side over the same sleeps; one floods first."""
    python = find_python()
    if python is None:
        return {"missing": "no Python 3.12"}
    program = install(python)
    (scratch / "boxes.py").write_text(_BOXES)
    inherited = dict(os.environ)  # noqa: TID251 - as above
    environment = {**inherited, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment["PYTHONPATH"] = str(scratch)
    running: list[subprocess.Popen[bytes]] = []
    for name in ("flood", "second"):
        command = [str(program), "run", "-p", str(scratch / "tasks"), "-a", "nop", "--env", "boxes:Sleeper"]
        command += ["-n", str(at_once), "--job-name", name, "-o", str(scratch / "jobs"), "--disable-verification", "-y"]
        with (scratch / f"{name}.log").open("wb") as log:
            running.append(subprocess.Popen(command, cwd=scratch, env=environment, stdout=log, stderr=log))
        time.sleep(_HEAD_START_S if name == "flood" else 0)
    codes = [process.wait() for process in running]
    if any(codes):
        return {"missing": f"harbor run ended with {codes}: {(scratch / 'flood.log').read_text()[-500:]}"}
    by_name = {f"t{number:03d}": job for number, job in enumerate(work)}
    spans: list[tuple[int, int, Capacity]] = []
    for path in (scratch / "jobs").glob("*/*/result.json"):
        result = json.loads(path.read_text())
        phase = result["environment_setup"]
        span = [round(datetime.fromisoformat(phase[edge]).timestamp() * 1000) for edge in ("started_at", "finished_at")]
        spans.append((span[0], span[1], by_name[path.parent.name.split("__")[0]].demand))
    budget = read_budget(_BUDGET).capacity
    return {"n_trials": len(spans), "overshoot": {"trials": _over(_excess(spans, budget), budget)}}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    options = parser.parse_args()
    work = jobs(options.trials)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        _write_tasks(scratch / "tasks", work)
        found = {
            "machine": machine(),
            "budget": _BUDGET,
            "horizon_s": HORIZON_S,
            "targets": {"jain": 0.95, "overshoot": 0, "wait_over_fair": 2},
            "synth": ours(scratch, work),
            "harbor": harbors(scratch, work, 8),
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
