"""Boxes and a model that fail as the fault drill's table says, and the worker process that runs a unit with them.

A fault that happens once leaves a file behind, so that it happens once over all processes.
"""

import asyncio
import json
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters.engines import mini
from adapters.engines.mini import MiniEngine
from adapters.model_client import HttpModelService
from adapters.sandboxes.local import LocalSandbox
from domain.errors import SamplerError, SandboxError
from domain.lifecycle import teardown
from domain.ports import Box, BoxSpec, BoxStats, Command, CommandResult, SampleRequest, SampleResult
from domain.records.task import TaskEnvironment
from domain.service.platform import Platform
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform
from tests.fakes.scripted_family import START
from tests.fakes.scripted_model import ScriptedSampler
from tests.services.fault_table import FAULTS, MARK, How, Injection, Where, kind_of

TEARDOWN_S = 1.0
"""How long the drill's trials wait for a box that does not end."""
_MODEL_RETRY_S = 2.0
"""How long the drill's agents ask a provider that is busy."""
_MIDST_S = 0.3
"""Into a command: when its box is lost."""
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


@dataclass(frozen=True, slots=True)
class Marks:
    """What has happened once already."""

    directory: Path

    def first(self, name: str) -> bool:
        """Say whether this is the first time, and note it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            (self.directory / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class FaultyBox:
    """A local box with one fault."""

    def __init__(self, box: Box, directory: Path, injection: Injection, marks: Marks, task: str) -> None:
        self._box, self._directory, self._injection, self._marks, self._task = box, directory, injection, marks, task

    @property
    def proxy_url(self) -> str | None:
        """The box's own."""
        return self._box.proxy_url

    @property
    def proxy_socket(self) -> str | None:
        """The box's own."""
        return self._box.proxy_socket

    def _strikes(self, where: Where) -> bool:
        injection = self._injection
        return injection.where is where and (injection.always or self._marks.first(self._task))

    async def exec(self, command: Command) -> CommandResult:
        """Run; in the midst of it the box may go."""
        if not self._strikes(Where.EXEC):
            return await self._box.exec(command)
        running = asyncio.ensure_future(self._box.exec(command))
        await asyncio.wait({running}, timeout=_MIDST_S)
        if self._injection.how is How.VANISHES:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            return await running
        await self._box.destroy()
        await asyncio.gather(running, return_exceptions=True)
        raise SandboxError("the drill lost the box while a command ran")

    async def upload(self, tar: bytes, target: str) -> None:
        """Pass on."""
        await self._box.upload(tar, target)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Copy out, or fail."""
        if self._strikes(Where.DOWNLOAD):
            if self._injection.how is How.LOST:
                await self._box.destroy()
            raise SandboxError(f"the drill broke the copy of {path}")
        return await self._box.download(path, max_bytes=max_bytes)

    async def stats(self) -> BoxStats:
        """Pass on."""
        return await self._box.stats()

    async def destroy(self) -> None:
        """End, or hang, or fail."""
        if self._strikes(Where.DESTROY):
            if self._injection.how is How.HANGS:
                await asyncio.sleep(3600)
            raise SandboxError("the drill keeps this box")
        await self._box.destroy()


class FaultySandbox:
    """Local boxes that fail for the tasks that ask for it."""

    def __init__(self, scratch: Path, proxy_socket: Path | None, marks: Marks) -> None:
        self._local = LocalSandbox(scratch, proxy_socket)
        self._boxes = scratch / "boxes"
        self._marks = marks

    @property
    def name(self) -> str:
        """``local``."""
        return self._local.name

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """As local boxes."""
        return self._local.refusals(environment)

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box, or fail. Raises SandboxError."""
        task = spec.environment.env.get(MARK, "")
        injection = FAULTS[kind_of(task)].injection if task else None
        role = "actor" if spec.box_id.endswith("-actor") else "verifier"
        if injection is None or injection.role != role:
            return await self._local.create(spec)
        if injection.where is Where.CREATE and (injection.always or self._marks.first(task)):
            raise SandboxError(f"box {spec.box_id}: the drill lets none be made")
        box = await self._local.create(spec)
        return FaultyBox(box, self._boxes / spec.box_id, injection, self._marks, task)

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """As local boxes."""
        return await self._local.sweep(now_ms)


@dataclass
class FaultySampler(ScriptedSampler):
    """A model that does the work in one call, says so in the next, and is too busy for the tasks that ask for it."""

    asked: set[str] = field(default_factory=set[str])

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Answer, or be busy. Raises SamplerError."""
        text = bytes(token for token in request.prompt_ids if token < START).decode(errors="replace")
        task = text.partition("user:Do ")[2].partition(".")[0]
        how, later, first = FAULTS[kind_of(task)].model, "<call>" in text, task not in self.asked
        self.asked.add(task)
        if how == "always" or (how == "once" and first) or (how == "later" and later):
            raise SamplerError("the drill keeps the model busy")
        command = json.dumps({"command": "echo right > /app/out"})
        self.script = ["done" if later else f"<call>bash {command}</call>"]
        return await super().sample(request)


def connected(home: Path) -> Platform:
    """Return the platform of the drill below ``home``, with its faulty boxes."""
    sandbox = FaultySandbox(home / "boxes", proxy_of(home) / "p.sock", Marks(home / "marks"))
    platform = make_platform(home, sandboxes={"local": sandbox})
    model = HttpModelService(proxy_of(home) / "c.sock", platform.store, platform.clock)
    return replace(platform, engines={**platform.engines, "mini": MiniEngine()}, model=model)


def proxy_of(home: Path) -> Path:
    """Return where the model process listens."""
    return home / "model"


def main() -> int:
    """Run one unit: ``python -m tests.services.faulty HOME UNIT HOLDER``."""
    home, unit, holder = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    teardown.TEARDOWN_S = TEARDOWN_S
    mini.RETRY_S = _MODEL_RETRY_S
    asyncio.run(run_unit(connected(home), unit, holder, STAGES, lambda _what, _done, _total: None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
