"""SIGKILL exactly inside the optimizer step: evidence settles it, or it blocks until the operator's word."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.stores.directory import DirectoryStore
from domain.errors import UnresolvedUpdateError
from domain.ports import StepStatus
from domain.records.experiment import UnitState
from domain.records.model import UpdateState
from domain.records.task import ObjectRef
from domain.service.dispatch import dispatch
from domain.service.learning import advance
from domain.service.platform import Platform
from resources.settings import read_settings
from resources.wiring import connect
from tests.cli.synth import Synth
from tests.fakes.scripted_model import Process, model_process
from tests.services.killed_step import HOLDER, UNIT, admit_training, real_trainer, record
from tests.services.test_fence import TRAINING, settle_groups

ROOT = Path(__file__).parents[2]


class GatedStore(DirectoryStore):
    """A directory store that can be made to wait, so that a step stays in flight."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def put(self, data: bytes) -> ObjectRef:
        """Wait at a closed gate, then keep."""
        if not self.open.is_set():
            self.reached.set()
            assert self.open.wait(timeout=60)
        return super().put(data)


def prepare(home: Path) -> Platform:
    """Return the platform of a home whose first batch wants its step."""
    platform = connect(read_settings({"SYNTH_HOME": str(home)}))
    admit_training(platform, home / "tasks")
    settle_groups(platform, 0)
    with platform.ledger.begin() as tx:
        tx.units.release(tx.units.acquire(UNIT, HOLDER, 0, 1.0), UnitState.ADMITTED)
    return platform


def worker(home: Path, point: str) -> "subprocess.Popen[bytes]":
    """Start the worker of the first batch."""
    return subprocess.Popen([sys.executable, "-m", "tests.services.killed_step", str(home), point], cwd=ROOT)


def update_state(platform: Platform) -> UpdateState:
    """Return the state of the first batch's update."""
    with platform.ledger.snapshot() as tx:
        return tx.updates.get(UNIT).state


def killed_at(home: Path, point: str) -> Platform:
    """Let a worker die at a point; return the platform with a new trainer over what is left."""
    platform = prepare(home)
    assert worker(home, point).wait(timeout=120) == -9
    assert update_state(platform) is UpdateState.UNRESOLVED
    return replace(platform, trainer=real_trainer(platform, home))


@pytest.fixture
def synth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Synth:
    """Return the command in a home of its own."""
    monkeypatch.setenv("SYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SYNTH_LEDGER_URL", raising=False)
    return Synth(home=tmp_path / "home", capture=capsys)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of the weights that nobody's death touched: a digest of their bytes."""
    home = tmp_path_factory.mktemp("undisturbed")
    platform = prepare(home)
    done = asyncio.run(advance(replace(platform, trainer=real_trainer(platform, home)), UNIT, HOLDER))
    assert done.checkpoint is not None
    return done.checkpoint.checkpoint_id


@pytest.mark.parametrize("point", ["before", "after"])
async def test_the_record_of_a_killed_step_settles_it(tmp_path: Path, undisturbed: str, point: str) -> None:
    """Without a record the step is taken again, with one it is adopted: once, and to the same bytes."""
    platform = killed_at(tmp_path, point)
    assert record(tmp_path).exists() is (point == "after")
    done = await advance(platform, UNIT, HOLDER)
    assert done.checkpoint is not None
    assert (done.update.state, done.checkpoint.checkpoint_id) == (UpdateState.APPLIED, undisturbed)
    assert done.checkpoint.version.n_optimizer_steps == 1
    assert len(record(tmp_path).read_bytes().splitlines()) == 1


