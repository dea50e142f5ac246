"""Child processes of ``synth up``: started in their own sessions, restarted when they die, ended together."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

STOP_S = 10.0
"""How long processes may take to end after SIGTERM: longer than the model process lets calls under way finish. Then
they are killed, which loses nothing that was finished; boxes that a run leaves are ended by the next janitor."""
_SILENCE_S = 3.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0
"""A process that lived this long starts again at once when it dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    created: float
    """Seconds since 1970, as the kernel counts it."""

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Return the identity of a living process."""
        try:
            process = psutil.Process(pid)
            created = process.create_time()
        except psutil.NoSuchProcess:
            return None
        return cls(pid=pid, created=created)

    def lives(self) -> bool:
        """Say whether the process still runs; a zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(slots=True, kw_only=True)
class Service:
    """One process that should run."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    stale: tuple[Path, ...] = ()
    """Files that only a living process may leave; removed before each start."""
    process: subprocess.Popen[bytes] | None = None
    identity: Identity | None = None
    n_starts: int = 0
    started_s: float = 0.0
    wait_s: float = _FIRST_WAIT_S
    due_s: float = 0.0

    def start(self) -> None:
        """Start it. Signals are at their defaults: this process handles SIGINT, and handlers end with exec."""
        for path in self.stale:
            path.unlink(missing_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own commands
                self.argv,
                cwd=self.directory,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.identity = Identity.of(self.process.pid)
        self.n_starts += 1
        self.started_s = time.monotonic()

    def is_running(self) -> bool:
        """Say whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def revive(self) -> bool:
        """Start a dead process again, later and later while it keeps dying; say whether it was started now."""
        if self.process is None or self.process.poll() is None:
            return False
        now_s = time.monotonic()
        if self.due_s == 0.0:
            lived_s = now_s - self.started_s
            self.wait_s = _FIRST_WAIT_S if lived_s > _STEADY_S else min(self.wait_s * 2, _LONGEST_WAIT_S)
            self.due_s = now_s + self.wait_s
        if now_s < self.due_s:
            return False
        self.due_s = 0.0
        self.start()
        return True


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """The services together."""

    services: list[Service] = field(default_factory=list[Service])

    def start(self, service: Service) -> None:
        """Start a service and keep it running from now on."""
        service.start()
        self.services.append(service)

    def revive(self) -> list[Service]:
        """Start again what has died; returns what was started."""
        return [service for service in self.services if service.revive()]

    def stop(self, say: Callable[[str], None] = lambda _: None) -> None:
        """End every service with its descendants: first politely, then not; ``say`` is told what is waited for."""
        found = {service.name: service.identity for service in self.services if service.identity is not None}
        end([*found.values()], timeout_s=STOP_S, waiting=Farewell(services=found, say=say))
        for service in self.services:
            if service.process is not None:
                service.process.wait()


@dataclass(slots=True, kw_only=True)
class Farewell:
    """Says every few seconds who has not ended yet."""

    services: Mapping[str, Identity]
    say: Callable[[str], None]
    started_s: float = field(default_factory=time.monotonic)
    said_s: float = field(default_factory=time.monotonic)

    def __call__(self) -> None:
        """Look who is left."""
        now_s = time.monotonic()
        if now_s - self.said_s < _SILENCE_S:
            return
        self.said_s = now_s
        words = {"model": "model (calls or a step under way)", "code": "code (runs of units)"}
        left = [words.get(name, name) for name, identity in self.services.items() if identity.lives()]
        names = ", ".join(left) or "processes of runs"
        self.say(f"waiting for {names}; killed after {STOP_S:.0f} s, {now_s - self.started_s:.0f} s have passed")


def end(identities: Sequence[Identity], *, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> None:
    """End processes that lead their own sessions, and all that these sessions hold.

    Args:
        identities: the leaders; those that are gone or were replaced by another process are left alone.
        timeout_s: how long they may take after SIGTERM.
        waiting: called again and again while some have not ended.
    """
    leaders = [identity for identity in identities if identity.lives()]
    members = [member for leader in leaders for member in _session(leader.pid)]
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and any(member.lives() for member in members):
        waiting()
        time.sleep(0.05)
    for member in members:
        if member.lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
    while time.monotonic() < deadline_s + 1.0 and any(member.lives() for member in members):
        time.sleep(0.02)


def _session(leader: int) -> list[Identity]:
    """Return the living processes of a session, its leader last, so that nobody is orphaned before his turn."""
    found: list[Identity] = []
    for pid in psutil.pids():
        try:
            inside = os.getsid(pid) == leader
        except (ProcessLookupError, PermissionError):
            continue
        identity = Identity.of(pid) if inside else None
        if identity is not None:
            found.append(identity)
    return sorted(found, key=lambda identity: identity.pid == leader)
