"""The sampler contract, and what only a real model can show: exact logprobs, neighbours that do not matter."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from adapters.lora_format import ADAPTER_WEIGHTS, Adapter, Factors, read_adapter, write_adapter
from adapters.samplers.bounded import BoundedSampler
from adapters.samplers.draws import draw, uniforms
from adapters.samplers.transformers import TransformersSampler
from adapters.samplers.vllm import VllmSampler
from adapters.torch_weights import build_model, fetch_files, files_digest, keep_files
from domain.errors import (
    ConfigurationError,
    ConflictError,
    ContextOverflowError,
    NotFoundError,
    SamplerError,
)
from domain.lifecycle.mini_dialogue import BASH
from domain.ports import Sampler, SampleRequest, SampleResult
from domain.records.chat import ChatMessage
from domain.records.model import FileEntry, PolicyVersion
from domain.records.trial import StopReason
from tests.fakes.models import demonstrations, tiny_policy, wide_policy
from tests.fakes.sampler import ScriptedSampler

STOP = tiny_policy().family.stop_ids
PROMPT = tiny_policy().family.render(demonstrations()[0].messages[:2], (BASH,))
RESULT = ChatMessage(role="tool", content="ok")


def request(**changes: object) -> SampleRequest:
    """Return a request to the base version."""
    made = SampleRequest(
        version=tiny_policy().version.name,
        prompt_ids=PROMPT,
        max_tokens=24,
        temperature=1.0,
        stop_ids=STOP,
        seed=7,
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType] - a test names the fields it varies


@pytest.fixture
async def real() -> AsyncGenerator[TransformersSampler]:
    """The real sampler with the tiny base loaded."""
    tiny = tiny_policy()
    sampler = TransformersSampler(tiny.store, tiny.files_of_base, max_batch=16)
    await sampler.load(tiny.version)
    yield sampler
    sampler.close()


@pytest.fixture(params=["real", "fake", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(900)])])
async def sampler(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Sampler]:
    """Every sampler in turn, with one version loaded: its first."""
    if request.param == "vllm":
        wide = wide_policy()
        urls = [server.url for server in request.getfixturevalue("vllm_servers")]
        served = VllmSampler(wide.store, wide.files_of_base, urls, tmp_path / "adapters")
        await served.load(wide.version)
        yield served
        await served.unload(wide.version.name)
        await served.close()
    elif request.param == "real":
        tiny = tiny_policy()
        embedded = TransformersSampler(tiny.store, tiny.files_of_base, max_batch=16)
        await embedded.load(tiny.version)
        yield embedded
        embedded.close()
    else:
        scripted = ScriptedSampler([(5, 6, STOP[0]), tuple(range(10, 60))] * 4, context_tokens=256)
        await scripted.load(tiny_policy().version)
        yield scripted


# --- the contract -------------------------------------------------------------------------------------


async def test_results_are_aligned(sampler: Sampler) -> None:
    """One logprob per id, no more ids than asked, the stop id last exactly when it stopped."""
    for seed in range(4):
        result = await sampler.sample(request(version=sampler.versions()[0], seed=seed, max_tokens=5))
        assert len(result.sampled_ids) == len(result.logprobs) <= 5
        assert all(value <= 0 for value in result.logprobs)
        assert (result.stop_reason is StopReason.STOP) == (result.sampled_ids[-1] in STOP)
        assert not set(result.sampled_ids[:-1]) & set(STOP)
        assert result.version == sampler.versions()[0]


async def test_an_unknown_version_is_not_found(sampler: Sampler) -> None:
    """Nothing is sampled from another version instead."""
    with pytest.raises(NotFoundError, match="ckpt-nobody"):
        await sampler.sample(request(version="ckpt-nobody"))


async def test_a_prompt_that_does_not_fit_says_how_large_both_are(sampler: Sampler) -> None:
    """The message holds the prompt's size and the context's."""
    with pytest.raises(ContextOverflowError, match=r"256.*256"):
        await sampler.sample(request(version=sampler.versions()[0], prompt_ids=PROMPT[:1] * 256))
    assert sampler.context_tokens == 256


async def test_loading_is_idempotent_and_a_name_keeps_its_weights(sampler: Sampler) -> None:
    """The same version again is fine; the same name with other weights is refused."""
    version = next(one.version for one in (tiny_policy(), wide_policy()) if one.version.name in sampler.versions())
    await sampler.load(version)
    assert sampler.versions() == (version.name,)
    with pytest.raises(ConflictError, match=version.name):
        await sampler.load(replace(version, adapter=some_adapter(1)))


async def test_the_fake_fails_when_its_script_runs_out() -> None:
    """A test that samples more than it scripted does not pass by accident."""
    scripted = ScriptedSampler([(1,)])
    await scripted.load(tiny_policy().version)
    await scripted.sample(request())
    with pytest.raises(SamplerError, match="no turn for call 2"):
        await scripted.sample(request())


# --- the real model -----------------------------------------------------------------------------------


def some_adapter(seed: int, size: float = 0.3) -> tuple[FileEntry, ...]:
    """Keep a random adapter of every projection."""
    tiny = tiny_policy()
    random = torch.Generator().manual_seed(seed)
    model = build_model(fetch_files(tiny.store, tiny.base.files))
    factors: dict[str, Factors] = {}
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            n_out, n_in = weight.shape
            factors[name.removesuffix(".weight")] = Factors(
                a=torch.randn(2, n_in, generator=random) * size, b=torch.randn(n_out, 2, generator=random) * size
            )
    files = write_adapter(Adapter(scale=1.0, factors=factors), rank=2, alpha=2, base=tiny.base.digest)
    return keep_files(tiny.store, files)


def version_of(adapter: tuple[FileEntry, ...]) -> PolicyVersion:
    """Return a version named by its adapter."""
    return PolicyVersion(
        name=f"ckpt-{files_digest(adapter)[:12]}", base=tiny_policy().base.digest, adapter=adapter, n_optimizer_steps=1
    )


def rescored(
    result: SampleResult, prompt: Sequence[int], temperature: float = 1.0, version: PolicyVersion | None = None
) -> list[float]:
    """Return logprobs of sampled ids by one pass of a fresh model over prompt and sample."""
    tiny = tiny_policy()
    model = build_model(fetch_files(tiny.store, tiny.base.files))
    if version is not None:
        adapter = read_adapter(fetch_files(tiny.store, version.adapter))
        for name, factors in adapter.factors.items():
            model.get_parameter(f"{name}.weight").data += adapter.scale * factors.b @ factors.a
    ids = torch.tensor([[*prompt, *result.sampled_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids[:, :-1]).logits[0] / temperature, dim=-1)
    return [float(logprobs[len(prompt) - 1 + index, token]) for index, token in enumerate(result.sampled_ids)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_sampling_distribution(real: TransformersSampler, temperature: float) -> None:
    """Many requests at once, over turns that reuse keys: every logprob agrees with a plain pass to 1e-4."""
    family = tiny_policy().family

    async def conversation(index: int) -> float:
        prompt = family.render(demonstrations()[index % 3].messages[:2], (BASH,))
        worst = 0.0
        for turn in range(3):
            result = await real.sample(request(prompt_ids=prompt, temperature=temperature, seed=100 * index + turn))
            again = rescored(result, prompt, temperature)
            worst = max(worst, *np.abs(np.subtract(again, result.logprobs)).tolist())
            following = family.bridge(prompt, result.sampled_ids, [RESULT], (BASH,))
            if following is None or len(following) > 200:
                break
            prompt = following
            await asyncio.sleep(0.001 * (index % 3))
        return worst

    assert max(await asyncio.gather(*(conversation(index) for index in range(24)))) <= 1e-4


async def test_a_sample_does_not_depend_on_its_neighbours(real: TransformersSampler) -> None:
    """The same seed gives the same ids alone, beside equal prompts and beside others; another seed differs."""
    alone = [await real.sample(request(seed=seed)) for seed in range(6)]
    together = await asyncio.gather(
        *(real.sample(request(seed=seed)) for seed in range(6)),
        *(real.sample(request(seed=seed, prompt_ids=PROMPT[: 4 + seed])) for seed in range(6)),
    )
    assert [one.sampled_ids for one in together[:6]] == [one.sampled_ids for one in alone]
    assert len({one.sampled_ids for one in alone}) > 1


async def test_versions_are_served_at_once_and_never_mixed(real: TransformersSampler) -> None:
    """Base and adapters sampled together from a cached prompt: each gives its own logprobs."""
    versions = [version_of(some_adapter(seed)) for seed in range(3)]
    await real.sample(request())
    for version in versions:
        await real.load(version)
    names = [tiny_policy().version.name, *(version.name for version in versions)]
    results = await asyncio.gather(*(real.sample(request(version=name)) for name in names for _ in range(2)))
    for name, result in zip([name for name in names for _ in range(2)], results, strict=True):
        version = next((one for one in versions if one.name == name), None)
        assert np.abs(np.subtract(rescored(result, PROMPT, version=version), result.logprobs)).max() <= 1e-4
    # Equal to the last digit only in equal batches: who shares a forward pass is a matter of time.
    for (first, second), name in zip(zip(results[::2], results[1::2], strict=True), names, strict=True):
        assert first.sampled_ids == second.sampled_ids, name
        assert np.allclose(first.logprobs, second.logprobs, atol=1e-4), name
    for one, other in itertools.combinations(results[::2], 2):
        assert one.sampled_ids != other.sampled_ids or not np.allclose(one.logprobs, other.logprobs, atol=1e-3)
    assert real.versions() == tuple(names)


async def test_dropped_weights_come_back() -> None:
    """More versions than are kept in memory: each is still served with its own weights."""
    tiny = tiny_policy()
    sampler = TransformersSampler(tiny.store, tiny.files_of_base, keep_versions=2)
    versions = [version_of(some_adapter(seed)) for seed in range(4)]
    for version in versions:
        await sampler.load(version)
    first = [await sampler.sample(request(version=version.name)) for version in versions]
    again = [await sampler.sample(request(version=version.name)) for version in versions]
    sampler.close()
    assert [one.sampled_ids for one in first] == [one.sampled_ids for one in again]
    assert len(sampler.versions()) == 4


async def test_more_requests_than_rows_and_the_end_of_the_context(real: TransformersSampler) -> None:
    """Requests queue beyond the batch, and one that reaches the context's end stops by length."""
    results = await asyncio.gather(*(real.sample(request(seed=seed, max_tokens=6)) for seed in range(50)))
    assert all(result.sampled_ids for result in results)
    long = await real.sample(request(prompt_ids=(PROMPT * 20)[:250], max_tokens=100, stop_ids=()))
    assert (len(long.sampled_ids), long.stop_reason) == (6, StopReason.LENGTH)


