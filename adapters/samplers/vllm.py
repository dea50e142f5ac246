"""The sampler over vLLM servers: exact ids in, exact ids and logprobs out, many policy versions, several replicas."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from adapters.samplers.vllm_adapters import AdapterDirectories, Served
from adapters.samplers.vllm_replica import Replica
from adapters.samplers.vllm_wire import LEAST_TEMPERATURE, ElsewhereError, generate_body, result_of
from domain.errors import (
    ConfigurationError,
    ConflictError,
    ContextOverflowError,
    NotFoundError,
    OverloadError,
    SamplerError,
)
from domain.ports import SampleRequest, SampleResult, Store
from domain.records.model import BasePolicy, PolicyVersion
from domain.records.wording import counted

_SENDS = 2
"""How often a call is sent: one that ends its server must not end them all."""


class VllmSampler:
    """Serves base and adapter versions by name from vLLM servers. Lives in one event loop. See domain.ports.Sampler.

    A version is one name and one directory that mean the same content forever, at every server. The calls of a session
    go to one server as long as it lives, so that they find their prefix in its cache.
    """

    def __init__(
        self,
        store: Store,
        files_of_base: Callable[[str], BasePolicy],
        urls: Sequence[str],
        directory: Path,
        *,
        max_versions: int = 4,
        max_running: int = 256,
        limit_s: float = 600.0,
        delete_after_s: float = 60.0,
        token: str = "",
        plain_base: bool = False,
    ) -> None:
        """Know the servers; the first load asks them.

        Args:
            store: holds the files of adapters.
            files_of_base: returns the base policy of a digest; raises NotFoundError.
            urls: of the servers, each ``http://HOST:PORT``.
            directory: of adapters, which the servers see at the same path.
            max_versions: adapters that a server has loaded at once, at most its ``--max-cpu-loras``.
            max_running: calls at one server at once; more are told to come back.
            limit_s: longest generation.
            delete_after_s: how long a directory stays when no server has its adapter: a call that was broken off may
                still wait in a server's queue for a moment.
            token: the servers' ``--api-key``.
            plain_base: sample the base itself and not an adapter of zeros: faster, and right only at servers that
                batch adapters and the base together rightly, as GPUs' kernels do and the CPU's do not.

        Raises:
            ConfigurationError: no server is named, or the directory cannot be made.
            ConflictError: another process owns the directory.
        """
        if not urls:
            raise ConfigurationError("no vLLM server is named", hint="set SYNTH_VLLM_URLS=http://HOST:PORT,...")
        self._files_of_base = files_of_base
        self._adapters = AdapterDirectories(directory, store)
        self._replicas = [
            Replica(url, max_versions=max_versions, limit_s=limit_s, is_ours=self._adapters.is_ours, token=token)
            for url in urls
        ]
        self._max_running = max_running
        self._plain_base = plain_base
        self._delete_after_s = delete_after_s
        self._known: dict[str, Served] = {}
        self._in_use: dict[str, int] = {}
        """Adapters that a call or load needs now: their directories stay."""
        self._unheld_since_s: dict[str, float] = {}
        self._files = asyncio.Lock()
        self._closed = False

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation that every server allows; 0 before the first answered."""
        return min((one.facts.context_tokens for one in self._replicas if one.facts is not None), default=0)

    def versions(self) -> tuple[str, ...]:
        """Return the names that can be sampled now, oldest first."""
        return tuple(self._known)

    @property
    def n_running(self) -> int:
        """Calls under way at all servers."""
        return sum(one.n_running for one in self._replicas)

    def server_of(self, session: str) -> str:
        """Return the URL of the server that the calls of a session go to while it lives."""
        return self._order(session)[0].url

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable beside the others, at every server that answers; idempotent.

        Raises:
            ConflictError: the name is taken by other weights.
            ConfigurationError: no server has its base, or the adapter does not fit.
            NotFoundError: the base policy or a file is unknown.
            OverloadError: no server answers.
        """
        served = await asyncio.to_thread(self._served, version)
        known = self._known.get(version.name)
        if known is not None and known.name != served.name:
            raise ConflictError(
                f"version {version.name} already means other weights", hint="name versions by their content"
            )
        outcomes = await asyncio.gather(
            *(self._load_at(replica, served) for replica in self._replicas), return_exceptions=True
        )
        errors = [one for one in outcomes if isinstance(one, BaseException)]
        wrong = [one for one in errors if not isinstance(one, OverloadError)]
        if len(errors) == len(outcomes):
            raise (wrong or errors)[0]
        self._known.setdefault(version.name, served)
        await self._sweep()

    def _served(self, version: PolicyVersion) -> Served:
        base = self._files_of_base(version.base)
        return self._adapters.served(version, base, plain_base=self._plain_base)

    async def _load_at(self, replica: Replica, served: Served) -> None:
        await self._check_base(replica, served)
        async with self._loaded(replica, served):
            pass

    @staticmethod
    async def _check_base(replica: Replica, served: Served) -> None:
        facts = await replica.ready()
        if served.base not in facts.bases:
            raise ConfigurationError(
                f"vLLM at {replica.url} serves {', '.join(facts.bases)}, not {served.base}",
                hint=f"start it with `synth vllm {served.base}`",
            )

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample until a stop id or ``max_tokens``, at the session's server or, where that one is lost, at another.

        Raises:
            NotFoundError: the version was never loaded.
            ContextOverflowError: prompt and ``max_tokens`` do not fit: vLLM would sample fewer without a word.
            OverloadError: no server has room, or answers in time.
            SamplerError: a server refused, or its logprobs are not those of this temperature.
        """
        if self._closed:
            raise SamplerError("the sampler is closed")
        served = self._known.get(request.version)
        if served is None:
            raise NotFoundError(f"sampler has no version {request.version}", hint="load it first")
        _check(request)
        sent: list[Replica] = []
        last = ElsewhereError("no vLLM server was asked")
        order = self._order(request.session)
        for replica in (*order, order[0]):  # the first once more: it may have been started anew
            try:
                return await self._sample_at(replica, served, request, sent)
            except ElsewhereError as error:
                last = error
                if len(sent) == _SENDS:
                    break
            except ConfigurationError as error:  # of a server, not of who asked
                raise SamplerError(error.message, hint=error.hint) from error
        raise OverloadError(last.message, hint="try again") from last

    async def _sample_at(
        self, replica: Replica, served: Served, request: SampleRequest, sent: list[Replica]
    ) -> SampleResult:
        await self._check_base(replica, served)
        _check_fits(replica, request)
        if replica.n_running >= self._max_running:
            raise ElsewhereError(f"vLLM at {replica.url} has {counted(replica.n_running, 'call')} under way")
        async with self._loaded(replica, served):
            sent.append(replica)
            return result_of(await replica.generate(generate_body(served.name, request)), served.name, request)

    def _order(self, session: str) -> list[Replica]:
        """Return the servers by rendezvous hashing, or the one with the fewest calls first where there is no session.

        Source: Thaler and Ravishankar 1998: a server that goes moves its own sessions only.
        """
        if not session:
            return sorted(self._replicas, key=lambda one: one.n_running)

        def rank(replica: Replica) -> bytes:
            return hashlib.sha256(f"{session}\0{replica.url}".encode()).digest()

        return sorted(self._replicas, key=rank)

    @asynccontextmanager
    async def _loaded(self, replica: Replica, served: Served) -> AsyncGenerator[None]:
        """Have a version loaded at a server during the block, and its directory there."""
        self._in_use[served.name] = self._in_use.get(served.name, 0) + 1
        try:
            if not self._adapters.is_complete(served):
                async with self._files:
                    await asyncio.to_thread(self._adapters.ensure, served)
            async with replica.hold(served):
                yield
        finally:
            self._in_use[served.name] -= 1
            if not self._in_use[served.name]:
                del self._in_use[served.name]

    async def unload(self, name: str) -> None:
        """Serve a version no more: drain it and unload it everywhere; its directory goes when that is certain.

        Raises:
            OverloadError: a server does not answer, so it may have it still; the version is no longer served.
        """
        served = self._known.pop(name, None)
        if served is not None and served.directory is not None:
            for replica in self._replicas:
                await replica.unload(served.name)
        await self._sweep()

    async def _sweep(self) -> None:
        """Remove directories of adapters that no server has had for a while; a server that is silent may have all."""
        if any(replica.facts is None for replica in self._replicas):
            return
        now_s = asyncio.get_running_loop().time()
        async with self._files:
            held = {name for replica in self._replicas for name in replica.resident} | set(self._in_use)
            there = set(await asyncio.to_thread(self._adapters.names))
            held |= set(self._in_use)
            self._unheld_since_s = {name: self._unheld_since_s.get(name, now_s) for name in there - held}
            due = [name for name, since_s in self._unheld_since_s.items() if now_s - since_s >= self._delete_after_s]
            self._adapters.forget(due)
            await asyncio.to_thread(self._adapters.remove, due)

    async def close(self) -> None:
        """Drop the connections; servers and what they have loaded stay."""
        self._closed = True
        for replica in self._replicas:
            await replica.close()
        self._adapters.close()


