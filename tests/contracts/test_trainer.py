"""The trainer contract, and what only the real one can show: the formulas, bit-equality, durable steps."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from adapters.lora_format import read_adapter
from adapters.samplers.transformers import TransformersSampler
from adapters.stores.arrow import ArrowDatumTables
from adapters.torch_weights import build_model, fetch_files
from adapters.trainers.losses import Targets, drift_sums, loss_sum
from adapters.trainers.microbatches import check_datums
from adapters.trainers.peft import PeftTrainer
from domain.errors import StoreError, SynthError, TrainerError
from domain.lifecycle.mini_dialogue import BASH
from domain.maths.objectives import LossTerms, drift_metrics, evaluate_loss
from domain.ports import Contribution, SampleRequest, StepResult, StepStatus, Trainer, TrainingRun
from domain.records.assessment import Datum
from domain.records.profile import Objective, Optimisation
from domain.records.task import ObjectRef
from tests.fakes.models import demonstrations, tiny_policy
from tests.fakes.store import MemoryStore
from tests.fakes.trainer import LinearTrainer, TrainerDisk

peft_model: Any = PeftModel
"""The class, whose own annotations are not complete enough to check against."""

RUN = "trn-01"
OPTIMISATION = Optimisation(learning_rate=1e-2, lora_rank=4, lora_alpha=8)
TRAINING = TrainingRun(run=RUN, base=tiny_policy().version, optimisation=OPTIMISATION, seed=3)


def row(seed: int, *, length: int = 30, trial_id: str = "t") -> Datum:
    """Return a random row with about a third of its targets sampled."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 300, length + 1).astype(np.int32)
    mask = (random.random(length) < 0.35).astype(np.float32)
    mask[-1] = 1.0
    return Datum(
        input_ids=ids[:-1],
        target_ids=ids[1:],
        logprobs=(mask * random.uniform(-7, -4, length)).astype(np.float32),
        advantages=(mask * random.choice([-0.5, 0.25, 1.0])).astype(np.float32),
        mask=mask,
        trial_id=trial_id,
    )


def rows(group: int, update: int = 0) -> list[Datum]:
    """Return a group's rows, of different lengths."""
    return [row(1000 * update + 10 * group + index, length=20 + 7 * index) for index in range(4)]


@dataclass(slots=True, kw_only=True)
class Bench:
    """A trainer and how to replace it by a new one with the same durable state."""

    tables: ArrowDatumTables
    make: Callable[[], Trainer]
    trainer: Trainer

    def restart(self) -> None:
        """Lose everything that is not durable."""
        if isinstance(self.trainer, PeftTrainer):
            self.trainer.close()
        self.trainer = self.make()

    def contribution(self, group: int, update: int = 0, datums: Sequence[Datum] | None = None) -> Contribution:
        """Return a contribution over random rows."""
        table = self.tables.write(rows(group, update) if datums is None else datums)
        return Contribution(
            update_id=f"{RUN}.b{update:05d}",
            group=group,
            datums=table,
            objective=Objective.IMPORTANCE_SAMPLING,
        )

    async def update(self, update: int, groups: Sequence[int] = (0, 1, 2)) -> StepResult:
        """Submit groups in the given order and step."""
        await self.trainer.begin_update(RUN, f"{RUN}.b{update:05d}")
        found = [await self.trainer.forward_backward(RUN, self.contribution(group, update)) for group in groups]
        return await self.trainer.optim_step(RUN, f"{RUN}.b{update:05d}", tuple(one.key for one in found))


def real_bench(directory: Path, *, threads: int = 2) -> Bench:
    """Return the real trainer over the tiny policy."""
    tiny = tiny_policy()
    tables = ArrowDatumTables(tiny.store)

    def make() -> Trainer:
        return PeftTrainer(tiny.store, tables, directory, tiny.files_of_base, threads=threads, padded_tokens=96)

    return Bench(tables=tables, make=make, trainer=make())


def fake_bench(directory: Path) -> Bench:
    """Return the fake."""
    del directory
    store, disk = MemoryStore(), TrainerDisk()
    tables = ArrowDatumTables(store)

    def make() -> Trainer:
        return LinearTrainer(store, tables, disk)

    return Bench(tables=tables, make=make, trainer=make())


@pytest.fixture
async def real(tmp_path: Path) -> AsyncGenerator[Bench]:
    """The real trainer with an open run."""
    bench = real_bench(tmp_path)
    await bench.trainer.open(TRAINING, ())
    yield bench
    if isinstance(bench.trainer, PeftTrainer):
        bench.trainer.close()