async def test_temperature_zero_takes_the_likeliest(real: TransformersSampler) -> None:
    """Greedy ignores the seed; its distribution is a point mass, so its logprobs are 0."""
    one, other = [await real.sample(request(temperature=0.0, seed=seed)) for seed in (1, 2)]
    assert one.sampled_ids == other.sampled_ids
    assert set(one.logprobs) == {0.0}


async def test_a_cancelled_request_frees_its_row(real: TransformersSampler) -> None:
    """Who waits no longer does not hold the batch up."""
    waiting = asyncio.create_task(real.sample(request(max_tokens=200, stop_ids=())))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await real.sample(request())).sampled_ids


async def test_bad_requests_and_a_closed_sampler_are_refused() -> None:
    """Empty prompts, foreign ids, negative temperatures; after close nothing hangs."""
    tiny = tiny_policy()
    sampler = TransformersSampler(tiny.store, tiny.files_of_base)
    await sampler.load(tiny.version)
    for changes in ({"prompt_ids": ()}, {"prompt_ids": (999_999,)}, {"temperature": -1.0}, {"max_tokens": 0}):
        with pytest.raises(SamplerError):
            await sampler.sample(request(**changes))
    running = asyncio.create_task(sampler.sample(request(max_tokens=220, stop_ids=())))
    await asyncio.sleep(0)
    await asyncio.to_thread(sampler.close)
    results = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(results[0], (SamplerError, SampleResult))
    with pytest.raises(SamplerError, match="closed"):
        await sampler.sample(request())


