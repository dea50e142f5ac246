"""The API server: discovery, objects, watches, and answers that a test asks to go wrong.

Source: Kubernetes API concepts; what kubectl 1.32 and our adapter ask for.
"""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

from aiohttp import web

from tests.kubernetes_double import admission, streams
from tests.kubernetes_double.engine import Engine
from tests.kubernetes_double.node import Node
from tests.kubernetes_double.state import KINDS, Refused, State, Thing, now, part, selects

_BOOKMARK_S = 10.0
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Faults:
    """What goes wrong next, one entry for each answer: (method, kind of object, what)."""

    answers: list[tuple[str, str, Refused | None]] = field(default_factory=list[tuple[str, str, Refused | None]])
    """``WATCH`` and ``EXEC`` are methods of their own; None hangs up without an answer."""

    def take(self, method: str, plural: str) -> bool:
        """Return False when nothing goes wrong, True to hang up. Raises Refused."""
        for number, (wanted, of, answer) in enumerate(self.answers):
            if (wanted, of) == (method, plural):
                del self.answers[number]
                if answer is not None:
                    raise answer
                return True
        return False


class Server:
    """Answers requests over the state of one cluster."""

    def __init__(self, state: State, node: Node, engine: Engine, token: str) -> None:
        self.faults = Faults()
        self._state, self._node, self._engine, self._token = state, node, engine, token

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=1 << 30, middlewares=[self._guard])
        app.router.add_get("/version", self._version)
        app.router.add_get("/{tail:api|apis|api/v1|apis/networking.k8s.io/v1}", self._discover)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        for group in ("/api/v1", "/apis/networking.k8s.io/v1"):
            spaced = group + "/namespaces/{namespace}/{kind}"
            app.router.add_route("*", spaced, self._collection)
            app.router.add_route("*", spaced + "/{name}", self._one)
            app.router.add_route("*", group + "/{kind}", self._collection)
            app.router.add_route("*", group + "/{kind}/{name}", self._one)
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._authorize(request)
            return await handler(request)
        except Refused as refused:
            headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
            return web.json_response(refused.status(), status=refused.code, headers=headers)
        except web.HTTPNotFound:
            missing = Refused(404, "NotFound", "the server could not find the requested resource")
            return web.json_response(missing.status(), status=404)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return web.json_response(Refused(400, "BadRequest", str(error)).status(), status=400)

    def _authorize(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            raise Refused(401, "Unauthorized", "Unauthorized")

    async def _version(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0-double"})

    async def _discover(self, request: web.Request) -> web.Response:
        where = request.path.strip("/")
        if where == "api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if where == "apis":
            version = {"groupVersion": "networking.k8s.io/v1", "version": "v1"}
            group = {"name": "networking.k8s.io", "versions": [version], "preferredVersion": version}
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
        wanted = "v1" if where == "api/v1" else "networking.k8s.io/v1"
        resources: list[Thing] = [
            {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": _VERBS}
            | ({"shortNames": ["po"]} if plural == "pods" else {})
            for plural, (api, kind, namespaced) in KINDS.items()
            if api == wanted
        ]
        if wanted == "v1":
            inner = {"namespaced": True, "kind": "Pod", "verbs": ["get", "create"]}
            resources += [{"name": f"pods/{name}", **inner} for name in ("exec", "log")]
        body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": wanted, "resources": resources}
        return web.json_response(body)

    async def _review(self, request: web.Request) -> web.Response:
        body: Thing = await request.json()
        return web.json_response(body | {"status": {"allowed": True}}, status=201)

    @staticmethod
    def _plural(request: web.Request) -> str:
        plural = request.match_info["kind"]
        if plural not in KINDS:
            raise web.HTTPNotFound
        return plural

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = self._plural(request), request.match_info.get("namespace", "")
        method = "WATCH" if request.query.get("watch") in {"1", "true"} else request.method
        if self.faults.take(method, plural):
            raise ConnectionResetError
        if method == "WATCH":
            return await self._watch(request, plural, namespace)
        if method == "POST":
            return web.json_response(self._create(plural, namespace, await request.json()), status=201)
        if method != "GET":
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        api, kind, _ = KINDS[plural]
        found = [thing for thing in self._state.all(plural, namespace or None) if _chosen(thing, request)]
        meta = {"resourceVersion": self._state.version}
        return web.json_response({"kind": f"{kind}List", "apiVersion": api, "metadata": meta, "items": found})

    def _create(self, plural: str, namespace: str, thing: Thing) -> Thing:
        if namespace:
            self._state.get("namespaces", "", namespace)
        admission.check(self._state, plural, namespace, thing)
        if plural == "pods":
            thing["status"] = {"phase": "Pending", "qosClass": "Burstable"}
            thing["spec"].setdefault("terminationGracePeriodSeconds", 30)
            thing["spec"].setdefault("restartPolicy", "Always")
        made = self._state.add(plural, namespace, thing)
        answer = copy.deepcopy(made)
        if plural == "pods":
            self._node.take(made)
        return answer

    async def _one(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = self._plural(request), request.match_info.get("namespace", "")
        if self.faults.take(request.method, plural):
            raise ConnectionResetError
        thing = self._state.get(plural, namespace, request.match_info["name"])
        if request.method == "DELETE":
            return web.json_response(
                self._delete(plural, thing, await request.json() if request.can_read_body else {}, request)
            )
        if request.method in {"PUT", "PATCH"}:
            _merge(thing, await request.json())
            self._state.changed(plural, thing)
        return web.json_response(thing)

    def _delete(self, plural: str, thing: Thing, options: Thing, request: web.Request) -> Thing:
        meta = thing["metadata"]
        wanted = part(options, "preconditions").get("uid")
        if wanted is not None and wanted != meta["uid"]:
            message = f"the UID in the precondition ({wanted}) does not match the UID in record ({meta['uid']})"
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{meta["name"]}": {message}')
        if plural != "pods":
            self._state.remove(plural, thing)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": meta["name"]}}
        asked = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        grace_s = int(thing["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
        if "deletionTimestamp" not in meta or grace_s == 0:
            meta |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace_s}
            self._state.changed(plural, thing)
            self._ending = asyncio.ensure_future(self._node.end(thing, grace_s))
        return thing

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        queue = self._state.watch(plural, request.query.get("resourceVersion", ""))
        bookmarks = request.query.get("allowWatchBookmarks") in {"1", "true"}
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", 3600))):
                while (event := await self._next(queue, plural)) is not None:
                    if event["type"] == "BOOKMARK" and not bookmarks:
                        continue
                    if event["type"] in {"BOOKMARK", "ERROR"} or _is_of(event["object"], namespace, request):
                        await response.write(json.dumps(event).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._state.unwatch(queue)
        return response

    async def _next(self, queue: "asyncio.Queue[Thing | None]", plural: str) -> Thing | None:
        """Return the next event, a bookmark when nothing happens, None when the watch is over."""
        try:
            return await asyncio.wait_for(queue.get(), _BOOKMARK_S)
        except TimeoutError:
            api, kind, _ = KINDS[plural]
            meta = {"resourceVersion": self._state.version}
            return {"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": api, "metadata": meta}}

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        if self.faults.take("EXEC", "pods"):
            raise ConnectionResetError
        pod = self._state.get("pods", request.match_info["namespace"], request.match_info["name"])
        return await streams.execute(request, self._engine, pod, self._node.container(pod))

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod = self._state.get("pods", request.match_info["namespace"], request.match_info["name"])
        return await streams.logs(request, self._engine, self._node.container(pod))


def _chosen(thing: Thing, request: web.Request) -> bool:
    return selects(thing, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


def _is_of(thing: Thing, namespace: str, request: web.Request) -> bool:
    return (not namespace or thing["metadata"].get("namespace") == namespace) and _chosen(thing, request)


def _merge(into: Thing, patch: Thing) -> None:
    """Merge a patch. Source: RFC 7396."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], cast("Thing", value))
        else:
            into[key] = value
