"""The SIGKILL drill at full strength: run, model process and daemon die at random points of a training.

Prints one JSON object: kills by role, trials and attempts against the plan, updates, steps repeated to the same bytes.
Run: ``python -m tests.benchmarks.drill [--kills 20] [--batches 8] [--seed 0]``.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from resources.wiring import settings_from_environment
from tests.services.drilling import DrillPlan, drill


def main() -> int:
    """Drill and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synth-drill-") as directory:
        home = Path(directory)
        plan = DrillPlan(n_kills=asked.kills, batches=asked.batches, seed=asked.seed)
        books = drill(settings_from_environment(home / "home"), home / "tasks", plan)
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
