"""Progress as lines, where no bar can be drawn: a pipe, a log file, a terminal without cursor control."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cli import formats

EVERY_S = 15.0
"""Longest silence while something reports progress."""


@dataclass(slots=True, kw_only=True)
class _Stage:
    """One kind of work under way."""

    started_s: float
    said_s: float
    first: int
    """What was done already; it says nothing about how fast the rest goes."""
    ended: bool = False


@dataclass(slots=True, kw_only=True)
class ProgressLines:
    """A progress callback that says where each ``what`` begins, how far it is every ``EVERY_S``, and where it ends.

    Args:
        say: takes one line.
        monotonic_s: a clock.
    """

    say: Callable[[str], None]
    monotonic_s: Callable[[], float] = time.monotonic
    _stages: dict[str, _Stage] = field(default_factory=dict[str, _Stage])

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` is done."""
        now_s = self.monotonic_s()
        stage = self._stages.get(what)
        if stage is None:
            stage = self._stages[what] = _Stage(started_s=now_s, said_s=now_s, first=done)
            if done < total:
                self.say(f"  {what}: {done:,} of {total:,}")
        if stage.ended:
            return
        elapsed_s = now_s - stage.started_s
        if done >= total:
            stage.ended = True
            self.say(f"  {what}: all {total:,}, {formats.duration(elapsed_s)} elapsed")
        elif now_s - stage.said_s >= EVERY_S:
            stage.said_s = now_s
            new = done - stage.first
            left = f", about {formats.duration(elapsed_s / new * (total - done))} left" if new else ""
            self.say(f"  {what}: {done:,} of {total:,}, {formats.duration(elapsed_s)} elapsed{left}")
