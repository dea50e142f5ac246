"""The trainer's own durable record of applied steps: one append-only file per run, synced before a step is told."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from adapters.codec import decode, encode
from domain.errors import StoreError, TrainerError, boundary
from domain.ports import ContributionResult, StepResult

_FILE = "applied.jsonl"
_TORN = "applied.torn"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStep:
    """One line: a step, what it consumed, what it gave."""

    schema_version: int = 1
    keys: tuple[str, ...]
    contributions: tuple[ContributionResult, ...]
    result: StepResult


class AppliedLog:
    """Reads and appends the record of one run."""

    def __init__(self, records: Path, run: str) -> None:
        """Name the file; nothing is created before the first step.

        Raises:
            TrainerError: the run's id is no safe file name.
        """
        if not _RUN.fullmatch(run):
            raise TrainerError(f"run id {run!r} is no file name", hint="use letters, digits, dots and dashes")
        self._path = records / run / _FILE

    def read(self) -> tuple[dict[str, AppliedStep], bool]:
        """Return applied steps by update id, and whether the file ends in a torn line.

        Raises:
            TrainerError: a complete line cannot be read.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}, False
        except OSError as error:
            raise TrainerError(f"cannot read {self._path}: {error}") from error
        *lines, rest = data.split(b"\n")
        steps = [decode(AppliedStep, line, error=TrainerError) for line in lines]
        return {step.result.update_id: step for step in steps}, bool(rest)

    def append(self, step: AppliedStep) -> None:
        """Add a line and sync it; a line that cannot be finished is taken back.

        Raises:
            StoreError: it could not be written; the record is unchanged.
        """
        line = encode(step, error=TrainerError) + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    self._write(file.fileno(), line)
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
            for directory in (self._path.parent, self._path.parent.parent):
                _sync_directory(directory)
        except OSError as error:
            raise StoreError(f"cannot record the step in {self._path}: {error}", hint="free disk space") from error

    def set_torn_line_aside(self) -> None:
        """Move a torn last line to a file of its own, once someone has decided where the run continues.

        Raises:
            TrainerError: the files cannot be written.
        """
        with boundary(TrainerError, f"set the torn line of {self._path} aside"):
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            with (self._path.parent / _TORN).open("ab") as aside:
                aside.write(data[whole:] + b"\n")
            with self._path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())

    @staticmethod
    def _write(descriptor: int, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
