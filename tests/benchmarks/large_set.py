"""What the size of a task set costs: publishing, acceptance, and the memory of a unit's run. Prints JSON.

Both sets hold copies of one real task that differ in name and digest. Acceptance is the use case that ``synth run
start`` and the Launchpad call. A unit is a shard of 100 tasks, run as Dagster's job in a process of its own.

Run: ``python -m tests.benchmarks.large_set [--tasks 100000] [--repeats 5]``.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from domain.ports import TaskSource
from domain.records.canonical import digest_of
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Order, Plan, Profile
from domain.records.task import Task
from domain.service.accept import Submission, accept
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from resources.settings import Settings
from resources.wiring import connect
from tests.benchmarks.noop_trial import RUN
from tests.benchmarks.processes import machine, measure, spread
from tests.fakes.platform import write_task

_SHARD = 100


class Copies:
    """A task source that gives each task of another one many times over. See domain.ports.TaskSource."""

    def __init__(self, source: TaskSource, n_tasks: int) -> None:
        """Give ``n_tasks`` copies."""
        self._source, self._n_tasks = source, n_tasks

    def read(self, directory: str, *, host_runnable: bool) -> Iterator[tuple[Task, bytes]]:
        """Yield the copies, each with a name and a digest of its own."""
        ((task, archive),) = self._source.read(directory, host_runnable=host_runnable)
        for number in range(self._n_tasks):
            yield replace(task, name=f"t/{number:07d}", digest=digest_of([task.digest, number])), archive


def _accept(platform: Platform, reference: str, order: Order) -> str:
    plan = Plan(sandbox="memory", shard_tasks=_SHARD, concurrency=16, order=order)
    profile = Profile(name="nop", engine="nop")
    submission = Submission(kind=ExperimentKind.EVALUATION, task_set=reference, actor=profile, plan=plan)
    return unit_key(accept(platform, submission).experiment.experiment_id, 0)


def _set(home: Path, n_tasks: int, repeats: int) -> dict[str, Any]:
    (home / "dagster").mkdir(parents=True)
    platform = connect(Settings(home=home, ledger_url=f"sqlite:///{home / 'ledger.db'}"))
    task = write_task(home.parent / f"tasks{n_tasks}", "t")
    reference = "team/large@v1"
    started_s = time.process_time()
    source = replace(platform, tasks=Copies(platform.tasks, n_tasks))
    publish_task_set(source, parse_reference(reference, field="benchmark"), str(task))
    publish_s = time.process_time() - started_s
    waits_s: list[float] = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        _accept(platform, reference, Order.SHUFFLED)
        waits_s.append(time.perf_counter() - begun_s)
    environment = {"SYNTH_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
    runs = {
        order: measure([sys.executable, "-c", RUN, _accept(platform, reference, order)], environment) for order in Order
    }
    return {
        "n_tasks": n_tasks,
        "publish_cpu_ms_per_task": publish_s / n_tasks * 1000,
        "accept_s": spread(waits_s),
        "unit_peak_rss_mib": {order.value: run.peak_rss_bytes / 2**20 for order, run in runs.items()},
        "unit_cpu_s": {order.value: run.cpu_s for order, run in runs.items()},
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    # In memory where there is some: a file system that synchronises each of 100,000 small files measures itself.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        sets = [_set(Path(directory) / str(n), n, options.repeats) for n in (1000, options.tasks)]
    found = {"machine": machine(), "targets": {"accept_s": 1.0}, "sets": sets}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
