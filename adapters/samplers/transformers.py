"""The sampler of one machine: a transformers model, many versions at once, continuous batching."""

import asyncio
import contextlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch

from adapters.samplers.kv_rows import CacheShape, KvRows
from adapters.samplers.lane import Job, Lane
from adapters.samplers.versions import LoadedBase, Merged, load_base, merge
from adapters.torch_weights import fetch_files
from domain.errors import ConflictError, ContextOverflowError, NotFoundError, SamplerError, SynthError, boundary
from domain.ports import SampleRequest, SampleResult, Store
from domain.records.model import BasePolicy, PolicyVersion

_ROWS_PER_REQUEST = 3  # rows of finished requests are kept: their next turns find them
_BYTES_PER_NUMBER = 4  # float32
_IDLE_LANES = 2  # versions without requests that keep their rows
_Answer = SampleResult | SamplerError


class TransformersSampler:
    """Serves base and adapter versions by name, from weights in the store.

    One worker thread runs the model. Each version has its own lane of key-value rows; requests for one version
    run as one batch, which others join between tokens. Weights of the versions used least recently are dropped
    and merged again when they are asked for.
    """

    def __init__(
        self,
        store: Store,
        files_of_base: Callable[[str], BasePolicy],
        *,
        max_batch: int = 64,
        keep_versions: int = 8,
        cache_bytes: int = 512 * 2**20,
        threads: int = 1,
    ) -> None:
        """Start the worker.

        Args:
            store: holds the files of bases and adapters.
            files_of_base: returns the base policy of a digest; raises NotFoundError.
            max_batch: requests of one version that run at once.
            keep_versions: merged weights kept in memory.
            cache_bytes: bound on key-value rows of one version.
            threads: torch threads of the worker; more than one slows small models down when cores are shared.
        """
        self._store = store
        self._files_of_base = files_of_base
        self._max_batch = max_batch
        self._keep_versions = keep_versions
        self._cache_bytes = cache_bytes
        self._threads = threads
        self._known: dict[str, PolicyVersion] = {}
        self._bases: dict[str, LoadedBase] = {}
        self._merged: OrderedDict[str, Merged] = OrderedDict()
        self._loading = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[LoadedBase, Merged, Job] | None] = queue.SimpleQueue()
        self._closed = False
        self._door = threading.Lock()
        self._worker = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._worker.start()

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation that every loaded base allows; 0 before the first is loaded."""
        return min((base.context_tokens for base in self._bases.values()), default=0)

    def versions(self) -> tuple[str, ...]:
        """Return the names that can be sampled now, oldest first."""
        return tuple(self._known)

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable beside the others; idempotent.

        Raises:
            ConflictError: the name is taken by other weights.
            ConfigurationError: the files are no model, or the adapter does not fit its base.
            NotFoundError: the base policy or a file is unknown.
        """
        known = self._known.get(version.name)
        if known is not None and (known.base, known.adapter) != (version.base, version.adapter):
            raise ConflictError(
                f"version {version.name} already means other weights", hint="name versions by their content"
            )
        await asyncio.to_thread(self._weights, version)
        self._known.setdefault(version.name, version)

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample until a stop id, ``max_tokens`` or the end of the context.

        Raises:
            NotFoundError: the version was never loaded.
            ContextOverflowError: the prompt leaves no room for one token.
            SamplerError: the model failed, or the request makes no sense.
        """
        version = self._known.get(request.version)
        if version is None:
            raise NotFoundError(f"sampler has no version {request.version}", hint="load it first")
        base, merged = self._loaded(version) or await asyncio.to_thread(self._weights, version)
        limit = _limit(request, base)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Answer] = loop.create_future()

        def deliver(answer: _Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop has ended: nobody waits for the answer
                loop.call_soon_threadsafe(_settle, future, answer)

        job = Job(request=request, limit=limit, deliver=deliver)
        with self._door:
            if self._closed:
                raise SamplerError("the sampler is closed")
            self._inbox.put((base, merged, job))
        try:
            answer = await future
        finally:
            job.cancelled = True
        if isinstance(answer, SamplerError):
            raise answer
        return answer

    def close(self) -> None:
        """End the worker; requests that still run are answered with SamplerError."""
        with self._door:
            self._closed = True
            self._inbox.put(None)
        self._worker.join()

    # --- weights ---------------------------------------------------------------------------------

    def _loaded(self, version: PolicyVersion) -> tuple[LoadedBase, Merged] | None:
        with self._loading:
            base, merged = self._bases.get(version.base), self._merged.get(version.name)
            if base is None or merged is None:
                return None
            self._merged.move_to_end(version.name)
            return base, merged

    def _weights(self, version: PolicyVersion) -> tuple[LoadedBase, Merged]:
        """Return a version's weights, merging them when they are not in memory."""
        found = self._loaded(version)
        if found is not None:
            return found
        base = self._base(version.base)
        adapter_files = fetch_files(self._store, version.adapter)
        merged = merge(base, adapter_files) if adapter_files else Merged(tensors={})
        with self._loading:
            merged = self._merged.setdefault(version.name, merged)
            self._merged.move_to_end(version.name)
            while len(self._merged) > self._keep_versions:
                self._merged.popitem(last=False)  # lanes that still run it hold it themselves
        return base, merged

    def _base(self, digest: str) -> LoadedBase:
        found = self._bases.get(digest)
        if found is not None:
            return found
        policy = self._files_of_base(digest)
        loaded = load_base(fetch_files(self._store, policy.files), policy.context_tokens)
        with self._loading:
            return self._bases.setdefault(digest, loaded)

    # --- the worker ------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        lanes: OrderedDict[Merged, Lane] = OrderedDict()
        with torch.inference_mode():
            while self._receive(lanes):
                for lane in [lane for lane in lanes.values() if lane.busy]:
                    try:
                        with boundary(SamplerError, "run the model"):
                            lane.step()
                    except SynthError as error:
                        lane.fail(SamplerError(str(error)))
        for lane in lanes.values():
            lane.fail(SamplerError("the sampler is closed"))

    def _receive(self, lanes: OrderedDict[Merged, Lane]) -> bool:
        """Move what arrived to its lanes, waiting while there is nothing else to do; False: end."""
        busy = any(lane.busy for lane in lanes.values())
        while True:
            try:
                arrived = self._inbox.get(block=not busy)
            except queue.Empty:
                return True
            if arrived is None:
                return False
            base, merged, job = arrived
            if merged not in lanes:
                lanes[merged] = self._lane(base, merged)
            lanes.move_to_end(merged)
            lanes[merged].add(job)
            busy = True
            idle = [key for key, lane in lanes.items() if not lane.busy]
            for key in idle[:-_IDLE_LANES]:
                del lanes[key]

    def _lane(self, base: LoadedBase, merged: Merged) -> Lane:
        config = base.model.config
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * _BYTES_PER_NUMBER
        affordable = self._cache_bytes // (per_token * base.context_tokens)
        shape = CacheShape(
            layers=config.num_hidden_layers,
            heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_rows=int(max(self._max_batch + 1, min(_ROWS_PER_REQUEST * self._max_batch, affordable))),
            max_tokens=base.context_tokens,
        )
        return Lane(base, merged, KvRows(shape), self._max_batch)


def _limit(request: SampleRequest, base: LoadedBase) -> int:
    """Return how many tokens may be sampled."""
    n_prompt, n_context = len(request.prompt_ids), base.context_tokens
    if n_prompt >= n_context:
        raise ContextOverflowError(
            f"prompt is {n_prompt} tokens, the model's context is {n_context} tokens", hint="shorten the conversation"
        )
    n_ids = base.model.config.vocab_size
    if not n_prompt or request.max_tokens < 1 or request.temperature < 0:
        raise SamplerError("a request needs a prompt, max_tokens >= 1 and temperature >= 0")
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= n_ids:
        raise SamplerError(f"the prompt has ids outside the vocabulary of {n_ids}", hint="render with this base")
    return min(request.max_tokens, n_context - n_prompt)


def _settle(future: asyncio.Future[_Answer], answer: _Answer) -> None:
    if not future.done():
        future.set_result(answer)