def _check(request: SampleRequest) -> None:
    """Refuse what no server should be asked. Raises SamplerError."""
    if not request.prompt_ids or request.max_tokens < 1 or request.temperature < 0:
        raise SamplerError("a request needs a prompt, max_tokens >= 1 and temperature >= 0")
    if 0 < request.temperature < LEAST_TEMPERATURE:
        raise SamplerError(f"temperature {request.temperature:g}: vLLM samples at {LEAST_TEMPERATURE} instead")


def _check_fits(replica: Replica, request: SampleRequest) -> None:
    """Refuse what this server would do otherwise than it was asked. Raises ContextOverflowError, SamplerError."""
    context, n_prompt = replica.facts.context_tokens if replica.facts else 0, len(request.prompt_ids)
    if n_prompt + request.max_tokens > context:
        raise ContextOverflowError(
            f"prompt is {n_prompt} tokens and {request.max_tokens} may follow, the model's context is {context} tokens",
            hint="shorten the conversation or ask for fewer tokens",
        )
    if request.temperature not in {0.0, 1.0} and not replica.reports_sampled:
        raise SamplerError(
            f"temperature {request.temperature:g}: the logprobs of vLLM at {replica.url} are those of temperature 1",
            hint="start it with --logprobs-mode processed_logprobs, or sample at temperature 1",
        )
