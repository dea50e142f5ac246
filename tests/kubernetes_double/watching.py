"""Watches: what happened since a version, then what happens, as lines of JSON.

Source: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks".
"""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from aiohttp import web

from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.kinds import Kind
from tests.kubernetes_double.selectors import Test
from tests.kubernetes_double.store import Change, Store
from tests.kubernetes_double.tables import Shape

Json = dict[str, Any]

_USUAL_S = 1800.0
_BOOKMARK_S = 20.0


async def watch(
    request: web.Request, store: Store, kind: Kind, namespace: str, test: Test, shape: Shape
) -> web.StreamResponse:
    """Answer a watch until its time is over, its version expires or the client goes. Raises RefusalError (410)."""
    query = request.query
    queue: asyncio.Queue[Change] = asyncio.Queue()
    version = query.get("resourceVersion", "")
    if version and not version.isdigit():
        raise RefusalError(400, f"Invalid value: {version!r}: resourceVersion must be a number")
    first = _first(store, kind, namespace, test) if version in {"", "0"} else []
    for change in [] if version in {"", "0"} else store.since(int(version)):
        queue.put_nowait(change)
    store.listen(queue.put_nowait)
    expiring = asyncio.ensure_future(store.expiring.wait())
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    try:
        await response.prepare(request)
        for event in first:
            await _write(response, shape, event)
        if query.get("sendInitialEvents") == "true":
            about = {"annotations": {"k8s.io/initial-events-end": "true"}}
            await _write(response, shape, _bookmark(store, kind, about))
        until_s = time.monotonic() + float(query.get("timeoutSeconds") or _USUAL_S)
        stream = _Stream(kind, namespace, test, shape, bookmarks=query.get("allowWatchBookmarks") == "true")
        await stream.run(response, store, queue, until_s, expiring)
    except ConnectionError:
        pass  # the client is gone
    finally:
        store.unlisten(queue.put_nowait)
        expiring.cancel()
    return response


def _first(store: Store, kind: Kind, namespace: str, test: Test) -> list[Json]:
    return [{"type": "ADDED", "object": thing} for thing in store.find(kind, namespace, test)]


def _bookmark(store: Store, kind: Kind, about: Json) -> Json:
    told = {"kind": kind.name, "apiVersion": kind.api_version}
    return {"type": "BOOKMARK", "object": {**told, "metadata": {"resourceVersion": str(store.version), **about}}}


async def _write(response: web.StreamResponse, shape: Shape, event: Json) -> None:
    if event["type"] not in {"ERROR", "BOOKMARK"}:
        event = {**event, "object": shape([event["object"]], event["object"]["metadata"])}
    await response.write(json.dumps(event).encode() + b"\n")


class _Stream:
    """What one watch wants to know."""

    def __init__(self, kind: Kind, namespace: str, test: Test, shape: Shape, *, bookmarks: bool) -> None:
        self._kind = kind
        self._namespace = namespace
        self._test = test
        self._shape = shape
        self._bookmarks = bookmarks

    async def run(
        self,
        response: web.StreamResponse,
        store: Store,
        queue: "asyncio.Queue[Change]",
        until_s: float,
        expiring: "asyncio.Future[Any]",
    ) -> None:
        """Write events as they come."""
        while (left_s := until_s - time.monotonic()) > 0 and not expiring.done():
            taking = asyncio.ensure_future(queue.get())
            pause_s = min(left_s, _BOOKMARK_S if self._bookmarks else left_s)
            await asyncio.wait({taking, expiring}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                event = self._event(taking.result())
            else:
                taking.cancel()
                event = _bookmark(store, self._kind, {}) if self._bookmarks and not expiring.done() else None
            if event is not None:
                await _write(response, self._shape, event)
        if expiring.done():
            error = RefusalError(410, "too old resource version").status
            with suppress(ConnectionError):
                await _write(response, self._shape, {"type": "ERROR", "object": error})

    def _event(self, change: Change) -> Json | None:
        """Return what a change is for this watch: what begins to match comes, what ceases to match goes."""
        plural, namespace, _ = change.key
        if plural != self._kind.plural or self._namespace not in {"", namespace}:
            return None
        is_here = change.now is not None and self._test(change.now)
        was_here = change.before is not None and self._test(change.before)
        if is_here:
            return {"type": "MODIFIED" if was_here else "ADDED", "object": change.now}
        if not was_here:
            return None
        assert change.before is not None
        about = {**change.before["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**change.before, "metadata": about}}
