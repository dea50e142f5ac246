"""One watch for all pods of this process: what each looks like now, and a way to wait for a change.

The listing comes first; the watch goes on from its version. A version that the server has forgotten (410) costs a new
listing, which also tells which pods went away meanwhile; a connection that ends or fails is taken up again.

Source: Kubernetes API concepts, "Efficient detection of changes".
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_faults import VersionExpiredError
from adapters.sandboxes.kubernetes_objects import Json, name_of, section
from domain.errors import SandboxError, boundary

_WATCH_S = 240
"""How long the server keeps one watch open; a silence longer than that is a broken connection."""
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_GONE = 410


class Watch:
    """The pods with one label, as last seen.

    Args:
        api: where.
        selector: label selector of the pods.
    """

    def __init__(self, api: Api, selector: str) -> None:
        self._api = api
        self._selector = selector
        self._pods: dict[str, Json] = {}
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """What is wrong with the connection, empty while it works."""
        self.n_listings = 0

    def pod(self, name: str) -> Json | None:
        """Return a pod as last seen, None when there is none."""
        return self._pods.get(name)

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def until(self, name: str, met: Callable[[Json | None], Any], timeout_s: float) -> Any:
        """Return what ``met`` gives for a pod as soon as that is not None. Raises TimeoutError."""
        self.start()
        deadline_s = time.monotonic() + timeout_s
        async with self._changed:
            while (found := met(self._pods.get(name))) is None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(self.trouble)
                try:
                    await asyncio.wait_for(self._changed.wait(), min(left_s, 1.0))
                except TimeoutError:
                    continue  # time itself may be what is waited for
            return found

    async def _run(self) -> None:
        pause_s, version = _PAUSE_S, ""
        while True:
            try:
                with boundary(SandboxError, "watch of pods"):
                    version = await self._follow(version or await self._list())
                self.trouble, pause_s = "", _PAUSE_S
            except SandboxError as error:
                self.trouble = error.message
                version = ""
                if not isinstance(error, VersionExpiredError):
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _follow(self, version: str) -> str:
        """Take what one watch says; returns the version to go on from, empty when there must be a new listing."""
        async for event in self._api.lines(self._api.path("pods"), self._query(version), _WATCH_S + 30.0):
            version = await self._take(event, version)
            if not version:
                break
        return version

    def _query(self, version: str) -> dict[str, str]:
        return {
            "watch": "true",
            "labelSelector": self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }

    async def _list(self) -> str:
        pods, version = await self._api.pages("pods", self._selector)
        self.n_listings += 1
        async with self._changed:
            self._pods = {name_of(pod): pod for pod in pods}
            self._changed.notify_all()
        return version

    async def _take(self, event: Json, version: str) -> str:
        """Take one event; returns the version to go on from, empty when there must be a new listing."""
        kind, thing = event.get("type"), section(event, "object")
        if kind == "ERROR":
            self.trouble = str(thing.get("message") or "")
            if thing.get("code") != _GONE:
                await asyncio.sleep(_PAUSE_S)
            return ""
        if kind in {"ADDED", "MODIFIED", "DELETED"}:
            async with self._changed:
                if kind == "DELETED":
                    self._pods.pop(name_of(thing), None)
                else:
                    self._pods[name_of(thing)] = thing
                self._changed.notify_all()
        return str(section(thing, "metadata").get("resourceVersion") or version)
