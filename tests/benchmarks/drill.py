"""The SIGKILL drill at full strength: run, model process and daemon die at random points of the demo's training.

Prints one JSON object: kills by role, trials and attempts against the plan, updates, steps repeated to the same bytes.
Run: ``python -m tests.benchmarks.drill [--kills 20] [--batches 15] [--seed 0]``; about ten minutes.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from cli.demo_setup import prepare
from domain.records.experiment import Experiment
from domain.service.platform import Platform
from resources.wiring import settings_from_environment
from tests.services.drilling import DrillPlan, drill, silent

_PAUSES_S = (2.0, 24.0)
"""Twenty kills so far apart fall all over the training."""


def _submit(home: Path, seed: int, batches: int, platform: Platform) -> Experiment:
    """Accept the demo's training, without what would be evaluated beside it."""
    setup = prepare(platform, home, seed, batches, silent, lambda _stage: None)
    alone = replace(setup, train_plan=replace(setup.train_plan, evaluate_on=None))
    return alone.submit_training(platform)


def main() -> int:
    """Drill and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synth-drill-") as directory:
        home = Path(directory)
        plan = DrillPlan(
            n_kills=asked.kills, batches=asked.batches, seed=asked.seed, timeout_s=3600.0, pauses_s=_PAUSES_S
        )
        submit = partial(_submit, home / "home", asked.seed, asked.batches)
        books = drill(settings_from_environment(home / "home"), submit, plan)
    balanced = books.n_trials == books.n_attempts == books.n_planned
    json.dump(
        {
            "state": books.experiment.state.value,
            "kills": books.kills,
            "trials": books.n_trials,
            "attempts": books.n_attempts,
            "planned": books.n_planned,
            "updates": dict(Counter(state.value for state in books.updates)),
            "optimizer_steps": list(books.n_optimizer_steps),
            "replayed_equal": books.replayed_equal,
            "balanced": balanced,
            "wall_s": round(books.wall_s, 1),
        },
        sys.stdout,
        indent=2,
    )
    return 0 if balanced else 1


if __name__ == "__main__":
    sys.exit(main())
