"""The trainer contract over the real trainer and the fake, and the real one's durable record."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapters.stores.arrow import ArrowDatumTables
from adapters.trainers.peft import PeftTrainer
from domain.errors import StoreError, TrainerError
from domain.ports import StepStatus, Trainer
from domain.records.task import ObjectRef
from tests.contracts.trainer_bench import RUN, TRAINING, Bench, fake_bench, real_bench, row
from tests.fakes.models import tiny_policy
from tests.fakes.store import MemoryStore


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


# --- the durable record ---------------------------------------------------------------------------


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
