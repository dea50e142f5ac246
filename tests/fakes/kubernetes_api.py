"""An API server without nodes: objects in memory, and statuses, answers and hang-ups that a test writes.

What a real cluster does rarely (429, 410, eviction, a lost node) is said here in the API's own words. Pods that run
programs are the business of the tests' double and of real clusters.
"""

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

Thing = dict[str, Any]

_LISTING = "/{group:api/v1|apis/networking.k8s.io/v1}/namespaces/default/{kind}"


class ScriptedApi:
    """The server's state; tests change it while it serves."""

    def __init__(self) -> None:
        self.things: defaultdict[str, dict[str, Thing]] = defaultdict(dict)
        self.answers: list[tuple[str, str, int, str, Mapping[str, str]]] = []
        """Method, kind, status, message and headers of the next answers to such a request, instead of the real one."""
        self.namespace_labels: dict[str, str] = {}
        self.asked: list[str] = []
        """Method and kind of each request."""
        self._told: list[tuple[int, Thing]] = []
        self.watches: list[asyncio.Queue[Thing | None]] = []
        self._numbers = itertools.count(1)
        self._sockets: list[tuple[str, web.WebSocketResponse]] = []

    def tell(self, kind: str, thing: Thing) -> None:
        """Send an event to every watch."""
        version = next(self._numbers)
        thing["metadata"]["resourceVersion"] = str(version)
        event: Thing = json.loads(json.dumps({"type": kind, "object": thing}))
        self._told.append((version, event))
        for queue in self.watches:
            queue.put_nowait(event)

    def set_status(self, name: str, status: Thing) -> None:
        """Give a pod a status, as its node or its scheduler does."""
        pod = self.things["pods"][name]
        pod["status"] = status
        self.tell("MODIFIED", pod)

    async def hang_up(self, name: str) -> None:
        """End the programs in a pod without a word."""
        for pod, socket in self._sockets:
            if pod == name:
                await socket.close()

    def end_watches(self, event: Thing | None = None) -> None:
        """Send one last event, if any, and end every watch."""
        for queue in self.watches:
            if event is not None:
                queue.put_nowait(event)
            queue.put_nowait(None)

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer what is asked of a kind: list, watch, create."""
        kind = request.match_info["kind"]
        asked = "WATCH" if request.query.get("watch") else request.method
        if (answer := self._scripted(asked, kind)) is not None:
            return answer
        if asked == "WATCH":
            return await self._watch(request)
        if asked == "POST":
            thing: Thing = await request.json()
            name = thing["metadata"]["name"]
            if name in self.things[kind]:
                return _refused(409, f"{name} already exists", {})
            thing["metadata"]["uid"] = f"uid-{next(self._numbers)}"
            self.things[kind][name] = thing
            if kind == "pods":
                thing["status"] = {"phase": "Pending"}
                self.tell("ADDED", thing)
            return web.json_response(thing, status=201)
        items = list(self.things[kind].values())
        return web.json_response({"items": items, "metadata": {"resourceVersion": str(next(self._numbers))}})

    async def one(self, request: web.Request) -> web.StreamResponse:
        """Answer what is asked of one object: get, delete."""
        kind, name = request.match_info["kind"], request.match_info["name"]
        if (answer := self._scripted(request.method, kind)) is not None:
            return answer
        thing = self.things[kind].get(name)
        if thing is None:
            return _refused(404, f"{name} not found", {})
        if request.method == "DELETE":
            del self.things[kind][name]
            if kind == "pods":
                self.tell("DELETED", thing)
        return web.json_response(thing)

    async def program(self, request: web.Request) -> web.StreamResponse:
        """Open the connection of an exec in a pod that runs, and say nothing."""
        name = request.match_info["name"]
        pod = self.things["pods"].get(name)
        if pod is None or pod["status"].get("phase") != "Running":
            return _refused(500, "container not running", {})
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        self._sockets.append((name, socket))
        async for _ in socket:
            pass
        return socket

    async def namespace(self, request: web.Request) -> web.Response:
        """Answer what the namespace is like."""
        del request
        return web.json_response({"metadata": {"name": "default", "labels": self.namespace_labels}})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Thing | None] = asyncio.Queue()
        for version, event in self._told:
            if version > int(request.query["resourceVersion"]):
                queue.put_nowait(event)
        self.watches.append(queue)
        try:
            while (event := await queue.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self.watches.remove(queue)
        return response

    def _scripted(self, method: str, kind: str) -> web.Response | None:
        self.asked.append(f"{method} {kind}")
        for number, (wanted, of, status, message, headers) in enumerate(self.answers):
            if (wanted, of) == (method, kind):
                del self.answers[number]
                return _refused(status, message, headers)
        return None


def _refused(status: int, message: str, headers: Mapping[str, str]) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status, headers=headers)


async def _version(request: web.Request) -> web.Response:
    del request
    return web.json_response({"gitVersion": "v0"})


@asynccontextmanager
async def scripted_api(directory: Path) -> AsyncGenerator[tuple[ScriptedApi, str]]:
    """Serve in this event loop until the block ends; yields the state and the path of a kubeconfig."""
    api = ScriptedApi()
    application = web.Application()
    application.router.add_get("/version", _version)
    application.router.add_get("/api/v1/namespaces/default", api.namespace)
    application.router.add_route("*", _LISTING, api.listing)
    application.router.add_route("*", _LISTING + "/{name}", api.one)
    application.router.add_get("/api/v1/namespaces/default/pods/{name}/exec", api.program)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    path = directory / "kubeconfig"
    path.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    try:
        yield api, str(path)
    finally:
        api.end_watches()
        await runner.cleanup()


def _kubeconfig(server: str) -> Thing:
    context = {"cluster": "scripted", "user": "tests", "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "scripted",
        "contexts": [{"name": "scripted", "context": context}],
        "clusters": [{"name": "scripted", "cluster": {"server": server}}],
        "users": [{"name": "tests", "user": {"token": "t"}}],
    }