@pytest.fixture(params=[real_bench, fake_bench], ids=["real", "fake"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Bench]:
    """Every trainer in turn, with an open run."""
    made: Bench = request.param(tmp_path)
    await made.trainer.open(TRAINING, ())
    yield made
    if isinstance(made.trainer, PeftTrainer):
        made.trainer.close()


# --- the contract -------------------------------------------------------------------------------------


async def test_a_step_gives_new_weights_under_a_new_name(bench: Bench) -> None:
    """Each step counts, names its weights by content and leaves the base's name alone."""
    first, second = await bench.update(0), await bench.update(1)
    assert (first.n_optimizer_steps, second.n_optimizer_steps) == (1, 2)
    assert len({first.sampler.name, second.sampler.name}) == 2
    assert first.sampler.name.startswith("ckpt-")
    assert first.sampler.base == TRAINING.base.base
    assert first.sampler.n_optimizer_steps == 1
    assert first.grad_norm > 0


async def test_weights_do_not_depend_on_the_order_of_arrival(bench: Bench) -> None:
    """Groups submitted in another order give the same bits."""
    one = await bench.update(0, (0, 1, 2))
    await bench.trainer.open(replace(TRAINING, run=RUN), ())
    other_update = f"{RUN}.b00009"
    await bench.trainer.begin_update(RUN, other_update)
    keys: list[str] = []
    for group in (2, 0, 1):
        moved = replace(bench.contribution(group, 0), update_id=other_update)
        keys.append((await bench.trainer.forward_backward(RUN, moved)).key)
    other = await bench.trainer.optim_step(RUN, other_update, tuple(keys))
    assert other.sampler == one.sampler
    assert other.state == one.state


async def test_a_contribution_is_counted_once(bench: Bench) -> None:
    """The same key again returns the first result, and begin_update tells what is held."""
    update = f"{RUN}.b00000"
    assert await bench.trainer.begin_update(RUN, update) == ()
    first = await bench.trainer.forward_backward(RUN, bench.contribution(0))
    again = await bench.trainer.forward_backward(RUN, bench.contribution(0))
    assert first == again
    assert await bench.trainer.begin_update(RUN, update) == (first.key,)
    assert (await bench.trainer.optim_step(RUN, update, (first.key,))).n_optimizer_steps == 1


async def test_a_step_takes_exactly_the_keys_named(bench: Bench) -> None:
    """Missing, foreign or no keys are refused, and the update stays open for the right ones."""
    update = f"{RUN}.b00000"
    await bench.trainer.begin_update(RUN, update)
    keys = [(await bench.trainer.forward_backward(RUN, bench.contribution(group))).key for group in (0, 1)]
    for wrong in ((keys[0],), (*keys, "other"), ()):
        with pytest.raises(TrainerError, match="keys given"):
            await bench.trainer.optim_step(RUN, update, wrong)
    assert (await bench.trainer.step_status(RUN, update))[0] is StepStatus.NOT_APPLIED
    assert (await bench.trainer.optim_step(RUN, update, tuple(reversed(keys)))).n_optimizer_steps == 1


async def test_a_repeated_step_returns_the_recorded_one(bench: Bench) -> None:
    """The same id never steps twice, in this process or the next."""
    first = await bench.update(0)
    keys = await bench.trainer.begin_update(RUN, first.update_id)
    assert await bench.trainer.optim_step(RUN, first.update_id, keys) == first
    bench.restart()
    assert await bench.trainer.step_status(RUN, first.update_id) == (StepStatus.APPLIED, first)
    await bench.trainer.open(TRAINING, first.state)
    keys = await bench.trainer.begin_update(RUN, first.update_id)
    assert len(keys) == 3
    assert await bench.trainer.optim_step(RUN, first.update_id, keys) == first
    assert (await bench.update(1)).n_optimizer_steps == 2


async def test_a_restart_loses_only_what_was_not_applied(bench: Bench) -> None:
    """Interrupted between contributions, the resumed run gives the same bits as one that was not."""
    whole = [await bench.update(index) for index in range(3)]
    state = whole[0].state
    bench.restart()
    await bench.trainer.open(TRAINING, state)
    await bench.trainer.begin_update(RUN, "later")
    await bench.trainer.forward_backward(RUN, replace(bench.contribution(0, 1), update_id="later"))
    bench.restart()
    assert (await bench.trainer.step_status(RUN, "later"))[0] is StepStatus.NOT_APPLIED
    await bench.trainer.open(TRAINING, state)
    assert await bench.trainer.begin_update(RUN, "later") == ()
    keys: list[str] = []
    for group in (0, 1, 2):
        part = replace(bench.contribution(group, 1), update_id="later")
        keys.append((await bench.trainer.forward_backward(RUN, part)).key)
    again = await bench.trainer.optim_step(RUN, "later", tuple(keys))
    assert again.sampler == whole[1].sampler
    assert again.state == whole[1].state


async def test_updates_do_not_overlap(bench: Bench) -> None:
    """A second update waits until the first is stepped or abandoned; abandoning twice is fine."""
    await bench.trainer.begin_update(RUN, "one")
    with pytest.raises(TrainerError, match="one"):
        await bench.trainer.begin_update(RUN, "two")
    await bench.trainer.abandon_update(RUN, "one")
    await bench.trainer.abandon_update(RUN, "one")
    assert await bench.trainer.begin_update(RUN, "two") == ()
    with pytest.raises(TrainerError, match="not open"):
        await bench.trainer.forward_backward(RUN, replace(bench.contribution(0), update_id="one"))


async def test_a_run_must_be_open(bench: Bench) -> None:
    """Operations on an unknown run are refused; its status is still answered."""
    with pytest.raises(TrainerError, match="not open"):
        await bench.trainer.begin_update("trn-99", "one")
    assert await bench.trainer.step_status("trn-99", "one") == (StepStatus.NOT_APPLIED, None)


async def test_numbers_that_are_not_finite_are_refused_by_name(bench: Bench) -> None:
    """Nothing of a poisoned contribution is kept, and the update goes on without it."""
    poisoned = replace(row(1), advantages=np.full(30, np.nan, dtype=np.float32))
    bad = bench.contribution(1, datums=[row(0), poisoned])
    await bench.trainer.begin_update(RUN, bad.update_id)
    with pytest.raises(TrainerError, match="g001/"):
        await bench.trainer.forward_backward(RUN, bad)
    assert await bench.trainer.begin_update(RUN, bad.update_id) == ()


# --- the real trainer ---------------------------------------------------------------------------------


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
    """A row whose unmasked advantages and logprobs are garbage trains as the clean one."""
    clean = row(4)
    dirty = replace(
        clean,
        advantages=np.where(clean.mask > 0, clean.advantages, 9.0).astype(np.float32),
        logprobs=np.where(clean.mask > 0, clean.logprobs, -3.0).astype(np.float32),
    )
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
    extreme = replace(row(2), logprobs=(row(2).mask * -500).astype(np.float32))
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


async def test_a_torn_record_is_unknown_until_the_run_is_reopened(tmp_path: Path, real: Bench) -> None:
    """A half-written line proves nothing; opening the run with a decided state sets it aside."""
    first = await real.update(0)
    record = tmp_path / RUN / "applied.jsonl"
    whole = record.read_bytes()
    record.write_bytes(whole + b'{"contributions":[')
    real.restart()
    assert await real.trainer.step_status(RUN, f"{RUN}.b00001") == (StepStatus.UNKNOWN, None)
    assert (await real.trainer.step_status(RUN, first.update_id))[0] is StepStatus.APPLIED
    await real.trainer.open(TRAINING, first.state)
    assert (await real.trainer.step_status(RUN, f"{RUN}.b00001"))[0] is StepStatus.NOT_APPLIED
    assert record.read_bytes() == whole
    assert (await real.update(1)).n_optimizer_steps == 2


async def test_a_step_that_cannot_be_kept_is_taken_back(tmp_path: Path) -> None:
    """The store refuses: the error is told, weights stay, and the step can be tried again with the same result."""

    class FullStore(MemoryStore):
        full = False

        def put(self, data: bytes) -> ObjectRef:
            if self.full:
                message = "no space left"
                raise StoreError(message)
            return super().put(data)

    tiny = tiny_policy()
    store = FullStore()
    store.objects.update(tiny.store.objects)
    tables = ArrowDatumTables(store)

    def make() -> Trainer:
        return PeftTrainer(store, tables, tmp_path, tiny.files_of_base, padded_tokens=96)

    bench = Bench(tables=tables, make=make, trainer=make())
    await bench.trainer.open(TRAINING, ())
    update = f"{RUN}.b00000"
    await bench.trainer.begin_update(RUN, update)
    key = (await bench.trainer.forward_backward(RUN, bench.contribution(0))).key
    store.full = True
    with pytest.raises(StoreError, match="no space"):
        await bench.trainer.optim_step(RUN, update, (key,))
    assert (await bench.trainer.step_status(RUN, update))[0] is StepStatus.NOT_APPLIED
    store.full = False
    late = await bench.trainer.optim_step(RUN, update, (key,))
    await bench.trainer.open(replace(TRAINING, run="trn-02"), ())
    await bench.trainer.begin_update("trn-02", update)
    await bench.trainer.forward_backward("trn-02", bench.contribution(0))
    assert (await bench.trainer.optim_step("trn-02", update, (key,))).state == late.state
    bench.restart()


async def test_a_step_in_flight_is_unknown_and_survives_its_caller(real: Bench) -> None:
    """Who asks while a step runs learns nothing yet; a caller that gives up does not stop it."""
    update = f"{RUN}.b00000"
    await real.trainer.begin_update(RUN, update)
    parts = [real.contribution(group) for group in range(3)]
    keys = tuple(part.key for part in parts)
    pending = [asyncio.create_task(real.trainer.forward_backward(RUN, part)) for part in parts]
    step = asyncio.create_task(real.trainer.optim_step(RUN, update, keys))
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.gather(*pending)
    status, result = await real.trainer.step_status(RUN, update)
    for _ in range(200):
        if status is StepStatus.APPLIED:
            break
        assert status is StepStatus.UNKNOWN
        await asyncio.sleep(0.01)
        status, result = await real.trainer.step_status(RUN, update)
    assert status is StepStatus.APPLIED
    assert result is not None
    assert result.n_optimizer_steps == 1


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
