"""What one process has of one cluster: a thread with an event loop, a connection, a watch, and what probes found."""

import asyncio
import atexit
import functools
from typing import Any

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_labels import owner_label
from adapters.sandboxes.kubernetes_loop import Loop
from adapters.sandboxes.kubernetes_watch import Watch


class Link:
    """Opened when it is first needed; everything that is awaited here runs in its own loop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = Loop("synth-kubernetes")
        self.probes: dict[str, asyncio.Task[Any]] = {}
        """By name, what was found out about the cluster or is being found out: once for a process."""
        self.has_reached_proxy = False
        self._opening: asyncio.Lock | None = None
        self._opened: tuple[Api, Watch] | None = None

    async def open(self) -> tuple[Api, Watch]:
        """Return connection and watch. Raises ConfigurationError."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._opened is None:
                api = await Api.open(self.cluster)
                self._opened = api, Watch(api, f"synth/owner={owner_label()}")
            return self._opened

    async def close(self) -> None:
        """Hang up."""
        if self._opened is not None:
            await self._opened[0].close()


@functools.cache
def link_to(cluster: Cluster) -> Link:
    """Return this process's link to a cluster; it is closed when the process ends."""
    link = Link(cluster)
    atexit.register(lambda: link.loop.close(link.close()))
    return link
