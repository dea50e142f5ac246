"""One vLLM server: what it serves now, which adapters it has, and calls to it.

Adapters come and go by one order: load, route, drain, unload; the directory goes last, when no server has the name.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from adapters.samplers.vllm_adapters import Served
from adapters.samplers.vllm_probe import Facts, read_models, reports_sampled
from adapters.samplers.vllm_wire import (
    GENERATE,
    SERVER_FAULT,
    ElsewhereError,
    Generation,
    NotServedError,
    read_generation,
    refusal,
)
from domain.errors import ConfigurationError, OverloadError, SamplerError

_CONNECT_S = 5.0
_CONTROL_S = 120.0
"""Of a request that is no generation; loading an adapter of a large model reads gigabytes."""
_KEEP_ALIVE_S = 3.0
"""Below the server's 5 s, so that it does not close a connection that we just took. Source: vLLM 0.32 ``envs.py``."""
_SILENT_S = 10.0
"""A server that was not heard of for so long may be another process by now: none starts in less."""
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 15.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Resident:
    """An adapter that the server has loaded."""

    n_running: int = 0
    is_draining: bool = False


class Replica:
    """One server, in one event loop."""

    def __init__(
        self, url: str, *, max_versions: int, limit_s: float, is_ours: Callable[[str, str], bool], token: str = ""
    ) -> None:
        """Know a server; nothing is asked yet.

        Args:
            url: ``http://HOST:PORT``.
            max_versions: adapters that it may have loaded, at most its ``--max-cpu-loras``.
            limit_s: longest generation.
            is_ours: (name, directory) -> whether we loaded that adapter, in this life or an earlier one.
            token: its ``--api-key``.
        """
        self.url = url
        self.n_running = 0
        self._max_versions = max_versions
        self._is_ours = is_ours
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(limit_s, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,
        )
        self._limit_s = limit_s
        self._facts: Facts | None = None
        self._reports_sampled = False
        self._heard_s = 0.0
        self._rests_until_s = 0.0
        self._rest_s = _FIRST_REST_S
        self._resident: OrderedDict[str, _Resident] = OrderedDict()
        self._checking = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._drained = asyncio.Condition()

    @property
    def facts(self) -> Facts | None:
        """What it served when it was last asked; None: it is not known to be alive."""
        return self._facts

    @property
    def reports_sampled(self) -> bool:
        """Whether its logprobs are those of the distribution sampled from at every temperature."""
        return self._reports_sampled

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of adapters that it has."""
        return tuple(self._resident)

    async def close(self) -> None:
        """Drop its connections; generations under way end there, too."""
        await self._client.aclose()

    # --- what it is ------------------------------------------------------------------------------

    async def ready(self) -> Facts:
        """Return what it serves, asking again when it was silent or lost.

        Raises:
            AdmissionError: its logprobs are of no use.
            ElsewhereError: it does not answer.
        """
        async with self._checking:
            now_s = asyncio.get_running_loop().time()
            if self._facts is not None and now_s - self._heard_s < _SILENT_S:
                return self._facts
            if now_s < self._rests_until_s:
                raise ElsewhereError(f"vLLM at {self.url} did not answer a moment ago")
            try:
                self._facts = await self._check()
            except ElsewhereError:
                self._rest()
                raise
            self._rest_s = _FIRST_REST_S
            return self._facts

    async def _check(self) -> Facts:
        facts = read_models(await self._request("GET", "/v1/models", b"", _CONTROL_S))

        async def ask(body: bytes) -> bytes:
            return await self._request("POST", GENERATE, body, _CONTROL_S)

        self._reports_sampled = await reports_sampled(ask, facts.bases[0], self.url)
        for name in [name for name in self._resident if name not in facts.adapters]:
            del self._resident[name]  # it was started anew; who still holds the name is told by the server
        for name, directory in facts.adapters.items():
            if self._is_ours(name, directory) and name not in self._resident:
                self._resident[name] = _Resident()
                self._resident.move_to_end(name, last=False)
        return facts

    def _lost(self) -> None:
        """Ask again before the next call."""
        self._facts = None

    def _rest(self) -> None:
        self._facts = None
        self._rests_until_s = asyncio.get_running_loop().time() + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)

    # --- adapters --------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, served: Served) -> AsyncGenerator[None]:
        """Have a version loaded, and keep it so during the block; its directory is there.

        Raises:
            ConfigurationError: the server refuses the adapter.
            ElsewhereError: the server does not answer.
        """
        resident = await self._acquire(served)
        self.n_running += 1
        try:
            yield
        finally:
            self.n_running -= 1
            resident.n_running -= 1
            if resident.is_draining and not resident.n_running:
                async with self._drained:
                    self._drained.notify_all()

    async def unload(self, name: str) -> None:
        """Drain an adapter and unload it.

        Raises:
            ElsewhereError: the server does not answer, so it may have it still.
        """
        async with self._loading:
            if name in self._resident:
                await self._unload(name, self._resident[name])

    async def _acquire(self, served: Served) -> _Resident:
        if served.directory is None:
            return _Resident(n_running=1)
        found = self._resident.get(served.name)
        if found is None or found.is_draining:
            async with self._loading:
                found = await self._loaded(served)
                found.n_running += 1
                return found
        found.n_running += 1
        self._resident.move_to_end(served.name)
        return found

    async def _loaded(self, served: Served) -> _Resident:
        found = self._resident.get(served.name)
        if found is not None:
            return found
        while len(self._resident) >= self._max_versions:
            idle = (name for name, one in self._resident.items() if not one.n_running)
            oldest = next(idle, next(iter(self._resident)))
            await self._unload(oldest, self._resident[oldest])
        body = json.dumps({"lora_name": served.name, "lora_path": str(served.directory)}).encode()
        try:
            await self._request("POST", "/v1/load_lora_adapter", body, _CONTROL_S)
        except OverloadError:
            raise
        except SamplerError as error:
            await self._refused_adapter(served, error)
        return self._resident.setdefault(served.name, _Resident())

    async def _refused_adapter(self, served: Served, error: SamplerError) -> None:
        """Return if the server has the adapter already, from the directory that it would have read."""
        if not await self._is_alive():
            raise ElsewhereError(error.message) from error
        if "already been loaded" not in error.message:
            raise ConfigurationError(
                f"adapter {served.name}: {error.message}", hint="it belongs to another base, or passes --max-lora-rank"
            ) from error
        facts = read_models(await self._request("GET", "/v1/models", b"", _CONTROL_S))
        if not self._is_ours(served.name, facts.adapters.get(served.name, "")):
            raise ConfigurationError(
                error.message, hint="somebody else loaded that name: start the server anew"
            ) from error

    async def _unload(self, name: str, resident: _Resident) -> None:
        resident.is_draining = True
        try:
            async with self._drained:
                await self._drained.wait_for(lambda: not resident.n_running)
            body = json.dumps({"lora_name": name}).encode()
            try:
                await self._request("POST", "/v1/unload_lora_adapter", body, _CONTROL_S)
            except ElsewhereError:
                raise
            except SamplerError as error:
                if "cannot be found" not in error.message:
                    raise
        except BaseException:
            resident.is_draining = False
            raise
        self._resident.pop(name, None)

    # --- calls -----------------------------------------------------------------------------------

    async def generate(self, body: bytes) -> Generation:
        """Sample once; a caller that is cancelled closes the connection, at which the server stops.

        Raises:
            ElsewhereError: the server is gone, has no room, or does not know the name.
            OverloadError: it took too long.
            SamplerError: it refused the request.
        """
        return read_generation(await self._request("POST", GENERATE, body, self._limit_s))

    async def _request(self, method: str, path: str, body: bytes, limit_s: float) -> bytes:
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with asyncio.timeout(limit_s):
                response = await self._client.request(method, path, content=body, headers=headers)
        except TimeoutError as error:
            raise OverloadError(f"vLLM at {self.url}: no answer to {path} within {limit_s:g} s") from error
        except httpx.HTTPError as error:
            self._lost()
            raise ElsewhereError(f"vLLM at {self.url}: {path}: {type(error).__name__}: {error}") from error
        self._heard_s = asyncio.get_running_loop().time()
        if response.is_success:
            return response.content
        refused = refusal(response.status_code, response.content, self.url, path)
        if isinstance(refused, NotServedError) or response.status_code >= SERVER_FAULT:
            self._lost()
        raise refused

    async def _is_alive(self) -> bool:
        try:
            await self._request("GET", "/health", b"", _CONTROL_S)
        except SamplerError:
            return False
        return True