async def test_broken_weights_answer_with_an_error(real: TransformersSampler) -> None:
    """A version whose logits are not finite fails its own requests and no others."""
    tiny = tiny_policy()
    files = fetch_files(tiny.store, some_adapter(5))
    tensors = {
        name: torch.full_like(value, float("nan")) for name, value in load_tensors(files[ADAPTER_WEIGHTS]).items()
    }
    broken = version_of(keep_files(tiny.store, {**files, ADAPTER_WEIGHTS: save_tensors(tensors)}))
    await real.load(broken)
    with pytest.raises(SamplerError, match="not finite"):
        await real.sample(request(version=broken.name))
    assert (await real.sample(request())).sampled_ids


async def test_what_is_no_adapter_of_this_base_is_refused(real: TransformersSampler) -> None:
    """An unknown base, a missing file and another kind of adapter are named."""
    tiny = tiny_policy()
    with pytest.raises(NotFoundError, match="no base policy"):
        await real.load(PolicyVersion(name="base-x", base="0" * 64))
    adapter = some_adapter(3)
    with pytest.raises(ConfigurationError, match=r"adapter_config\.json"):
        await real.load(version_of(tuple(entry for entry in adapter if entry.path == ADAPTER_WEIGHTS)))
    files = fetch_files(tiny.store, adapter)
    other = files["adapter_config.json"].replace(b'"bias": "none"', b'"bias": "all"')
    with pytest.raises(ConfigurationError, match="field bias"):
        await real.load(version_of(keep_files(tiny.store, {**files, "adapter_config.json": other})))


