"""What a child process and everything below it cost, and the machine's state meanwhile."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
_METER = """
import json, resource, subprocess, sys, time
started_s = time.perf_counter()
code = subprocess.call(sys.argv[2:])
wall_s = time.perf_counter() - started_s
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cost = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall_s, "peak_rss_bytes": used.ru_maxrss * 1024}
with open(sys.argv[1], "w") as figures:
    json.dump(cost, figures)
sys.exit(code)
"""
"""Stands between: a process inherits the peak of the one that forks it, and a benchmark is larger than what it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one process with all descendants that were waited for."""

    cpu_s: float
    wall_s: float
    peak_rss_bytes: int
    """Of the largest single process."""


def measure(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and return what it took.

    Raises:
        RuntimeError: it failed; carries the end of what it said.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as figures:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _METER, figures.name, *argv],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},  # noqa: TID251 - a benchmark hands its environment on
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{argv}: {done.stderr.decode(errors='replace')[-2000:]}")
        return Cost(**json.load(figures))


def spread(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Return median and range of repeats."""
    return {
        "median": round(median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "n": len(values),
    }


def machine() -> dict[str, Any]:
    """Return what a figure has to be read with: cores and load."""
    return {"cores": psutil.cpu_count(), "load_1min": round(psutil.getloadavg()[0], 2)}
