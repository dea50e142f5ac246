"""A sandbox whose programs are written in Python: what a box does to a command is a function of the test."""

from collections.abc import Awaitable, Callable

from adapters.sandboxes.memory import MemoryBox, MemorySandbox
from domain.errors import SandboxError
from domain.ports import Box, BoxSpec, BoxStats, Command, CommandResult
from domain.records.task import TaskEnvironment

Script = Callable[["ScriptedBox", Command], Awaitable[CommandResult | None]]
"""Returns how the command ended; None leaves it to the memory box."""


async def no_script(box: "ScriptedBox", command: Command) -> CommandResult | None:
    """Leave every command to the memory box."""
    del box, command


class ScriptedBox:
    """A memory box that notes its commands and asks the script first."""

    def __init__(self, spec: BoxSpec, memory: MemoryBox, script: Script) -> None:
        self.spec = spec
        self.commands: list[Command] = []
        self.destroyed = False
        self._memory = memory
        self._script = script

    @property
    def proxy_url(self) -> str | None:
        """An address when the box has model access."""
        return "http://127.0.0.1:8099" if self.spec.model_access else None

    @property
    def proxy_socket(self) -> str | None:
        """None: the address is all there is."""
        return None

    async def exec(self, command: Command) -> CommandResult:
        """Run by the script, else by the memory box."""
        self.commands.append(command)
        if not self.destroyed:
            result = await self._script(self, command)
            if result is not None:
                return result
        return await self._memory.exec(command)

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``."""
        await self._memory.upload(tar, target)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a tar."""
        return await self._memory.download(path, max_bytes=max_bytes)

    async def stats(self) -> BoxStats:
        """Return consumption."""
        return await self._memory.stats()

    async def destroy(self) -> None:
        """Forget everything."""
        self.destroyed = True
        await self._memory.destroy()


class ScriptedSandbox:
    """The ``Sandbox`` port over scripted boxes; ``n_failing_creates`` of them fail first, as infrastructure does."""

    def __init__(self, script: Script = no_script, *, n_failing_creates: int = 0) -> None:
        self.boxes: list[ScriptedBox] = []
        self.n_failing_creates = n_failing_creates
        self._script = script
        self._memory = MemorySandbox()
        self._live: dict[str, ScriptedBox] = {}

    @property
    def name(self) -> str:
        """``scripted``."""
        return "scripted"

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Refuse what a memory box refuses."""
        return self._memory.refusals(environment)

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box. Raises SandboxError as often as asked, and for an id that is taken."""
        if self.n_failing_creates:
            self.n_failing_creates -= 1
            raise SandboxError(f"box {spec.box_id}: the machine is on fire", hint="wait")
        if spec.box_id in self._live:
            raise SandboxError(f"box {spec.box_id} exists already", hint="a box id is used once")
        box = ScriptedBox(spec, MemoryBox(spec, lambda box_id: self._live.pop(box_id, None)), self._script)
        self.boxes.append(box)
        self._live[spec.box_id] = box
        return box

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes past their deadline."""
        over = sorted(box_id for box_id, box in self._live.items() if now_ms > box.spec.deadline_ms)
        for box_id in over:
            await self._live[box_id].destroy()
        return tuple(over)
