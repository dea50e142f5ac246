"""What the platform itself costs for each trial: nop engine, no-op verifier, all trials in one unit. Prints JSON.

Each repeat has a home of its own and runs three times the process that a run is: Dagster's job for one evaluation unit,
in this Python, with a Dagster instance on disk. CPU is of the process and its children.

* a unit of one trial: Dagster's start
* a unit of ``--trials`` trials; less the start and divided by the trials it is the cost of a trial
* the finished unit again: nothing is sampled; less the start it is the cost of looking

Bytes are what ledger, store and journal grew by, without Dagster's own databases, which are told apart.

Run: ``python -m tests.benchmarks.noop_trial [--trials 1000] [--repeats 5] [--sandboxes memory,local]``.
"""

import argparse
import contextlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from resources.settings import Settings
from resources.wiring import connect
from tests.benchmarks.processes import machine, measure, spread
from tests.fakes.platform import write_task

_ATTEMPTS = 4
RUN = """
import sys
import dagster as dg
import definitions
unit = sys.argv[1]
with dg.DagsterInstance.get() as instance:
    instance.add_dynamic_partitions("unit", [unit])
    job = definitions.defs.resolve_job_def("evaluation_job")
    assert job.execute_in_process(partition_key=unit, instance=instance).success
"""


class Home:
    """A fresh platform with two units admitted: of one trial, and of many."""

    def __init__(self, directory: Path, sandbox: str, n_trials: int) -> None:
        """Publish the tasks and accept both evaluations."""
        self.directory = directory
        (directory / "dagster").mkdir(parents=True)
        self.environment = {"SYNTH_HOME": str(directory), "DAGSTER_HOME": str(directory / "dagster")}
        settings = Settings(home=directory, ledger_url=f"sqlite:///{directory / 'ledger.db'}")
        platform = connect(settings)
        for number in range(n_trials // _ATTEMPTS):
            write_task(directory.parent / "tasks", f"t{number:04d}")
        tasks = str(directory.parent / "tasks")
        publish_task_set(platform, parse_reference("team/noop@v1", field="benchmark"), tasks)
        self.one = self._accept(platform, Plan(sandbox=sandbox, tasks=1, concurrency=1))
        self.many = self._accept(platform, Plan(sandbox=sandbox, attempts=_ATTEMPTS, concurrency=16))
        self.n_trials = n_trials // _ATTEMPTS * _ATTEMPTS

    @staticmethod
    def _accept(platform: Platform, plan: Plan) -> str:
        profile = Profile(name="nop", engine="nop")
        submission = Submission(kind=ExperimentKind.EVALUATION, task_set="team/noop@v1", actor=profile, plan=plan)
        return unit_key(accept(platform, submission).experiment.experiment_id, 0)

    def run(self, unit: str) -> Any:
        """Run a unit in a process of its own."""
        return measure([sys.executable, "-c", RUN, unit], self.environment)

    def bytes(self) -> tuple[int, int]:
        """Return (ours, Dagster's) bytes on disk, by allocated blocks, with the ledger's log folded into it."""
        with contextlib.closing(sqlite3.connect(self.directory / "ledger.db")) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes = [0, 0]
        for path in self.directory.rglob("*"):
            if path.is_file():
                is_dagster = "dagster" in path.relative_to(self.directory).parts
                sizes[is_dagster] += path.stat().st_blocks * 512
        return sizes[0], sizes[1]


def _repeat(sandbox: str, n_trials: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory) / "home", sandbox, n_trials)
        start = home.run(home.one)
        again_start = home.run(home.one)
        before = home.bytes()
        many = home.run(home.many)
        after = home.bytes()
        again = home.run(home.many)
    return {
        "start_cpu_s": start.cpu_s,
        "trial_cpu_ms": (many.cpu_s - start.cpu_s) / home.n_trials * 1000,
        "trial_wall_ms": (many.wall_s - start.wall_s) / home.n_trials * 1000,
        "trial_bytes": (after[0] - before[0]) / home.n_trials,
        "trial_dagster_bytes": (after[1] - before[1]) / home.n_trials,
        "again_beyond_start_s": again.wall_s - again_start.wall_s,
        "again_beyond_start_cpu_s": again.cpu_s - again_start.cpu_s,
        "peak_rss_mib": many.peak_rss_bytes / 2**20,
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sandboxes", default="memory,local")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": machine(),
        "n_trials": options.trials,
        "targets_memory": {"trial_cpu_ms": 12, "trial_bytes": 10_000, "again_beyond_start_s": 1.0},
    }
    for sandbox in options.sandboxes.split(","):
        repeats = [_repeat(sandbox, options.trials) for _ in range(options.repeats)]
        found[sandbox] = {name: spread([repeat[name] for repeat in repeats]) for name in repeats[0]}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
