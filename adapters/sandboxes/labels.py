"""The label that every box directory carries, and whether the process that made it still lives."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "label.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Whose box it is. Process ids are reused, so the owner's start time belongs to its identity."""

    box_id: str
    experiment_id: str
    trial_id: str
    fence: int
    deadline_ms: int
    owner_pid: int
    owner_started: int
    """Clock ticks from boot to the owner's start."""
    boot: str

    def owner_lives(self) -> bool:
        """Say whether the very process that made the box is still running."""
        return self.boot == boot_id() and started(self.owner_pid) == self.owner_started


def boot_id() -> str:
    """Return what names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, None when it has ended.

    Source: proc(5), field 22 of ``stat``; fields are counted after the last ``)``, state Z is an ended process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def write_label(directory: Path, label: Label) -> None:
    """Write the label of a box directory."""
    (directory / _FILE).write_text(json.dumps(asdict(label), sort_keys=True))


def read_label(directory: Path) -> Label | None:
    """Return the label, None when the directory has no whole one (its maker died before it was written)."""
    try:
        return Label(**json.loads((directory / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def this_process() -> tuple[int, int]:
    """Return our own process id and start time."""
    return os.getpid(), started(os.getpid()) or 0