async def test_a_record_torn_by_the_kill_blocks_until_the_operators_word(tmp_path: Path, undisturbed: str) -> None:
    """Half a line proves nothing; after `--not-applied` the step is taken once, from the state before it."""
    platform = killed_at(tmp_path, "torn")
    with pytest.raises(UnresolvedUpdateError, match=f"synth run resolve {UNIT} --applied` or `--not-applied"):
        await advance(platform, UNIT, HOLDER)
    found = dispatch(platform)
    assert (found.launches, UNIT in found.blocked[0]) == ((), True)
    await asyncio.to_thread(resolve_with, platform, applied=False)
    (launch,) = dispatch(platform).launches
    done = await advance(platform, launch.unit, HOLDER)
    assert done.checkpoint is not None
    assert done.checkpoint.checkpoint_id == undisturbed
    assert len(record(tmp_path).read_bytes().splitlines()) == 1


def resolve_with(platform: Platform, *, applied: bool) -> None:
    """Say the operator's word as the command does."""
    from cli.resolution import resolve

    resolve(platform, UNIT, applied=applied)


async def test_a_run_killed_while_the_trainer_steps_leaves_the_step_alone(synth: Synth, tmp_path: Path) -> None:
    """The model process ends the step that it has begun; the next run waits for it and adopts it, and steps no more."""
    platform = prepare(synth.home)
    store = GatedStore(synth.home / "store")
    trainer = real_trainer(platform, synth.home, store)
    async with model_process(tmp_path, store, trainer=trainer) as process:
        link_control(synth, process)
        store.open.clear()
        run = worker(synth.home, "client")
        assert await asyncio.to_thread(store.reached.wait, 60)
        run.kill()
        assert await asyncio.to_thread(run.wait) == -9
        assert await trainer.step_status(TRAINING, UNIT) == (StepStatus.UNKNOWN, None)
        following = asyncio.create_task(advance(platform, UNIT, HOLDER))
        await asyncio.sleep(0.3)
        assert (following.done(), update_state(platform)) == (False, UpdateState.UNRESOLVED)
        store.open.set()
        done = await following
    trainer.close()
    assert done.checkpoint is not None
    assert done.checkpoint.version.n_optimizer_steps == 1
    assert len(record(synth.home).read_bytes().splitlines()) == 1


async def test_an_operator_says_that_a_step_happened_and_the_training_goes_on(synth: Synth, tmp_path: Path) -> None:
    """The record's last line is lost and put back by the operator, whose `synth run resolve --applied` adopts it."""
    killed_at(synth.home, "after")
    whole = record(synth.home).read_bytes()
    record(synth.home).write_bytes(whole[:-20])
    platform = connect(read_settings({"SYNTH_HOME": str(synth.home)}))
    trainer = real_trainer(platform, synth.home)
    async with model_process(tmp_path, platform.store, trainer=trainer) as process:
        link_control(synth, process)
        with pytest.raises(UnresolvedUpdateError, match="cannot prove whether it happened"):
            await advance(platform, UNIT, HOLDER)
        without = await asyncio.to_thread(synth, "run", "resolve", UNIT, "--applied")
        assert (without.code, "no state to continue from" in without.err) == (1, True)
        record(synth.home).write_bytes(whole)
        assert dispatch(platform).launches == ()
        wrong = await asyncio.to_thread(synth, "run", "resolve", UNIT, "--not-applied")
        assert (wrong.code, "shows that the step happened" in wrong.err) == (2, True)
        said = await asyncio.to_thread(synth.json, "run", "resolve", UNIT, "--applied")
        assert said == {"unit": UNIT, "applied": True}
        assert update_state(platform) is UpdateState.APPLIED
        (launch,) = dispatch(platform).launches
        assert (launch.unit, launch.generation) == (UNIT, 1)
        first = await advance(platform, UNIT, HOLDER)
        second = await advance(platform, settle_groups(platform, 1), HOLDER)
    trainer.close()
    assert first.checkpoint is not None
    assert second.checkpoint is not None
    steps = [made.version.n_optimizer_steps for made in (first.checkpoint, second.checkpoint)]
    assert (steps, second.checkpoint.parent) == ([1, 2], first.checkpoint.checkpoint_id)


def link_control(synth: Synth, process: Process) -> None:
    """Let the home's commands and runs reach a model process."""
    control = read_settings({"SYNTH_HOME": str(synth.home)}).control_socket
    control.symlink_to(process.endpoints.control_socket)
