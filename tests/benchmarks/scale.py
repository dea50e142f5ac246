"""Ten thousand no-op trials in one experiment, unit after unit, and what peers need for a thousand. Prints JSON.

Ours: nop engine, no-op verifier, ``memory`` boxes, shards of 1,000 trials, each unit Dagster's job in a process of its
own, then the evaluation's report. A unit's cost is its process less the process of a unit of one trial; its memory is
the peak of that process. ``slope`` is the cost of the last three units over the first three: 1 when it does not grow.

Peers, each in a virtual environment of its own and left out by name when it cannot be made: Harbor 0.26 with an
environment class that does nothing and verification disabled, and Inspect with a solver and a scorer that do nothing.
Their cost is the process of 1,000 trials less the process of one.

Run: ``python -m tests.benchmarks.scale [--trials 10000] [--repeats 3]``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from resources.settings import Settings
from resources.wiring import connect
from tests.benchmarks.large_set import Copies
from tests.benchmarks.noop_trial import RUN
from tests.benchmarks.processes import Cost, machine, measure, spread
from tests.fakes.platform import write_task
from tests.services.harbor_lint import find_python, install

_UNIT_TRIALS = 1000
_PEER_TRIALS = 1000
_INSPECT = "0.3.285"
_REPORT = RUN.replace('"unit"', '"experiment"').replace("evaluation_job", "evaluation_report_job")
_BOXES = """
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.environment_type import EnvironmentType


class Nothing(BaseEnvironment):
    @staticmethod
    def type(): return EnvironmentType.DOCKER
    @property
    def is_mounted(self): return True
    @property
    def supports_gpus(self): return False
    @property
    def can_disable_internet(self): return True
    def _validate_definition(self): pass
    async def start(self, force_build=False): pass
    async def stop(self, delete=True): pass
    async def exec(self, *args, **kwargs): return ExecResult(stdout="", stderr="", return_code=0)
    async def upload_file(self, *args, **kwargs): pass
    async def upload_dir(self, *args, **kwargs): pass
    async def download_file(self, *args, **kwargs): pass
    async def download_dir(self, *args, **kwargs): pass
"""
_NOTHING = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver

@solver
def nothing():
    async def solve(state, generate):
        return state
    return solve

@scorer(metrics=[accuracy()])
def one():
    async def score(state, target):
        return Score(value=1)
    return score

samples = [Sample(input=f"task {number}") for number in range(int(sys.argv[1]))]
(log,) = eval(Task(dataset=samples, solver=nothing(), scorer=one()), model="none/none", log_dir=sys.argv[2],
              display="none")
assert log.status == "success", log.error
"""


def ours(scratch: Path, n_trials: int) -> dict[str, Any]:
    """Run the experiment and return what each unit took."""
    home = scratch / "home"
    (home / "dagster").mkdir(parents=True)
    platform = connect(Settings(home=home, ledger_url=f"sqlite:///{home / 'ledger.db'}"))
    source = replace(platform, tasks=Copies(platform.tasks, n_trials))
    publish_task_set(
        source, parse_reference("team/noop@v1", field="benchmark"), str(write_task(scratch / "tasks", "t"))
    )
    environment = {"SYNTH_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}

    def units(plan: Plan) -> tuple[str, list[str]]:
        profile = Profile(name="nop", engine="nop")
        submission = Submission(kind=ExperimentKind.EVALUATION, task_set="team/noop@v1", actor=profile, plan=plan)
        name = accept(platform, submission).experiment.experiment_id
        with platform.ledger.snapshot() as tx:
            return name, [unit.unit for unit in tx.units.of(name)]

    def run(code: str, partition: str) -> Cost:
        return measure([sys.executable, "-c", code, partition], environment)

    start = run(RUN, units(Plan(sandbox="memory", tasks=1))[1][0])
    experiment, many = units(Plan(sandbox="memory", concurrency=16, shard_tasks=_UNIT_TRIALS))
    costs = [run(RUN, unit) for unit in many]
    report = run(_REPORT, experiment)
    trial_ms = [(cost.cpu_s - start.cpu_s) / _UNIT_TRIALS * 1000 for cost in costs]
    return {
        "n_trials": len(many) * _UNIT_TRIALS,
        "trial_cpu_ms": spread(trial_ms),
        "slope": round(sum(trial_ms[-3:]) / sum(trial_ms[:3]), 3),
        "unit_peak_rss_mib": spread([cost.peak_rss_bytes / 2**20 for cost in costs], 1),
        "report": {"cpu_s": round(report.cpu_s, 2), "peak_rss_mib": round(report.peak_rss_bytes / 2**20, 1)},
    }


def _less_start(run: Callable[[int], Cost], repeats: int) -> dict[str, Any]:
    """Return the cost of a trial: a thousand less one."""
    pairs = [(run(1), run(_PEER_TRIALS)) for _ in range(repeats)]
    return {
        "trial_cpu_ms": spread([(many.cpu_s - one.cpu_s) / (_PEER_TRIALS - 1) * 1000 for one, many in pairs]),
        "peak_rss_mib": spread([many.peak_rss_bytes / 2**20 for _, many in pairs], 1),
    }


def harbor(scratch: Path, repeats: int) -> dict[str, Any]:
    """Run Harbor's job over boxes that do nothing."""
    python = find_python()
    if python is None:
        return {"missing": "no Python 3.12"}
    program = install(python)
    (scratch / "boxes.py").write_text(_BOXES)
    for number in range(100):
        write_task(scratch / "hundred", f"t{number:03d}")
    write_task(scratch / "single", "t000")
    environment = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(scratch)}

    def run(n_trials: int) -> Cost:
        tasks, attempts = ("single", 1) if n_trials == 1 else ("hundred", n_trials // 100)
        jobs = tempfile.mkdtemp(dir=scratch)
        command = [str(program), "run", "-p", str(scratch / tasks), "-a", "nop", "--env", "boxes:Nothing", "-n", "32"]
        command += ["-k", str(attempts), "-o", jobs, "--disable-verification", "-y"]
        return measure(command, environment)

    return _less_start(run, repeats)


def inspect(scratch: Path, repeats: int) -> dict[str, Any]:
    """Run Inspect over samples that do nothing."""
    inherited = os.environ  # noqa: TID251 - where tools are kept, as for Harbor
    tools = Path(inherited.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools")) / f"inspect-{_INSPECT}"
    python = tools / "bin" / "python"
    if not (tools / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(tools)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", f"inspect-ai=={_INSPECT}"]
        done = subprocess.run(pip, capture_output=True, check=False)
        if done.returncode:
            return {"missing": done.stderr.decode(errors="replace")[-300:]}
        (tools / "installed").touch()
    (scratch / "nothing.py").write_text(_NOTHING)

    def run(n_trials: int) -> Cost:
        return measure([str(python), str(scratch / "nothing.py"), str(n_trials), tempfile.mkdtemp(dir=scratch)])

    return _less_start(run, repeats)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3, help="of the peers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = {
            "machine": machine(),
            "targets": {"trial_cpu_ms": 12, "peak_rss_mib": 400, "slope": 1},
            "synth": ours(Path(directory), options.trials),
            "harbor": harbor(Path(directory), options.repeats),
            "inspect": inspect(Path(directory), options.repeats),
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
