"""What the browser test looks at: one ``synth up`` with an evaluation and a small training, and a real Chromium."""

import asyncio
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from adapters.inputs.documents import read_profile
from cli.reporting import write_report
from cli.up import Up, down, up
from domain.lifecycle.mini_dialogue import BASH, opening, tool_result
from domain.records.chat import ChatMessage, Demonstration
from domain.records.experiment import Experiment, ExperimentKind
from domain.records.model import PolicyRecipe
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Optimisation, Plan, Profile, Sampling
from domain.service.accept import Submission, accept
from domain.service.platform import Platform
from domain.service.publish import make_base_policy, publish_task_set
from resources.settings import Settings
from resources.wiring import connect
from tests.contracts.sandboxes import local_sandbox
from tests.fakes.models import call
from tests.fakes.platform import write_task

TASK_SET = "team/greetings@v1"
TASKS = ("greet", "hail")
COMMANDS = ("echo hi > out", "echo ho > out")
"""What the policy has learned to say in every task; only the first is paid, and it is said two times in three."""
_REWARD = 'if [ "$(cat /app/out 2>/dev/null)" = hi ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
_CHROMIUM = "/usr/bin/chromium"
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOAD_MS = 60_000.0
"""How long a page may take on a busy machine."""
_RECIPE = PolicyRecipe(
    name="parrot",
    demonstrations="tests/services/browser.py",
    vocabulary=384,
    hidden=32,
    layers=2,
    heads=2,
    context_tokens=512,
    steps=60,
    batch=4,
    learning_rate=1e-2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What runs and what has ended."""

    settings: Settings
    platform: Platform
    running: Up
    evaluation: Experiment
    training: Experiment
    report: Path
    """The training's report; transcripts lie beside it."""
    shots: Path
    """Where screenshots go."""

    def unit(self, experiment: Experiment) -> str:
        """Return the key of an experiment's first unit."""
        return unit_key(experiment.experiment_id, 0)

    def known(self) -> tuple[Experiment, ...]:
        """Return the experiments of the ledger, newest first."""
        with self.platform.ledger.snapshot() as tx:
            return tx.experiments.all(limit=100)

    def ended(self, experiment_id: str, timeout_s: float = 120.0) -> Experiment:
        """Wait for the end of an experiment and return it."""
        return _ended(self.platform, experiment_id, timeout_s)


@contextmanager
def stage(settings: Settings, scratch: Path) -> Generator[Stage]:
    """Start everything, run an evaluation with the oracle and a training of one batch, and write its report."""
    asyncio.run(local_sandbox(scratch / "probe"))
    platform = connect(settings)
    for name in TASKS:
        write_task(scratch / "tasks", name, test=_REWARD, solution=f"{COMMANDS[0]}\n")
    publish_task_set(platform, parse_reference(TASK_SET, field="test"), str(scratch / "tasks"))
    base = asyncio.run(make_base_policy(platform, _RECIPE, _demonstrations(), (BASH,), _silent))
    profile = read_profile(Path(__file__).resolve().parents[2] / "examples" / "agent.json")
    evaluation = _accepted(platform, ExperimentKind.EVALUATION, oracle(), Plan(attempts=2))
    training = _accepted(
        platform,
        ExperimentKind.TRAINING,
        replace(profile, model=f"base:{base.name}", settings={"max_turns": 3}),
        Plan(
            attempts=4,
            batches=1,
            groups_per_batch=len(TASKS),
            sampling=Sampling(max_tokens=64),
            optimisation=Optimisation(lora_rank=2, lora_alpha=2),
        ),
    )
    running = up(settings, detach=True)
    try:
        evaluation, training = (_ended(platform, item.experiment_id, 120.0) for item in (evaluation, training))
        report = write_report(
            platform, training.experiment_id, scratch / "report", n_transcripts=8, progress=_silent
        ).path
        shots = scratch / "shots"
        shots.mkdir()
        yield Stage(
            settings=settings,
            platform=platform,
            running=running,
            evaluation=evaluation,
            training=training,
            report=report,
            shots=shots,
        )
    finally:
        down(settings)


def need_chromium() -> None:
    """Skip on a laptop without Chromium; in CI it must be there."""
    if shutil.which(_CHROMIUM) is not None:
        return
    if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
        pytest.fail(f"{_CHROMIUM} is missing")
    pytest.skip(f"{_CHROMIUM} is missing")


@contextmanager
def browser_page() -> Generator[Page]:
    """Open a page of a real Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=[*_ARGUMENTS])
        page = browser.new_page(viewport={"width": 1600, "height": 2200})
        page.set_default_timeout(LOAD_MS)
        yield page
        browser.close()


def oracle() -> Profile:
    """Return the actor that applies each task's solution."""
    return Profile(name="oracle", engine="oracle")


def _accepted(platform: Platform, kind: ExperimentKind, actor: Profile, plan: Plan) -> Experiment:
    return accept(platform, Submission(kind=kind, task_set=TASK_SET, actor=actor, plan=plan)).experiment


def _demonstrations() -> tuple[Demonstration, ...]:
    """Return right and wrong conversations for every task: the policy calls its tool, and groups have a spread."""
    return tuple(
        Demonstration(
            task_name=f"t/{name}",
            messages=(
                *opening(f"Do {name}."),
                call(command),
                ChatMessage(role="tool", content=tool_result(0, "")),
                ChatMessage(role="assistant", content="done"),
            ),
            n_opening=2,
        )
        for name in TASKS
        for command in (COMMANDS[0], *COMMANDS)
    )


def _ended(platform: Platform, experiment_id: str, timeout_s: float) -> Experiment:
    deadline_s = time.monotonic() + timeout_s
    while True:
        with platform.ledger.snapshot() as tx:
            found = tx.experiments.get(experiment_id)
        if found.state.is_terminal():
            return found
        assert time.monotonic() < deadline_s, f"{experiment_id} is {found.state} after {timeout_s:.0f} s"
        time.sleep(0.25)


def _silent(_what: str, _done: int, _total: int) -> None:
    return
