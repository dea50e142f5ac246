"""The Kubernetes API over one connection: plain JSON in and out, patience where the server asks for it.

Credentials, certificates and their renewal are the business of ``kubernetes_asyncio``; objects stay as the API writes
them, since a manifest that is read in a test is worth more than two hundred generated classes.

Source: Kubernetes API v1 conventions; RFC 9110, section 10.2.3 (Retry-After).
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_faults import ApiUnreachableError, answer_fault
from adapters.sandboxes.kubernetes_objects import items, section
from domain.errors import ConfigurationError

Json = dict[str, Any]

_REQUEST_S = 30.0
_PATIENCE_S = 60.0
"""How long 429 and an API server that does not answer are waited out."""
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0
_AGAIN = frozenset({429, 500, 502, 503, 504})
_CONNECTIONS = 1024
"""A running command of each box holds one."""
_SUBPROTOCOL = "v4.channel.k8s.io"
_HEARTBEAT_S = 30.0
_CLOSE_S = 2.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Api:
    """One connection; every method runs in the loop that made it."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self._session = client.rest_client.pool_manager
        self.namespace = namespace

    @classmethod
    async def open(cls, cluster: Cluster) -> "Api":
        """Return a connection. Raises ConfigurationError when there are no usable credentials."""
        from kubernetes_asyncio import config as reader
        from kubernetes_asyncio.client import ApiClient, Configuration

        load: Any = reader
        settings: Any = Configuration()
        namespace = ""
        try:
            if not cluster.kubeconfig:
                load.load_incluster_config(client_configuration=settings)
                namespace = _account_namespace()
            else:
                loader: Any = await load.load_kube_config(
                    config_file=cluster.kubeconfig,
                    context=cluster.context or None,
                    client_configuration=settings,
                    persist_config=False,
                )
                namespace = str(section(loader.current_context, "context").get("namespace") or "")
        except (reader.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"SYNTH_KUBECONFIG: {cluster.kubeconfig}: {error}") from error
        settings.connection_pool_maxsize = _CONNECTIONS
        return cls(ApiClient(settings), cluster.namespace or namespace or "default")

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._client.configuration.host)

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of a kind's objects in our namespace, or of one of them."""
        group = "/apis/networking.k8s.io/v1" if kind == "networkpolicies" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        *,
        absent: Sequence[int] = (),
        patience_s: float = _PATIENCE_S,
    ) -> Json | None:
        """Return the answer's object, None for a status that means there is none.

        Args:
            method: HTTP method.
            path: below the server's address.
            body: object to send.
            query: parameters.
            absent: statuses that are no error here, 404 or 409.
            patience_s: how long 429 and silence are waited out.

        Raises:
            PodError: of the class that names the refusal.
        """
        deadline_s = time.monotonic() + patience_s
        pause_s = _PAUSE_S
        while True:
            status, answer, asked_s = await self._once(method, path, body, query)
            if 200 <= status < 300:  # noqa: PLR2004 - success in HTTP
                return answer
            if status in absent:
                return None
            left_s = deadline_s - time.monotonic()
            if status not in _AGAIN or left_s <= 0:
                message = str(answer.get("message") or "")
                raise answer_fault(status, message, f"{method} {path}")
            await asyncio.sleep(min(asked_s or pause_s, left_s, _LONGEST_PAUSE_S))
            pause_s *= 2

    async def _once(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str] | None
    ) -> tuple[int, Json, float]:
        """Return status, object, and how many seconds the server asks us to wait; a silent server is 503."""
        import aiohttp

        headers = await self._headers()
        data = None if body is None else json.dumps(body)
        url = self._url(path, list((query or {}).items()))
        limit = aiohttp.ClientTimeout(total=_REQUEST_S)
        try:
            async with self._session.request(method, url, data=data, headers=headers, timeout=limit) as answer:
                text = await answer.text()
                return int(answer.status), _object(text), _seconds(answer.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as error:
            return 503, {"message": f"no answer from {self.server}: {type(error).__name__}: {error}"}, 0.0

    async def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    def _url(self, path: str, query: Sequence[tuple[str, str]]) -> str:
        return f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")

    async def pages(self, kind: str, selector: str) -> tuple[list[Mapping[str, Any]], str]:
        """Return all objects of a kind with matching labels, and the version of the listing."""
        found: list[Mapping[str, Any]] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            page = await self.ask("GET", self.path(kind), query=query) or {}
            found += items(page, "items")
            about = section(page, "metadata")
            if not about.get("continue"):
                return found, str(about.get("resourceVersion") or "")
            query["continue"] = str(about["continue"])

    async def lines(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Json]:
        """Yield the objects of a watch as they come, until the server ends it.

        Raises:
            PodError: the server refuses, 410 included, or nothing comes for ``silence_s``.
        """
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S, sock_read=silence_s)
        url = self._url(path, list(query.items()))
        try:
            async with self._session.get(url, headers=await self._headers(), timeout=limit) as answer:
                if answer.status != 200:  # noqa: PLR2004 - OK in HTTP
                    message = str(_object(await answer.text()).get("message") or "")
                    raise answer_fault(int(answer.status), message, f"watch {path}")
                async for line in answer.content:
                    if line.strip():
                        yield json.loads(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ApiUnreachableError(f"watch {path}: {type(error).__name__}: {error}") from error

    @asynccontextmanager
    async def exec(self, pod: str, argv: Sequence[str]) -> AsyncGenerator[Any]:
        """Open a WebSocket to a program that is started in a pod.

        Raises:
            PodError: it could not be opened.
        """
        import aiohttp

        query = [("container", "box"), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        query += [("command", part) for part in argv]
        url = self._url(self.path("pods", pod) + "/exec", query)
        bounds: Any = aiohttp.ClientWSTimeout
        deadline_s, pause_s = time.monotonic() + _PATIENCE_S, _PAUSE_S
        while True:
            try:
                socket = await self._session.ws_connect(
                    url,
                    headers=await self._headers(),
                    protocols=(_SUBPROTOCOL,),
                    max_msg_size=0,
                    heartbeat=_HEARTBEAT_S,
                    timeout=bounds(ws_close=_CLOSE_S),
                )
                break
            except aiohttp.WSServerHandshakeError as error:
                if error.status not in {429, 503} or time.monotonic() > deadline_s:
                    raise answer_fault(int(error.status), str(error.message), f"exec in pod {pod}") from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if time.monotonic() > deadline_s:
                    raise ApiUnreachableError(f"exec in pod {pod}: {type(error).__name__}: {error}") from error
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))
            pause_s *= 2
        try:
            yield socket
        finally:
            await socket.close()


def has_account() -> bool:
    """Say whether we run in a pod with a service account."""
    return _ACCOUNT.is_dir()


def _account_namespace() -> str:
    return (_ACCOUNT / "namespace").read_text().strip()


def _object(text: str) -> Json:
    """Return the object of an answer; a proxy on the way may answer with a page instead."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return {"message": text[:300]}
    return cast("Json", found) if isinstance(found, dict) else {"message": text[:300]}


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdigit() else 0.0
