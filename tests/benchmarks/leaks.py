"""The leak drill at full strength: twenty workers killed at random points for each kind of box. Prints one JSON object.

Each worker runs an evaluation of agents with a model, in local boxes or in containers (no network, the public one, an
allowlist, images that are being built). It dies by SIGKILL; nothing takes its unit over, so that only dispatcher and
janitor clean up, at their own pace. ``left`` (target: nothing) counts sixty seconds after each kill what it had:
processes, box directories, control groups, containers, tokens that the model process would answer; and at the end what
no label ties to a worker: sockets, networks and containers of builds. ``others_untouched`` says whether a process, a
container and a network with names like ours still live. What a killed build has built is in the engine's cache, where
the next build of that Dockerfile takes it from, and is told apart (``cached_layers_of_killed_builds``).

Containers need root and an engine (``tests/docker_engine.py``); an engine that others use as well spoils the count of
what has no label. Pods have a drill of their own to come: a third kind here.

Run: ``python -m tests.benchmarks.leaks [--sandboxes local,docker] [--kills 20] [--seed 0]``; some five minutes each.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import machine
from tests.docker_engine import docker_url
from tests.services.leak_drill import LeakPlan, run_leaks, summary


def main() -> int:
    """Drill and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", default="local,docker")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine(), "targets": {"left": {}}}
    failed = False
    for box in str(asked.sandboxes).split(","):
        url = docker_url() if box == "docker" else ""
        plan = LeakPlan(box=box, docker_url=url, kills=asked.kills, at_once=asked.at_once, seed=asked.seed)
        with tempfile.TemporaryDirectory(prefix="synth-leaks-") as directory:
            found = asyncio.run(run_leaks(Path(directory), plan))
        figures[box] = summary(found)
        failed = failed or bool(found.left) or not all(found.others.values())
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
