"""One cluster: certificates, a kubeconfig, and a thread in which server and node live.

``python -m tests.kubernetes_double KUBECONFIG`` keeps one running until it is interrupted.
"""

import asyncio
import json
import secrets
import ssl
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web

from tests.kubernetes_double.engine import Engine
from tests.kubernetes_double.node import Node, condition
from tests.kubernetes_double.server import Server
from tests.kubernetes_double.state import State, Thing

T = TypeVar("T")

NAMESPACE = "default"
_START_S = 30.0
_GATEWAY = "172.17.0.1"


class Double:
    """A cluster with one namespace and one node; a context manager.

    Attributes:
        kubeconfig: how kubectl and our adapter reach it.
        state: its objects; change them through :meth:`call` only.
        node: what runs its pods.
        server: its API; ``server.faults`` says what goes wrong next.
    """

    def __init__(self, directory: Path, docker_url: str, *, cpus: float = 16, memory_gib: float = 24) -> None:
        """Prepare.

        Args:
            directory: for certificates and kubeconfig.
            docker_url: engine that runs the pods.
            cpus: what the node can take.
            memory_gib: the same, of memory.
        """
        self.kubeconfig = directory / "kubeconfig"
        self.state = State()
        self._directory, self._engine = directory, Engine(docker_url)
        self._token = secrets.token_urlsafe(24)
        self._allocatable = {
            "cpu": f"{cpus:g}",
            "memory": f"{memory_gib:g}Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
        }
        self.node: Node
        self.server: Server
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes-double", daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        """Start, and write the kubeconfig."""
        self._thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_error: object) -> None:
        """End every pod, and the server."""
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something in the cluster's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def pod(self, name: str) -> Thing:
        """Return a pod as it is stored now."""
        return self.state.get("pods", NAMESPACE, name)

    async def _start(self) -> None:
        certificate, key = self._certificate()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        environment: dict[str, str] = {}
        self.node = Node(self.state, self._engine, environment)
        self.server = Server(self.state, self.node, self._engine, self._token)
        self._runner = web.AppRunner(self.server.app(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        # On every address of this machine: pods dial the API server, as the service account's variables say.
        site = web.TCPSite(self._runner, "0.0.0.0", 0, ssl_context=context)  # noqa: S104 - a token guards it
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        environment |= {"KUBERNETES_SERVICE_HOST": _GATEWAY, "KUBERNETES_SERVICE_PORT": str(self.port)}
        self.state.add("namespaces", "", {"metadata": {"name": NAMESPACE, "labels": {}}, "status": {"phase": "Active"}})
        self.state.add("serviceaccounts", NAMESPACE, {"metadata": {"name": "default"}})
        status = {"allocatable": self._allocatable, "conditions": [condition("Ready", "True", "KubeletReady")]}
        self.state.add("nodes", "", {"metadata": {"name": "node-1", "labels": {}}, "spec": {}, "status": status})
        self._write_kubeconfig(certificate)
        await self.node.remove_leftovers()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self.node.close()

    def _certificate(self) -> tuple[Path, Path]:
        certificate, key = self._directory / "ca.pem", self._directory / "key.pem"
        names = f"subjectAltName=IP:127.0.0.1,IP:{_GATEWAY},DNS:localhost"
        argv = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=kubernetes-double",
        ]
        argv += ["-addext", names, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(argv, check=True, capture_output=True)
        return certificate, key

    def _write_kubeconfig(self, certificate: Path) -> None:
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(certificate)}
        chosen = {"cluster": "double", "user": "double", "namespace": NAMESPACE}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{"name": "double", "cluster": cluster}],
            "users": [{"name": "double", "user": {"token": self._token}}],
            "contexts": [{"name": "double", "context": chosen}],
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)
