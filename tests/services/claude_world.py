"""A trial of Claude Code as an experiment runs it: real ledger, store, boxes, proxy and harness; a policy in parts."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.engines.claude_code import ClaudeCodeEngine
from adapters.model_client import HttpModelService
from adapters.sandboxes.local import LocalSandbox
from adapters.verifiers.script import ScriptVerifier
from domain.ports import Sandbox
from domain.records.archive import read_file
from domain.records.experiment import ExperimentKind
from domain.records.model import BasePolicy
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile, Sampling
from domain.records.trial import Interaction, TrialRecord
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform, write_task
from tests.fakes.scripted_model import BASE, Process, model_process
from tests.services.bad_line import BadLine
from tests.services.claude_tool import VERSION, PartSampler, require_claude

PROFILE = Profile(name="claude", engine="claude-code", engine_version=VERSION, model="base:tiny")
PLAN = Plan(sandbox="local", sampling=Sampling(max_tokens=4000), trial_deadline_s=120.0)
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


def _silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A platform that serves a policy in parts."""

    platform: Platform
    process: Process
    sampler: PartSampler
    home: Path

    async def trial(self, profile: Profile = PROFILE, plan: Plan = PLAN) -> "Ended":
        """Run one attempt at the one task, from acceptance to its record."""
        wanted = Submission(kind=ExperimentKind.EVALUATION, task_set="team/work@v1", actor=profile, plan=plan)
        accept(self.platform, wanted)
        (launch,) = dispatch(self.platform).launches
        result = await run_unit(self.platform, launch.unit, "worker", STAGES, _silent)
        (record,) = result.trials.trials
        assessments = result.assessments.assessments if result.assessments is not None else ()
        calls = await self.platform.model.read(record.evidence) if record.evidence is not None else ()
        return Ended(
            record=record,
            reward=assessments[0].reward if assessments else None,
            calls=calls,
            logs=b"" if record.logs is None else self.platform.store.get(record.logs),
            outputs=b"" if record.outputs is None else self.platform.store.get(record.outputs),
        )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a trial left."""

    record: TrialRecord
    reward: float | None
    calls: tuple[Interaction, ...]
    logs: bytes
    outputs: bytes

    def output(self, name: str) -> str | None:
        """Return a file of the working directory."""
        content = read_file(self.outputs, name)
        return None if content is None else content.decode()


def _publish(
    platform: Platform, home: Path, words: tuple[str, str, str], files: Mapping[str, str], context_tokens: int
) -> None:
    task, image, test = words
    directory = write_task(home / "tasks", "work", test=test)
    (directory / "instruction.md").write_text("[[part:main]] Do the work.\n")
    text = (directory / "task.toml").read_text()
    if any(not name.startswith("steps/") for name in files):
        text = text.replace("[metadata]\n", '[metadata]\nhost_files = "environment/files"\n')
    if image:
        text = text.replace("host_runnable = true\n", "")
        (directory / "environment" / "Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\nRUN chmod 777 /app\n")
    (directory / "task.toml").write_text(text + task)
    for name, content in files.items():
        path = directory / name if name.startswith("steps/") else directory / "environment" / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    publish_task_set(platform, parse_reference("team/work@v1", field="test"), str(home / "tasks"))
    base = BasePolicy(
        name="tiny",
        digest=BASE.base,
        family="qwen3",
        files=(),
        recipe_digest="",
        context_tokens=context_tokens,
        n_parameters=1,
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)


@asynccontextmanager
async def claude_world(
    home: Path,
    parts: Mapping[str, list[str | Exception]],
    *,
    context_tokens: int = 400_000,
    line: BadLine | None = None,
    sandbox: Callable[[Platform, Path], Sandbox] | None = None,
    task: str = "",
    image: str = "",
    files: Mapping[str, str] | None = None,
    test: str = "echo 1 > /logs/verifier/reward.txt\n",
) -> AsyncGenerator[World]:
    """Serve a policy that plays ``parts`` and publish one task, whose instruction opens part ``main``.

    Args:
        home: a short path.
        parts: lines of each part.
        context_tokens: of the policy.
        line: between boxes and proxy; None: a good one.
        sandbox: made of the platform and the proxy's socket; None: local boxes.
        task: lines of ``task.toml`` that follow the usual ones.
        image: what the task's own is built from; empty: it needs none.
        files: what lies in the task's working directory; below ``steps/``: in the task's.
        test: the verifier's script.
    """
    packages = require_claude()
    platform = make_platform(home)
    _publish(platform, home, (task, image, test), files or {}, context_tokens)
    sampler = PartSampler(parts=parts, context_tokens=context_tokens)
    async with (
        model_process(
            home / "m", platform.store, sampler=sampler, family=sampler.family, ledger=platform.ledger
        ) as process,
        (line or BadLine()).between(home / "g" / "p.sock", process.endpoints.proxy_socket) as socket,
    ):
        reached = socket if line else process.endpoints.proxy_socket
        boxes = LocalSandbox(home / "boxes", reached) if sandbox is None else sandbox(platform, reached)
        yield World(
            platform=replace(
                platform,
                engines={**platform.engines, "claude-code": ClaudeCodeEngine(packages)},
                sandboxes={boxes.name: boxes},
                verifiers={boxes.name: ScriptVerifier(boxes, platform.store, platform.clock)},
                model=HttpModelService(process.endpoints.control_socket, platform.store, platform.clock),
            ),
            process=process,
            sampler=sampler,
            home=home,
        )
