"""The API server: paths, methods and what they do to objects.

Source: Kubernetes API reference; Kubernetes API concepts.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.kubernetes_double import kinds, streams
from tests.kubernetes_double.admission import admit
from tests.kubernetes_double.answers import RefusalError, missing
from tests.kubernetes_double.cluster import Cluster
from tests.kubernetes_double.kinds import Kind
from tests.kubernetes_double.merging import merged
from tests.kubernetes_double.selectors import matcher
from tests.kubernetes_double.store import Key
from tests.kubernetes_double.strict import check_fields
from tests.kubernetes_double.tables import shape_of
from tests.kubernetes_double.watching import watch

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BODY_BYTES = 4 << 20
_VERBS = {"GET": "get", "DELETE": "delete", "PUT": "update", "PATCH": "patch"}


class Server:
    """Answers requests about the objects of a cluster.

    Args:
        cluster: its store, node and controllers.
        token: that requests must bear.
    """

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._token = token

    def application(self) -> web.Application:
        """Return the routes."""
        app = web.Application(middlewares=[self._guard], client_max_size=_BODY_BYTES)
        fixed = {
            "/api": kinds.api_versions,
            "/apis": kinds.api_groups,
            "/version": kinds.version_info,
            "/openapi/v3": kinds.openapi_index,
        }
        for path, answer in fixed.items():
            app.router.add_get(path, _always(answer))
        app.router.add_get("/openapi/v3/api/{version}", _openapi)
        app.router.add_get("/openapi/v3/apis/{group}/{version}", _openapi)
        for base in ("/api/{version}", "/apis/{group}/{version}"):
            app.router.add_get(base, _resources)
            for place in (base, base + "/namespaces/{namespace}"):
                one = place + "/{plural}/{name}"
                if place != base:
                    app.router.add_get(one + "/exec", self._exec)
                    app.router.add_post(one + "/exec", self._exec)
                    app.router.add_get(one + "/log", self._log)
                app.router.add_route("*", place + "/{plural}", self._collection)
                app.router.add_route("*", one, self._one)
                app.router.add_route("*", one + "/status", self._one)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who bears the token; answer refusals and scripted faults."""
        try:
            if request.headers.get("Authorization") != f"Bearer {self._token}":
                return _refusal(RefusalError(401, "Unauthorized"))
            return await self._answered(request, handler)
        except RefusalError as error:
            return _refusal(error)
        except web.HTTPNotFound:
            return _refusal(RefusalError(404, "the server could not find the requested resource"))

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer, or drop the connection when a test has ordered that. Raises RefusalError."""
        drops = self._cluster.faults.met(request.method, request.path_qs)
        answer = web.Response() if drops == 0 else await handler(request)
        if drops is not None and request.transport is not None:
            request.transport.abort()
        return answer

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        """Answer what is asked of a kind: list, watch, create."""
        kind, namespace = _place(request)
        is_watch = request.query.get("watch") in {"true", "1"}
        verbs = {"POST": "create", "GET": "watch" if is_watch else "list", "DELETE": "deletecollection"}
        self._cluster.allow(verbs.get(request.method, ""), kind, namespace)
        if request.method == "POST":
            return await self._create(request, kind, namespace)
        if request.method not in {"GET", "DELETE"} or kind is kinds.REVIEWS:
            raise RefusalError(405, "the server does not allow this method on the requested resource")
        query = request.query
        test = matcher(query.get("labelSelector", ""), query.get("fieldSelector", ""))

        def listing(things: list[Json], about: Json) -> Json:
            return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": about, "items": things}

        if is_watch:
            shape = shape_of(request, kind, lambda things, _about: things[0])
            return await watch(request, self._store, kind, namespace, test, shape)
        found = self._store.find(kind, namespace, test)
        if request.method == "DELETE":
            options = await _body(request)
            for thing in found:
                self._cluster.delete(_key(kind, thing), options)
            return web.json_response(listing(found, {"resourceVersion": str(self._store.version)}))
        page, about = self._store.page(found, int(query.get("limit") or 0), query.get("continue", ""))
        return web.json_response(shape_of(request, kind, listing)(page, about))

    async def _create(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        thing = await _body(request)
        if kind is kinds.REVIEWS:
            return web.json_response(self._cluster.review(thing), status=201)
        if kind.is_namespaced and not namespace:
            raise RefusalError(405, "the server does not allow this method on the requested resource")
        if request.query.get("fieldValidation") == "Strict":
            check_fields(kind.plural, thing)
        admit(kind, namespace, thing)
        made = self._cluster.create(kind, thing, is_dry="dryRun" in request.query)
        return web.json_response(made, status=201)

    async def _one(self, request: web.Request) -> web.StreamResponse:
        """Answer what is asked of one object: get, replace, patch, delete."""
        kind, namespace = _place(request)
        key = (kind.plural, namespace, request.match_info["name"])
        self._cluster.allow(_VERBS.get(request.method, ""), kind, namespace)
        found = self._store.get(key)
        if request.method == "GET":
            shape = shape_of(request, kind, lambda things, _about: things[0])
            return web.json_response(shape([found], found["metadata"]))
        if request.method == "DELETE":
            return web.json_response(self._cluster.delete(key, await _body(request) | _grace(request)))
        if request.method == "PUT":
            thing = await _body(request)
        elif request.method == "PATCH":
            thing = merged(found, await request.json(), request.content_type)
        else:
            raise RefusalError(405, "the server does not allow this method on the requested resource")
        return web.json_response(self._cluster.replace(kind, key, found, thing))

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod, run = self._cluster.running(*_pod(request))
        program = streams.wanted(request)
        self._cluster.check_runs(pod, request.query.get("container", ""))
        assert request.transport is not None
        connection = request.transport
        run.connections.add(connection)
        try:
            return await streams.serve(request, self._cluster.kubelet.engine, run.container, program)
        finally:
            run.connections.discard(connection)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        container = self._cluster.logged(*_pod(request), query.get("container", ""))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        lines = self._cluster.kubelet.engine.log(
            container,
            follow=query.get("follow") == "true",
            tail=query.get("tailLines", "all"),
            stamps=query.get("timestamps") == "true",
        )
        await response.prepare(request)
        try:
            async for data in lines:
                await response.write(data)
        except ConnectionError:
            pass  # the client is gone
        return response


def _refusal(error: RefusalError) -> web.Response:
    return web.json_response(error.status, status=error.code, headers=error.headers)


def _always(answer: Callable[[], Json]) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        del request
        return web.json_response(answer())

    return handler


async def _openapi(request: web.Request) -> web.Response:
    place = request.match_info
    return web.json_response(kinds.openapi(place.get("group", ""), place["version"]))


async def _resources(request: web.Request) -> web.Response:
    place = request.match_info
    found = kinds.resources(place.get("group", ""), place["version"])
    if found is None:
        raise RefusalError(404, "the server could not find the requested resource")
    return web.json_response(found)


def _place(request: web.Request) -> tuple[Kind, str]:
    """Return kind and namespace of a path. Raises RefusalError (404)."""
    place = request.match_info
    kind = kinds.find(place.get("group", ""), place["version"], place["plural"])
    if kind is None:
        raise RefusalError(404, "the server could not find the requested resource")
    return kind, place.get("namespace", "")


def _pod(request: web.Request) -> tuple[str, str]:
    place = request.match_info
    if place["plural"] != "pods":
        raise missing(place["plural"], place["name"])
    return place["namespace"], place["name"]


def _key(kind: Kind, thing: Json) -> Key:
    return kind.plural, thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


async def _body(request: web.Request) -> Json:
    """Return the object that was sent, empty when none was. Raises RefusalError (400, 415)."""
    if request.content_type == "application/vnd.kubernetes.protobuf":
        raise RefusalError(415, "the double reads JSON: use kubectl create -f", reason="UnsupportedMediaType")
    try:
        found = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise RefusalError(400, f"error decoding the body: {error}") from None
    if not isinstance(found, dict):
        raise RefusalError(400, "the body is no object")
    return found  # pyright: ignore[reportUnknownVariableType] - JSON


def _grace(request: web.Request) -> Json:
    seconds = request.query.get("gracePeriodSeconds")
    return {} if seconds is None else {"gracePeriodSeconds": int(seconds)}
