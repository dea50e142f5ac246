"""The main job, seed after seed, each in a home of its own. Prints JSON.

Wall time is of ``synth demo`` after installation; the peak is the largest sum of resident memory over the
demo, ``synth up`` and all their descendants. The gain is trained less base on held-out tasks, paired by task.

Run: ``python -m tests.benchmarks.demo [--seeds 3] [--batches N] [--keep DIRECTORY]``.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import ROOT, machine, spread

_TARGETS = {"wall_s": 360, "peak_rss_bytes": 4 * 2**30, "gain": 0.2, "n_tasks": 30}
"""Source: issue 2, figures."""


@contextlib.contextmanager
def _directory(keep: Path | None) -> Generator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def _synth(home: Path, *arguments: str) -> Any:
    """Run a command and return its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments, "--json"],
        cwd=ROOT,
        env={**os.environ, "SYNTH_HOME": str(home)},  # noqa: TID251 - a benchmark hands its environment on
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(done.stdout)


def _seed(home: Path, seed: int, batches: int | None) -> dict[str, Any]:
    arguments = ["demo", "--seed", str(seed), *(["--batches", str(batches)] if batches else [])]
    try:
        found: dict[str, Any] = _synth(home, *arguments)
    finally:
        _synth(home, "down")
    gain = found["gain_over_tasks"]
    passed = {
        "wall_s": found["wall_s"] <= _TARGETS["wall_s"],
        "peak_rss_bytes": found["peak_rss_bytes"] <= _TARGETS["peak_rss_bytes"],
        "gain": gain["value"] is not None and gain["value"] >= _TARGETS["gain"] and gain["low"] > 0,
        "n_tasks": gain["n_tasks"] >= _TARGETS["n_tasks"],
    }
    return found | {"passed": passed}


def main() -> int:
    """Run the benchmark; exit code 1 when a seed misses a target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batches", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None, help="keep the homes below this directory")
    options = parser.parse_args()
    before = machine()
    with _directory(options.keep) as directory:
        seeds = [_seed(directory / f"seed-{seed}", seed, options.batches) for seed in range(options.seeds)]
    found = {
        "machine": before,
        "targets": _TARGETS,
        "wall_s": spread([seed["wall_s"] for seed in seeds], 1),
        "peak_rss_gib": spread([seed["peak_rss_bytes"] / 2**30 for seed in seeds], 2),
        "gain": spread([seed["gain_over_tasks"]["value"] for seed in seeds]),
        "seeds": seeds,
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0 if all(all(seed["passed"].values()) for seed in seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
