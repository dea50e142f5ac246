"""Token exactness: what became of every sampled token after a harness did its worst to its history. Prints JSON.

A thousand turns of a main agent and two sub-agents side by side: thinking dropped, arguments edited, text moved,
results out of order, malformed calls, turns cut by length, requests hung up and sent again, summaries that start anew.

Run: ``python -m tests.benchmarks.exactness [--turns 1000]``.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.services.crooked_harness import drive


def main() -> None:
    """Drive and print."""
    parser = argparse.ArgumentParser(description="Whether each sampled token is trained exactly once; prints JSON.")
    parser.add_argument("--turns", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(drive(Path(directory), options.turns))
    trained_once = found.n_trained_tokens == found.n_sampled_tokens
    share = found.n_exact / found.n_calls if trained_once else 0.0
    sys.stdout.write(json.dumps({**asdict(found), "exact_share": share, "each_trained_once": trained_once}) + "\n")


if __name__ == "__main__":
    main()
