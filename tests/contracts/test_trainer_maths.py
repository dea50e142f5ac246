"""What only the real trainer can show: the formulas, bit-equality, agreement with the sampler and with peft."""

import warnings
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from adapters.lora_format import read_adapter
from adapters.samplers.transformers import TransformersSampler
from adapters.torch_weights import build_model, fetch_files
from adapters.trainers.losses import Targets, drift_sums, loss_sum
from adapters.trainers.microbatches import check_datums
from adapters.trainers.peft import PeftTrainer
from domain.errors import SynthError, TrainerError
from domain.lifecycle.mini_dialogue import BASH
from domain.maths.objectives import LossTerms, drift_metrics, evaluate_loss
from domain.ports import SampleRequest
from domain.records.assessment import Datum
from domain.records.profile import Objective
from tests.contracts.trainer_bench import OPTIMISATION, RUN, TRAINING, Bench, real_bench, row, rows
from tests.fakes.models import demonstrations, tiny_policy

peft_model: Any = PeftModel
"""The class, whose own annotations are not complete enough to check against."""


@pytest.fixture
async def real(tmp_path: Path) -> AsyncGenerator[Bench]:
    """The real trainer with an open run."""
    bench = real_bench(tmp_path)
    await bench.trainer.open(TRAINING, ())
    yield bench
    if isinstance(bench.trainer, PeftTrainer):
        bench.trainer.close()


def terms(count: int, *, wide: bool) -> LossTerms:
    """Return random loss terms; wide ones need clamping."""
    random = np.random.default_rng(count)
    spread = 40.0 if wide else 1.0
    mask = (random.random(count) < 0.6).astype(np.float64)
    return LossTerms(
        target_logprobs=random.uniform(-3, 0, count),
        sampler_logprobs=mask * random.uniform(-3 - spread, 0, count),
        advantages=mask * random.normal(size=count),
        mask=mask,
    )


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("wide", [False, True])
def test_losses_and_gradients_are_the_reference(objective: Objective, *, wide: bool) -> None:
    """Value, gradient and drift agree with the numpy formulas."""
    given = terms(40, wide=wide)
    inside = given.mask > 0
    logprobs = torch.tensor(given.target_logprobs[inside], requires_grad=True)
    targets = Targets(
        logprobs=logprobs,
        sampler_logprobs=torch.as_tensor(given.sampler_logprobs[inside]),
        advantages=torch.as_tensor(given.advantages[inside]),
        mask=torch.as_tensor(given.mask[inside]),
    )
    loss = loss_sum(objective, targets)
    gradient = torch.autograd.grad(loss, logprobs)[0]
    expected = evaluate_loss(objective.value, given)
    assert loss.item() == pytest.approx(expected.total)
    np.testing.assert_allclose(gradient.numpy(), expected.gradient[inside], rtol=1e-12)
    metrics = drift_sums(targets).metrics()
    for name, value in drift_metrics(given).items():
        assert metrics[name] == pytest.approx(value), name


async def test_gradients_are_those_of_autograd_through_the_adapter(real: Bench) -> None:
    """One plain SGD-like check: the first Adam step moves B against the sign of its gradient, A stays (B was 0)."""
    result = await real.update(0, (0,))
    adapter = read_adapter(fetch_files(tiny_policy().store, result.state))
    tiny = tiny_policy()
    model = build_model(fetch_files(tiny.store, tiny.base.files))
    name, factors = next(iter(adapter.factors.items()))
    weight = model.get_parameter(f"{name}.weight")
    total = torch.zeros(())
    for datum in rows(0):
        logits = model(input_ids=torch.as_tensor(datum.input_ids[None].astype(np.int64))).logits[0]
        logprobs = torch.log_softmax(logits, dim=-1)[range(len(datum.target_ids)), datum.target_ids.astype(np.int64)]
        ratio = torch.exp(logprobs - torch.as_tensor(datum.logprobs))
        total = total - (ratio * torch.as_tensor(datum.advantages) * torch.as_tensor(datum.mask)).sum()
    dense = torch.autograd.grad(total, weight)[0]
    expected = torch.sign(dense @ factors.a.T)
    clear = (dense @ factors.a.T).abs() > 1e-4
    assert torch.equal(torch.sign(-factors.b)[clear], expected[clear])


async def test_trainer_and_sampler_agree_at_the_same_weights(real: Bench) -> None:
    """Sampled tokens scored by the trainer before and after a step: max |difference| <= 1e-4."""
    tiny = tiny_policy()
    sampler = TransformersSampler(tiny.store, tiny.files_of_base)
    await sampler.load(tiny.version)
    version = tiny.version
    for update in range(2):
        prompt = tiny.family.render(demonstrations()[update].messages[:2], (BASH,))
        sampled = [
            await sampler.sample(
                SampleRequest(
                    version=version.name,
                    prompt_ids=prompt,
                    max_tokens=20,
                    temperature=1.0,
                    stop_ids=tiny.family.stop_ids,
                    seed=seed,
                )
            )
            for seed in range(6)
        ]
        datums = [_datum(prompt, one.sampled_ids, one.logprobs, float(index - 2)) for index, one in enumerate(sampled)]
        part = real.contribution(0, update, datums)
        await real.trainer.begin_update(RUN, part.update_id)
        found = await real.trainer.forward_backward(RUN, part)
        assert found.metrics["logprob_gap_max"] <= 1e-4
        assert found.metrics["ess"] == pytest.approx(1.0, abs=1e-4)
        assert found.n_tokens == sum(len(one.sampled_ids) for one in sampled)
        version = (await real.trainer.optim_step(RUN, part.update_id, (found.key,))).sampler
        await sampler.load(version)
    sampler.close()


