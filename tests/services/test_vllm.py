"""Real vLLM servers, float32 on the CPU: exact logprobs, versions that never mix, servers that end and come back."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from adapters.lora_format import Adapter, Factors, read_adapter, write_adapter
from adapters.samplers.vllm import VllmSampler
from adapters.samplers.vllm_probe import reports_sampled
from adapters.torch_weights import build_model, fetch_files, files_digest, keep_files
from domain.errors import (
    ConfigurationError,
    ConflictError,
    ContextOverflowError,
    OverloadError,
    SamplerError,
    SynthError,
)
from domain.lifecycle.mini_dialogue import BASH
from domain.ports import SampleRequest, SampleResult
from domain.records.model import PolicyVersion
from domain.records.trial import StopReason
from tests.fakes.models import demonstrations, wide_policy
from tests.services.vllm_server import Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
_LARGEST_DIFFERENCE = 1e-5


def request(**changes: object) -> SampleRequest:
    """Return a request to the base version."""
    wide = wide_policy()
    made = SampleRequest(
        version=wide.version.name,
        prompt_ids=wide.family.render(demonstrations()[0].messages[:2], (BASH,)),
        max_tokens=24,
        temperature=1.0,
        stop_ids=wide.family.stop_ids,
        seed=7,
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType] - a test names the fields it varies


def version_of(seed: int, size: float = 0.3) -> PolicyVersion:
    """Return a version with a random adapter of every projection."""
    wide = wide_policy()
    random = torch.Generator().manual_seed(seed)
    factors: dict[str, Factors] = {}
    for name, weight in build_model(fetch_files(wide.store, wide.base.files)).named_parameters():
        if name.endswith("_proj.weight"):
            n_out, n_in = weight.shape
            factors[name.removesuffix(".weight")] = Factors(
                a=torch.randn(4, n_in, generator=random) * size, b=torch.randn(n_out, 4, generator=random) * size
            )
    files = write_adapter(Adapter(scale=1.0, factors=factors), rank=4, alpha=4, base=wide.base.digest)
    adapter = keep_files(wide.store, files)
    return PolicyVersion(name=f"ckpt-{files_digest(adapter)[:12]}", base=wide.base.digest, adapter=adapter)


def difference(
    result: SampleResult, prompt: Sequence[int], temperature: float = 1.0, version: PolicyVersion | None = None
) -> float:
    """Return the largest difference of a sample's logprobs from a plain float32 pass of transformers."""
    wide = wide_policy()
    model = build_model(fetch_files(wide.store, wide.base.files))
    if version is not None:
        adapter = read_adapter(fetch_files(wide.store, version.adapter))
        for name, factors in adapter.factors.items():
            model.get_parameter(f"{name}.weight").data += adapter.scale * factors.b @ factors.a
    ids = torch.tensor([[*prompt, *result.sampled_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids[:, :-1]).logits[0] / temperature, dim=-1)
    again = [float(logprobs[len(prompt) - 1 + index, token]) for index, token in enumerate(result.sampled_ids)]
    return float(np.abs(np.subtract(again, result.logprobs)).max())


@pytest.fixture
async def sampler(vllm_servers: list[Server], tmp_path: Path) -> AsyncGenerator[VllmSampler]:
    """The sampler over both servers with the base loaded."""
    wide = wide_policy()
    urls = [server.url for server in vllm_servers]
    sampler = VllmSampler(
        wide.store, wide.files_of_base, urls, tmp_path / "adapters", max_versions=3, delete_after_s=0.0
    )
    await sampler.load(wide.version)
    yield sampler
    for name in sampler.versions():
        await sampler.unload(name)
    await sampler.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_a_float32_pass(sampler: VllmSampler, temperature: float) -> None:
    """Sixteen at once, with and without adapter, prompts and samples of many lengths: 1e-5 at most."""
    versions = [None, version_of(1), version_of(2)]  # the base in batches with adapters, too
    for version in versions[1:]:
        assert version is not None
        await sampler.load(version)
    base = request().prompt_ids

    async def one(index: int) -> float:
        version = versions[index % 3]
        name = wide_policy().version.name if version is None else version.name
        prompt = (base * 3)[: 1 + 13 * (index % 12)]
        asked = request(
            version=name,
            prompt_ids=prompt,
            max_tokens=1 + 3 * index,
            seed=index,
            temperature=temperature,
            stop_ids=(),
            session=str(index),
        )
        result = await sampler.sample(asked)
        assert (len(result.sampled_ids), result.stop_reason) == (asked.max_tokens, StopReason.LENGTH)
        return difference(result, prompt, temperature, version)

    assert max(await asyncio.gather(*(one(index) for index in range(24)))) <= _LARGEST_DIFFERENCE


async def test_stops_seeds_and_greedy(sampler: VllmSampler) -> None:
    """The stop id is last and has a logprob; a seed is its sample; temperature 0 is a point mass."""
    free = await sampler.sample(request(stop_ids=(), max_tokens=40))
    stop = free.sampled_ids[5]
    stopped = await sampler.sample(request(stop_ids=(stop,), max_tokens=40))
    n = free.sampled_ids.index(stop) + 1
    assert (stopped.sampled_ids, stopped.stop_reason) == (free.sampled_ids[:n], StopReason.STOP)
    assert len(stopped.logprobs) == n
    results = [await sampler.sample(request(seed=seed, temperature=0.0)) for seed in (1, 2)]
    assert results[0].sampled_ids == results[1].sampled_ids
    assert set(results[0].logprobs) == {0.0}


async def test_what_would_be_done_otherwise_is_refused(sampler: VllmSampler) -> None:
    """Too many tokens, tiny temperatures, foreign ids, no prompt: an error, never something near it."""
    with pytest.raises(ContextOverflowError, match="256"):
        await sampler.sample(request(max_tokens=256))
    for changes in ({"temperature": 0.001}, {"prompt_ids": (999_999,)}, {"prompt_ids": ()}, {"max_tokens": 0}):
        with pytest.raises(SamplerError):
            await sampler.sample(request(**changes))
    assert (await sampler.sample(request())).sampled_ids


async def test_a_name_keeps_its_weights_and_directories_go_last(
    sampler: VllmSampler, vllm_servers: list[Server], tmp_path: Path
) -> None:
    """More versions than a server keeps: each gives its own logprobs, and no directory goes before its unloading."""
    versions = [version_of(seed) for seed in range(10, 15)]
    for version in versions:
        await sampler.load(version)
    with pytest.raises(ConflictError):
        await sampler.load(replace(versions[0], adapter=versions[1].adapter))
    for _ in range(2):
        for version in versions:
            asked = request(version=version.name, session="one")
            assert difference(await sampler.sample(asked), asked.prompt_ids, version=version) <= _LARGEST_DIFFERENCE
            for server in vllm_servers:
                loaded = server.loaded()
                assert len(loaded) <= 3
                assert all(map(os.path.isdir, loaded.values()))
    results = await asyncio.gather(
        *(sampler.sample(request(version=version.name, seed=seed)) for seed, version in enumerate(versions * 4))
    )
    for version, result in zip(versions * 4, results, strict=True):
        assert difference(result, request().prompt_ids, version=version) <= _LARGEST_DIFFERENCE
    for version in versions:
        await sampler.unload(version.name)
    assert not any(name.startswith("ckpt") for server in vllm_servers for name in server.loaded())
    assert not [path for path in (tmp_path / "adapters").iterdir() if path.name.startswith("ckpt")]
    assert all(server.get("/health").is_success for server in vllm_servers)


async def test_the_same_name_with_other_weights_is_another_version(
    sampler: VllmSampler, vllm_servers: list[Server]
) -> None:
    """A name that was unloaded and means other weights now never meets the cache of the old ones."""
    old, new = version_of(20), version_of(21)
    renamed = replace(new, name=old.name)
    long = (request().prompt_ids * 3)[:200]
    for version in (old, renamed):
        await sampler.load(version)
        for seed in range(2):
            asked = request(version=old.name, prompt_ids=long, seed=seed, session="s")
            assert difference(await sampler.sample(asked), long, version=version) <= _LARGEST_DIFFERENCE
        await sampler.unload(old.name)
    assert not any(name.startswith("ckpt") for server in vllm_servers for name in server.loaded())


async def test_an_unfit_adapter_is_refused_and_harms_nobody(sampler: VllmSampler, tmp_path: Path) -> None:
    """Weights that are no numbers, a rank that is too large: named, and the others go on."""
    wide = wide_policy()
    files = fetch_files(wide.store, version_of(3).adapter)
    adapter = read_adapter(files)
    broken = {name: Factors(a=one.a * float("nan"), b=one.b) for name, one in adapter.factors.items()}
    large = {name: Factors(a=one.a.repeat(8, 1), b=one.b.repeat(1, 8)) for name, one in adapter.factors.items()}
    for rank, factors in ((4, broken), (32, large)):
        entries = keep_files(
            wide.store, write_adapter(Adapter(scale=1.0, factors=factors), rank=rank, alpha=rank, base=wide.base.digest)
        )
        version = PolicyVersion(name=f"ckpt-{rank}", base=wide.base.digest, adapter=entries)
        with pytest.raises(SynthError, match=r"finite|rank"):
            await load_and_sample(sampler, version)
    assert (await sampler.sample(request())).sampled_ids
    other = replace(wide.version, name="base-other", base="0" * 64)
    elsewhere = VllmSampler(wide.store, lambda _digest: wide.base, [sampler.server_of("")], tmp_path / "other")
    with pytest.raises(ConfigurationError, match="serves base-"):
        await elsewhere.load(other)
    await elsewhere.close()


async def load_and_sample(sampler: VllmSampler, version: PolicyVersion) -> SampleResult:
    """Sample once from a version."""
    await sampler.load(version)
    return await sampler.sample(request(version=version.name))


async def test_who_waits_no_longer_is_not_worked_for(sampler: VllmSampler, vllm_servers: list[Server]) -> None:
    """A cancelled call ends at its server, and gives its place back."""
    calls = [asyncio.create_task(sampler.sample(request(max_tokens=150, stop_ids=(), seed=seed))) for seed in range(12)]
    await asyncio.sleep(0.2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    for _ in range(50):
        if not sum(server.n_running() for server in vllm_servers):
            break
        await asyncio.sleep(0.1)
    assert [server.n_running() for server in vllm_servers] == [0, 0]
    assert sampler.n_running == 0


async def test_a_session_stays_and_a_full_server_says_so(vllm_servers: list[Server], tmp_path: Path) -> None:
    """The calls of a session find their prefix at one server; where no server has room, the caller is told."""
    wide = wide_policy()
    urls = [server.url for server in vllm_servers]
    sampler = VllmSampler(wide.store, wide.files_of_base, urls, tmp_path / "a", max_running=2)
    await sampler.load(wide.version)
    orders = {session: sampler.server_of(session) for session in map(str, range(64))}
    assert set(orders.values()) == set(urls)
    assert orders == {session: sampler.server_of(session) for session in orders}
    calls = [sampler.sample(request(max_tokens=100, stop_ids=(), seed=seed, session="s")) for seed in range(8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, SampleResult) for one in answers) == 4
    assert sum(isinstance(one, OverloadError) for one in answers) == 4
    with pytest.raises(ConflictError, match="owns"):
        VllmSampler(wide.store, wide.files_of_base, urls, tmp_path / "a")
    await sampler.unload(wide.version.name)
    await sampler.close()


async def test_a_server_says_what_its_logprobs_are(vllm_servers: list[Server]) -> None:
    """These report them after the temperature; answers as of a server that reports them before are told apart."""
    async with httpx.AsyncClient(base_url=vllm_servers[0].url, trust_env=False) as client:

        async def ask(body: bytes) -> bytes:
            return (await client.post("/inference/v1/generate", content=body, headers=_JSON)).content

        async def ask_raw(body: bytes) -> bytes:
            return await ask(body.replace(b'"temperature":2.0', b'"temperature":1.0'))

        name = wide_policy().version.name
        assert await reports_sampled(ask, name, "here")
        assert not await reports_sampled(ask_raw, name, "here")


_JSON = {"Content-Type": "application/json"}


async def test_a_server_that_ends_is_left_and_what_comes_back_is_loaded_anew(
    sampler: VllmSampler, vllm_servers: list[Server]
) -> None:
    """Calls go on at the other server; one that was started anew gets its adapters again."""
    version = version_of(30)
    await sampler.load(version)
    asked = request(version=version.name, max_tokens=100, stop_ids=())
    calls = [asyncio.create_task(sampler.sample(replace(asked, seed=seed, session=str(seed)))) for seed in range(8)]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(vllm_servers[0].stop)
    results = await asyncio.gather(*calls)
    # Other weights would differ by whole units; who shares a batch changes the last digits of a long sample.
    assert max(difference(one, asked.prompt_ids, version=version) for one in results) <= 1e-4
    await asyncio.to_thread(vllm_servers[0].restart)
    assert vllm_servers[0].loaded() == {}
    await asyncio.sleep(1.0)
    for seed in range(16):
        await sampler.sample(replace(asked, seed=seed, session=str(seed), max_tokens=4))
    assert version.name in {name.partition("@")[0] for name in vllm_servers[0].loaded()}