def test_draws_follow_the_distribution() -> None:
    """Frequencies over many seeds are the softmax's; the numbers of a seed are always the same."""
    logits = torch.tensor([[0.0, 1.0, -1.0, float("-inf")]]).repeat(20_000, 1)
    uniform = np.array([uniforms(seed, 3)[2] for seed in range(20_000)])
    drawn = draw(logits, np.ones(20_000), uniform)
    expected = torch.softmax(logits[0], dim=-1).numpy()
    found = np.bincount(drawn.ids, minlength=4) / 20_000
    np.testing.assert_allclose(found, expected, atol=0.015)
    np.testing.assert_allclose(drawn.logprobs, np.log(expected[drawn.ids]), rtol=1e-5)
    np.testing.assert_array_equal(uniforms(5, 9)[:3], uniforms(5, 3))


class _Counting(ScriptedSampler):
    """Takes a moment for each call, and counts how many are under way."""

    n_now = n_most = 0

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample after a moment."""
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        await asyncio.sleep(0.01)
        self.n_now -= 1
        return await super().sample(request)


async def test_a_bounded_sampler_works_on_so_many_calls_at_once() -> None:
    """The others wait, every call is answered, and one that gives up leaves its place."""
    inner = _Counting([[5, STOP[0]]] * 12)
    bounded = BoundedSampler(inner, 3)
    await bounded.load(tiny_policy().version)
    calls = [asyncio.ensure_future(bounded.sample(request(seed=seed))) for seed in range(12)]
    await asyncio.sleep(0.005)
    calls.pop().cancel()
    answers = await asyncio.gather(*calls)
    assert (len(answers), inner.n_most, inner.n_now) == (11, 3, 0)
    assert (bounded.versions(), bounded.context_tokens) == (inner.versions(), inner.context_tokens)
