"""The double as a whole: started in a thread of its own, stopped with all that it runs.

``with`` it, or call :meth:`KubernetesDouble.start` and :meth:`KubernetesDouble.stop`.
"""

import asyncio
import functools
import json
import secrets
import shutil
import ssl
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web

from adapters.sandboxes.labels import boot_id, started, this_process
from tests.kubernetes_double.certificate import make_certificate, write_kubeconfig
from tests.kubernetes_double.cluster import Cluster
from tests.kubernetes_double.control import Control
from tests.kubernetes_double.engine import Engine
from tests.kubernetes_double.events import record
from tests.kubernetes_double.kubelet import Kubelet
from tests.kubernetes_double.node import node
from tests.kubernetes_double.run import Place
from tests.kubernetes_double.server import Server
from tests.kubernetes_double.store import Store
from tests.kubernetes_double.volumes import remove_volumes

T = TypeVar("T")
Json = dict[str, Any]

_LABEL = "synth.kubernetes-double"
"""Its value says which process started the double; containers of a dead one are leftovers."""
_START_S = 60.0


class KubernetesDouble:
    """A cluster of one node for tests.

    Args:
        engine_url: the Docker engine that runs the pods.
    """

    def __init__(self, engine_url: str) -> None:
        self._engine_url = engine_url
        self._directory = Path(tempfile.mkdtemp(prefix="synth-kubernetes-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes-double", daemon=True)
        self._runner: web.AppRunner | None = None
        self._engine: Engine | None = None
        self._cluster: Cluster | None = None
        self._watching: asyncio.Future[None] | None = None
        self._network = ""
        self.host_address = ""
        """This machine's address as pods reach it."""

    @property
    def kubeconfig(self) -> str:
        """Path of the file that names the cluster and bears the token."""
        return str(self._directory / "kubeconfig")

    @property
    def cluster(self) -> Cluster:
        """What runs; to be touched in its loop alone."""
        assert self._cluster is not None, "the double is not started"
        return self._cluster

    @functools.cached_property
    def control(self) -> Control:
        """What a test lets go wrong."""
        return Control(self.cluster, self.wait)

    def start(self) -> Self:
        """Serve. Blocks until it does."""
        self._thread.start()
        self.wait(self._open())
        return self

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` gives, run in the double's loop. Blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    def stop(self) -> None:
        """End every pod and stop serving; twice is fine."""
        if self._thread.is_alive():
            self.wait(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _open(self) -> None:
        self._engine = Engine(self._engine_url)
        await _end_leftovers(self._engine)
        pid, since = this_process()
        mark = f"{boot_id()}/{pid}/{since}/{secrets.token_hex(4)}"
        self._network, self.host_address = await _network(self._engine, mark)
        store = Store()
        place = Place(network=self._network, labels={_LABEL: mark}, service=(self.host_address, 0))
        kubelet = Kubelet(store, self._engine, place, functools.partial(record, store))
        self._cluster = Cluster(store, kubelet)
        self._cluster.furnish(node())
        self._watching = asyncio.ensure_future(kubelet.watch_memory())
        place.service = (self.host_address, await self._serve())

    async def _serve(self) -> int:
        """Listen where this machine and pods reach it; returns the port and writes the kubeconfig."""
        token = secrets.token_urlsafe(24)
        certificate, key = make_certificate(self._directory, ["127.0.0.1", self.host_address])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        runner = web.AppRunner(Server(self.cluster, token).application(), shutdown_timeout=0.5, access_log=None)
        self._runner = runner
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port: int = runner.addresses[0][1]
        with suppress(OSError):  # an engine in a machine of its own: its network ends there
            await web.TCPSite(runner, self.host_address, port, ssl_context=context).start()
        write_kubeconfig(Path(self.kubeconfig), f"https://127.0.0.1:{port}", certificate, token)
        return port

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._engine is not None:
            if self._watching is not None:
                self._watching.cancel()
            if self._cluster is not None:
                await self._cluster.kubelet.close()
            if self._network:
                await self._engine.ask("DELETE", f"/networks/{self._network}", absent=(403, 404))
            await self._engine.close()


async def _network(engine: Engine, mark: str) -> tuple[str, str]:
    """Make a network of pods; returns its name and this machine's address in it."""
    name = f"{_LABEL}-{mark.rpartition('/')[2]}"
    await engine.ask("POST", "/networks/create", {"Name": name, "CheckDuplicate": True, "Labels": {_LABEL: mark}})
    found = await engine.ask("GET", f"/networks/{name}")
    return name, str(found["IPAM"]["Config"][0]["Gateway"])


async def _end_leftovers(engine: Engine) -> None:
    """End the containers, then the volumes and the networks, of doubles whose process has died."""
    filters = json.dumps({"label": [_LABEL]})
    for one in await engine.ask("GET", "/containers/json", all="1", filters=filters):
        if _is_dead(one["Labels"][_LABEL]):
            await engine.ask("DELETE", f"/containers/{one['Id']}", absent=(404, 409), force="1", v="1")
    await remove_volumes(engine, filters, lambda one: _is_dead(one["Labels"][_LABEL]))
    for one in await engine.ask("GET", "/networks", filters=filters):
        if _is_dead(one["Labels"][_LABEL]):
            await engine.ask("DELETE", f"/networks/{one['Id']}", absent=(403, 404))


def _is_dead(mark: str) -> bool:
    boot, pid, since, _ = mark.split("/")
    return boot != boot_id() or started(int(pid)) != int(since)
