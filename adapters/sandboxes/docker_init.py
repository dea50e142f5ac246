"""A container's first process as the host sees it: the way to its files, its network and its end.

Process ids are used again, and a container may end its own first process. So every path below ``/proc/<pid>`` is opened
first, and used only when a pidfd says that the process was still the same afterwards.

Source: pidfd_open(2): the descriptor is readable once the process has ended.
"""

import os
import select
import signal
import weakref
from contextlib import suppress
from pathlib import Path

from adapters.sandboxes.cgroups import Group, group_of
from domain.errors import SandboxError

_KILL_MS = 5000


class Init:
    """The first process of a running container.

    Args:
        pid: as the engine tells it.

    Raises:
        SandboxError: it is not visible here, or has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = -1
        try:
            if pid:
                self._pidfd = os.pidfd_open(pid)
                self._closing = weakref.finalize(self, os.close, self._pidfd)
            os.close(self.open_root())
        except (OSError, SandboxError) as error:
            self.close()
            raise SandboxError(
                "the processes of the Docker engine are not visible here",
                hint="run Synth as root on the machine of the engine",
            ) from error
        self.group: Group | None = group_of(Path(f"/proc/{pid}"))

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        watching = select.poll()
        if self._pidfd >= 0:
            watching.register(self._pidfd, select.POLLIN)
        return self._pidfd >= 0 and not watching.poll(0)

    def open_root(self) -> int:
        """Return a descriptor of the container's root directory. Raises SandboxError when it has ended."""
        return self._open("root", os.O_RDONLY | os.O_DIRECTORY)

    def open_network(self) -> int:
        """Return a descriptor of its network namespace. Raises SandboxError when it has ended."""
        return self._open("ns/net", os.O_RDONLY)

    def _open(self, name: str, flags: int) -> int:
        try:
            descriptor = os.open(f"/proc/{self.pid}/{name}", flags | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise SandboxError("the container's first process has ended") from error
        if self.is_alive:
            return descriptor
        os.close(descriptor)
        raise SandboxError("the container's first process has ended")

    def kill(self) -> None:
        """Kill it, and with it all processes of the container, without the engine; blocks until they are dead.

        Source: pid_namespaces(7): the first process of a namespace ends after all others.
        """
        watching = select.poll()
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            watching.register(self._pidfd, select.POLLIN)
            watching.poll(_KILL_MS)

    def close(self) -> None:
        """Let go of it."""
        if self._pidfd >= 0:
            self._pidfd = -1
            self._closing()