def _datum(prompt: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float], advantage: float) -> Datum:
    ids = np.array([*prompt, *sampled], dtype=np.int32)
    mask = np.array([0.0] * len(prompt) + [1.0] * len(sampled), dtype=np.float32)[1:]
    return Datum(
        input_ids=ids[:-1],
        target_ids=ids[1:],
        logprobs=np.array([0.0] * len(prompt) + list(logprobs), dtype=np.float32)[1:],
        advantages=mask * np.float32(advantage),
        mask=mask,
    )


async def test_reinforced_tokens_become_likelier(real: Bench) -> None:
    """Cross-entropy on one row, a few steps: its loss falls."""
    losses: list[float] = []
    weighted = replace(row(1), advantages=row(1).mask)
    for update in range(6):
        part = replace(real.contribution(0, update, [weighted]), objective=Objective.CROSS_ENTROPY)
        await real.trainer.begin_update(RUN, part.update_id)
        found = await real.trainer.forward_backward(RUN, part)
        losses.append(found.loss_sum)
        await real.trainer.optim_step(RUN, part.update_id, (found.key,))
    assert losses == sorted(losses, reverse=True)


async def test_threads_do_not_show_in_the_bits(tmp_path: Path, real: Bench) -> None:
    """One or three micro-batches at once: the same weights."""
    other = real_bench(tmp_path / "other", threads=3)
    await other.trainer.open(TRAINING, ())
    assert (await other.update(0)).state == (await real.update(0)).state
    if isinstance(other.trainer, PeftTrainer):
        other.trainer.close()


async def test_the_mask_stops_prompt_tokens_whatever_their_advantage(real: Bench) -> None:
    """A row whose unmasked advantages are garbage trains as the clean one; a table keeps no unmasked logprobs."""
    clean = row(4)
    dirty = replace(clean, advantages=np.where(clean.mask > 0, clean.advantages, 9.0).astype(np.float32))
    results: list[str] = []
    for index, datum in enumerate((clean, dirty)):
        await real.trainer.open(replace(TRAINING, run=f"trn-m{index}"), ())
        part = real.contribution(0, 0, [datum])
        await real.trainer.begin_update(f"trn-m{index}", part.update_id)
        found = await real.trainer.forward_backward(f"trn-m{index}", part)
        step = await real.trainer.optim_step(f"trn-m{index}", part.update_id, (found.key,))
        results.append(step.sampler.name)
    assert results[0] == results[1]


async def test_extreme_ratios_are_clamped_and_counted(real: Bench) -> None:
    """A log-ratio beyond 20 neither overflows nor hides."""
    extreme = replace(row(2), logprobs=np.where(row(2).mask > 0, -500, 0).astype(np.float32))
    part = real.contribution(0, 0, [extreme])
    await real.trainer.begin_update(RUN, part.update_id)
    found = await real.trainer.forward_backward(RUN, part)
    assert found.metrics["n_clamped"] == found.n_tokens
    assert np.isfinite(found.loss_sum)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mask": np.ones(3, dtype=np.float32)}, "mask"),
        ({"logprobs": np.full(30, -np.inf, dtype=np.float32)}, "logprobs"),
        ({"input_ids": np.full(30, 10_000, dtype=np.int32)}, "input_ids"),
    ],
)
def test_wrong_rows_are_named(changes: dict[str, np.ndarray], field: str) -> None:
    """Shape, finiteness and vocabulary are checked before anything is computed."""
    with pytest.raises(TrainerError, match=f"row 1 .*field {field}"):
        check_datums([row(0), replace(row(1), **changes)], 384, "c")


async def test_a_state_of_another_plan_is_refused(real: Bench) -> None:
    """Rank and alpha must be those of the saved state; a run id must be a safe name."""
    state = (await real.update(0)).state
    for changed in (replace(OPTIMISATION, lora_rank=8), replace(OPTIMISATION, lora_alpha=1)):
        with pytest.raises(SynthError, match="saved adapter"):
            await real.trainer.open(replace(TRAINING, optimisation=changed), state)
    with pytest.raises(TrainerError, match="no file name"):
        await real.trainer.open(replace(TRAINING, run="../up"), ())


async def test_the_adapter_is_a_peft_adapter(tmp_path: Path, real: Bench) -> None:
    """Peft itself loads the files and computes what we serve."""
    tiny = tiny_policy()
    result = await real.update(0)
    for name, data in fetch_files(tiny.store, result.sampler.adapter).items():
        (tmp_path / name).write_bytes(data)
    base = fetch_files(tiny.store, tiny.base.files)
    ids = torch.arange(5, 25)[None]
    ours = build_model(base)
    adapter = read_adapter(fetch_files(tiny.store, result.sampler.adapter))
    for name, factors in adapter.factors.items():
        ours.get_parameter(f"{name}.weight").data += adapter.scale * factors.b @ factors.a
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # peft 0.21 reads a renamed attribute of transformers
        theirs = peft_model.from_pretrained(build_model(base), str(tmp_path))
        difference = (theirs(input_ids=ids).logits - ours(input_ids=ids).logits).abs().max()
    assert float(difference) < 1e-4
