"""The SIGKILL drill: processes of a running training die at random, and the books must still balance.

Used by the drill test (few kills) and by ``tests/benchmarks/drill.py`` (twenty).
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from adapters.inputs.documents import read_profile
from adapters.stores.arrow import ArrowDatumTables
from adapters.trainers.peft import PeftTrainer
from cli.up import Up, down, up
from domain.lifecycle.group import contribution_of
from domain.lifecycle.mini_dialogue import BASH
from domain.ports import TrainingRun
from domain.records.experiment import Experiment, ExperimentKind, ExperimentState
from domain.records.model import FileEntry, UpdateState
from domain.records.names import parse_reference
from domain.records.profile import Optimisation, Plan, Sampling
from domain.service.accept import Submission, accept
from domain.service.platform import Platform
from domain.service.publish import make_base_policy, publish_task_set
from resources.settings import Settings
from resources.wiring import connect
from tests.fakes.models import TINY_RECIPE, demonstrations
from tests.fakes.platform import write_task

VICTIMS: tuple[str, ...] = ("run", "model", "daemon")
_RANDOM_REWARD = (  # the policy is too small to work, so the verifier pays by the clock: groups get a spread
    'n=$(( $(date +%s%N) / 1000 % 2 )); echo "$n" > /logs/verifier/reward.txt\n'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """How hard the drill is."""

    n_kills: int
    batches: int
    groups: int = 3
    attempts: int = 4
    """Of the coins."""
    seed: int = 0
    timeout_s: float = 900.0
    pauses_s: tuple[float, float] = (0.2, 3.0)
    """Between two kills, drawn evenly from this range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the ledger says after the drill."""

    experiment: Experiment
    kills: dict[str, int]
    n_trials: int
    n_attempts: int
    """Distinct attempts among the counting trials."""
    n_planned: int
    updates: tuple[UpdateState, ...]
    n_optimizer_steps: tuple[int, ...]
    """Of the checkpoints, in order."""
    replayed_equal: int
    """Steps that a fresh trainer repeated from the retained datums to the same bytes."""
    wall_s: float


def drill(settings: Settings, submit: Callable[[Platform], Experiment], plan: DrillPlan) -> Books:
    """Run a training through ``synth up`` while its processes are killed, and read the books."""
    started_s = time.monotonic()
    platform = connect(settings)
    experiment = submit(platform)
    running = up(settings, detach=True)
    try:
        kills = _kill_at_random(platform, experiment, running, plan)
        ended = _await_end(platform, experiment.experiment_id, started_s + plan.timeout_s)
    finally:
        down(settings)
    return _books(platform, settings, ended, kills, time.monotonic() - started_s)


def submit_coins(platform: Platform, tasks: Path, plan: DrillPlan) -> Experiment:
    """Accept a training of a tiny policy on tasks that pay by chance: many batches in little time."""
    for number in range(plan.groups):
        write_task(tasks, f"coin{number}", test=_RANDOM_REWARD)
    publish_task_set(platform, parse_reference("team/coins@v1", field="drill"), str(tasks))
    conversations = demonstrations()
    base = asyncio.run(make_base_policy(platform, TINY_RECIPE, conversations, (BASH,), silent))
    profile = read_profile(Path(__file__).resolve().parents[2] / "examples" / "agent.json")
    submission = Submission(
        kind=ExperimentKind.TRAINING,
        task_set="team/coins@v1",
        actor=replace(profile, model=f"base:{base.name}", settings={"max_turns": 2}),
        plan=Plan(
            attempts=plan.attempts,
            batches=plan.batches,
            groups_per_batch=plan.groups,
            concurrency=4,
            sampling=Sampling(max_tokens=8),
            optimisation=Optimisation(lora_rank=2, lora_alpha=2),
        ),
        idempotency_key="drill",
    )
    return accept(platform, submission).experiment


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


def _kill_at_random(platform: Platform, experiment: Experiment, running: Up, plan: DrillPlan) -> dict[str, int]:
    dice = random.Random(plan.seed)  # noqa: S311 - a drill, not a secret
    kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
    deadline_s = time.monotonic() + plan.timeout_s
    while sum(kills.values()) < plan.n_kills and time.monotonic() < deadline_s:
        time.sleep(dice.uniform(*plan.pauses_s))
        if _state(platform, experiment.experiment_id).is_terminal():
            break
        # Each role dies as often as the others; the rarest first, since a run is not there at every moment.
        for victim in sorted(dice.sample(VICTIMS, k=len(VICTIMS)), key=kills.__getitem__):
            process = _find(running, victim)
            if process is not None:
                process.kill()
                kills[victim] += 1
                break
    return kills


def _find(running: Up, victim: str) -> psutil.Process | None:
    """Return the living process of a role: a run process is what the fork server of the code server made."""
    try:
        children = psutil.Process(running.supervisor.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    words = {"model": "cli.model_process", "daemon": "cli.dagster_daemon", "run": "multiprocessing.forkserver"}[victim]
    for child in children:
        try:
            if words in " ".join(child.cmdline()) and (victim != "run" or _is_run(child)):
                return child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def _is_run(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and "multiprocessing.forkserver" in " ".join(parent.cmdline())


def _state(platform: Platform, experiment_id: str) -> ExperimentState:
    with platform.ledger.snapshot() as tx:
        return tx.experiments.get(experiment_id).state


def _await_end(platform: Platform, experiment_id: str, deadline_s: float) -> Experiment:
    while not _state(platform, experiment_id).is_terminal() and time.monotonic() < deadline_s:
        time.sleep(0.5)
    with platform.ledger.snapshot() as tx:
        return tx.experiments.get(experiment_id)


def _books(
    platform: Platform, settings: Settings, experiment: Experiment, kills: dict[str, int], wall_s: float
) -> Books:
    plan = experiment.spec.plan
    with platform.ledger.snapshot() as tx:
        trials = tx.trials.of_experiment(experiment.experiment_id)
        updates = tx.updates.of(experiment.experiment_id)
        checkpoints = tx.updates.checkpoints(experiment.experiment_id)
    return Books(
        experiment=experiment,
        kills=kills,
        n_trials=len(trials),
        n_attempts=len({str(trial.key) for trial in trials}),
        n_planned=plan.batches * plan.groups_per_batch * plan.attempts,
        updates=tuple(update.state for update in updates),
        n_optimizer_steps=tuple(checkpoint.version.n_optimizer_steps for checkpoint in checkpoints),
        replayed_equal=asyncio.run(_replay(platform, settings, experiment)),
        wall_s=wall_s,
    )


async def _replay(platform: Platform, settings: Settings, experiment: Experiment) -> int:
    """Take every step again from its parent's state and its retained datums, in a trainer that saw nothing."""
    spec = experiment.spec
    assert spec.policy is not None
    assert spec.plan.optimisation is not None
    with platform.ledger.snapshot() as tx:
        base = tx.catalog.base_policy(spec.policy.base)
        checkpoints = tx.updates.checkpoints(experiment.experiment_id)
        tables = {item.unit: tx.trials.groups(item.unit) for item in checkpoints}
    trainer = PeftTrainer(
        platform.store, ArrowDatumTables(platform.store), settings.home / "replay", lambda _digest: base
    )
    state: tuple[FileEntry, ...] = ()
    equal = 0
    for checkpoint in checkpoints:
        run = TrainingRun(
            run=f"replay-{checkpoint.unit}", base=spec.policy, optimisation=spec.plan.optimisation, seed=spec.plan.seed
        )
        await trainer.open(run, state)
        await trainer.begin_update(run.run, checkpoint.unit)
        keys: list[str] = []
        for group, table in reversed(tables[checkpoint.unit]):  # arrival order must not matter
            if table is not None:
                contribution = contribution_of(checkpoint.unit, group.group, table, spec.plan.optimisation)
                await trainer.forward_backward(run.run, contribution)
                keys.insert(0, contribution.key)
        step = await trainer.optim_step(run.run, checkpoint.unit, tuple(keys))
        equal += step.sampler.adapter == checkpoint.version.adapter
        state = checkpoint.state
    return equal
