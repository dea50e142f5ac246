"""Datum preparation: trajectories to rows to Arrow, tokens per CPU second. Prints JSON.

1,000 trials of 50 turns: 40 turns of the main agent with three compactions and 10 turns of one subagent, 60 new prompt
ids and 40 sampled ids a turn. Trials are packed, checked and written in groups of eight, as in a unit.

Run: ``python -m tests.benchmarks.datums [--trials 1000] [--repeats 5] [--store DIRECTORY]``.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adapters.evidence_arrays import decode_calls
from adapters.evidence_codec import encode_trial, reference
from domain.maths.packing import pack_group
from domain.maths.row_checks import check_rows
from domain.maths.stitching import stitch
from domain.ports import Store
from domain.records.canonical import digest_bytes
from domain.records.task import ObjectRef
from domain.records.trajectory import TokenTrajectory
from domain.records.trial import EvidenceRef, Interaction, Purpose, StopReason

_PROMPT, _SAMPLED, _GROUP = 60, 40, 8
_COMPACTIONS = (10, 20, 30)
_TARGET = 20_000_000
"""Tokens per CPU second. Source: facts/peers-and-statistics.md section B3."""


class NamingStore:
    """Names bytes by their SHA-256 and forgets them: what a write costs without a disk."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.n_bytes = 0

    def put(self, data: bytes) -> ObjectRef:
        """Return the name."""
        self.n_bytes += len(data)
        return ObjectRef(digest=digest_bytes(data), size_bytes=len(data))

    def get(self, ref: ObjectRef) -> bytes:
        """Nothing is kept."""
        raise KeyError(ref.digest)

    def has(self, digest: str) -> bool:
        """Nothing is here."""
        return not digest

    def location(self, ref: ObjectRef) -> str:
        """Nowhere."""
        return f"nowhere:{ref.digest}"


def _trajectory(generator: np.random.Generator, trial: int, agent: str, n_turns: int) -> TokenTrajectory:
    starts = np.zeros(n_turns, dtype=np.bool_)
    starts[[0, *(turn for turn in _COMPACTIONS if agent == "main")]] = True
    return TokenTrajectory(
        trial_id=f"trial-{trial:04d}",
        agent=agent,
        interactions=tuple(f"{trial:04d}-{agent}-{turn:02d}" for turn in range(n_turns)),
        ids=generator.integers(0, 150_000, size=n_turns * (_PROMPT + _SAMPLED), dtype=np.int32),
        logprobs=-generator.random(n_turns * _SAMPLED, dtype=np.float32),
        prompt_lengths=np.full(n_turns, _PROMPT),
        sampled_lengths=np.full(n_turns, _SAMPLED),
        starts=starts,
    )


def _groups(n_trials: int) -> Iterator[list[TokenTrajectory]]:
    generator = np.random.default_rng(0)
    for first in range(0, n_trials, _GROUP):
        trials = range(first, min(first + _GROUP, n_trials))
        yield [_trajectory(generator, trial, *part) for trial in trials for part in (("main", 40), ("sub-1", 10))]


def _interactions(trajectory: TokenTrajectory) -> list[Interaction]:
    """Return the calls behind a trajectory, each with its whole prompt, as a client of the port sees them."""
    calls: list[Interaction] = []
    history: tuple[int, ...] = ()
    ids, logprobs = trajectory.ids.tolist(), trajectory.logprobs.tolist()
    segment = -1
    for turn, name in enumerate(trajectory.interactions):
        start = turn * (_PROMPT + _SAMPLED)
        segment += bool(trajectory.starts[turn])
        prompt = (*(() if trajectory.starts[turn] else history), *ids[start : start + _PROMPT])
        sampled = tuple(ids[start + _PROMPT : start + _PROMPT + _SAMPLED])
        calls.append(
            Interaction(
                interaction_id=name,
                trial_id=trajectory.trial_id,
                sequence=turn,
                agent=trajectory.agent,
                segment=segment,
                purpose=Purpose.AGENT,
                sampler_version="base",
                prompt_ids=prompt,
                sampled_ids=sampled,
                logprobs=tuple(logprobs[turn * _SAMPLED : (turn + 1) * _SAMPLED]),
                stop_reason=StopReason.STOP,
                temperature=1.0,
                seed=0,
            )
        )
        history = (*prompt, *sampled)
    return calls


def measure(groups: Sequence[Sequence[TokenTrajectory]], tables: Any) -> dict[str, float]:
    """Return CPU seconds of each phase over all groups."""
    spent = {"pack_s": 0.0, "check_s": 0.0, "write_s": 0.0}
    for index, group in enumerate(groups):
        marks = [time.process_time()]
        datums = pack_group(group, advantages=[0.5] * len(group), group=index)
        marks.append(time.process_time())
        check_rows(datums, group, [0.5] * len(group))
        marks.append(time.process_time())
        tables.write(datums)
        marks.append(time.process_time())
        for phase, start, end in zip(spent, marks[:-1], marks[1:], strict=True):
            spent[phase] += end - start
    return spent


def measure_reading(group: Sequence[TokenTrajectory]) -> dict[str, int]:
    """Return tokens per CPU second of what comes before: evidence bytes to arrays, arrays to trajectories."""
    published = [(trajectory.trial_id, *_published(trajectory)) for trajectory in group]
    marks = [time.process_time()]
    decoded = [(trial_id, decode_calls(data, ref)) for trial_id, data, ref in published]
    marks.append(time.process_time())
    for trial_id, calls in decoded:
        stitch(calls, trial_id=trial_id)
    marks.append(time.process_time())
    n_tokens = sum(len(trajectory.ids) for trajectory in group)
    return {name: round(n_tokens / (marks[at + 1] - marks[at])) for at, name in enumerate(("decode", "stitch"))}


def _published(trajectory: TokenTrajectory) -> tuple[bytes, EvidenceRef]:
    calls = _interactions(trajectory)
    data = encode_trial(trajectory.trial_id, calls)
    return data, reference(ObjectRef(digest=digest_bytes(data), size_bytes=len(data)), calls)


def _store(directory: str | None) -> Store:
    if directory is None:
        return NamingStore()
    from adapters.stores.directory import DirectoryStore

    return DirectoryStore(Path(directory))


def main() -> None:
    """Measure and print one JSON object."""
    from adapters.stores.arrow import ArrowDatumTables

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--store", help="an empty directory, to write durably instead of only naming the bytes")
    options = parser.parse_args()
    groups = list(_groups(options.trials))
    n_tokens = sum(len(trajectory.ids) for group in groups for trajectory in group)
    runs = [measure(groups, ArrowDatumTables(_store(options.store))) for _ in range(options.repeats)]
    reading = [measure_reading(groups[0]) for _ in range(options.repeats)]
    totals = [sum(run.values()) for run in runs]
    cpu_s = statistics.median(totals)
    result = {
        "tokens": n_tokens,
        "cpu_s": round(cpu_s, 4),
        "tokens_per_cpu_s": round(n_tokens / cpu_s),
        "range_tokens_per_cpu_s": [round(n_tokens / max(totals)), round(n_tokens / min(totals))],
        "target_tokens_per_cpu_s": _TARGET,
        "phases": {phase: round(statistics.median(run[phase] for run in runs), 4) for phase in runs[0]},
        "reading_tokens_per_cpu_s": {name: statistics.median(run[name] for run in reading) for name in reading[0]},
        "store": "directory" if options.store else "digest only",
        "trials": options.trials,
        "repeats": options.repeats,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
