"""The fault drill at full strength: 200 trials, about fifty kinds of fault, workers that die. Prints one JSON object.

``misclassified`` (target 0) counts the trials whose outcome, grading, reward or retries differ from the outcome table;
``lost`` and ``doubled`` name attempts without a record, and with more than one that counts. Left out since there are no
judges yet: a judge that answers garbage, and one whose provider is down.

The peer, when Harbor (0.26, in its own virtual environment) is there: the same tasks as far as Harbor has a place for
the fault, over an environment class whose boxes fail in the same places, retried as often as ours. Of the trials that
the table leaves ungraded, ``graded_nevertheless`` have a reward and count in the mean, ``zero_in_the_running_mean``
have none and count as 0 while the job runs.

Run: ``python -m tests.benchmarks.faults [--trials 200] [--kills 3] [--seed 0] [--no-peer]``; some three minutes.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import machine
from tests.services.fault_drill import FaultPlan, run_drill, summary
from tests.services.fault_table import spread
from tests.services.harbor_faults import run_peer
from tests.services.harbor_lint import find_python


def main() -> int:
    """Drill and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peer", action="store_true", help="leave Harbor out")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synth-faults-") as directory:
        plan = FaultPlan(trials=asked.trials, kills=asked.kills, seed=asked.seed)
        found = asyncio.run(run_drill(Path(directory) / "home", plan))
        peer: dict[str, Any] = {"missing": "left out" if asked.no_peer else "no Python 3.12"}
        if not asked.no_peer and find_python() is not None:
            peer = run_peer(Path(directory) / "peer", spread(asked.trials))
    targets = {"misclassified": 0, "lost": 0, "doubled": 0, "boxes_left": 0}
    figures = {"machine": machine(), "targets": targets, "synth": summary(found), "harbor": peer}
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 1 if found.misclassified or found.lost or found.doubled or found.boxes_left else 0


if __name__ == "__main__":
    sys.exit(main())
