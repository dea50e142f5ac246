"""The Docker engine's command line, as the node uses it: one process for each question."""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from typing import Any

LABEL = "synth.kubernetes-double"
"""Of every container of a double; its value is the double's process."""


class Engine:
    """One engine. See docker(1)."""

    def __init__(self, url: str) -> None:
        self._argv = ("docker", "-H", url)

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code and both outputs of a command."""
        process = await asyncio.create_subprocess_exec(*self._argv, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")

    async def open(self, *arguments: str) -> Process:
        """Start a command whose streams the caller reads and writes."""
        return await asyncio.create_subprocess_exec(*self._argv, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    async def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of a container, nothing when there is none."""
        code, out, _ = await self.run("inspect", "--type", "container", name)
        return json.loads(out)[0] if code == 0 else {}

    async def has_image(self, name: str) -> bool:
        """Say whether an image is there."""
        code, _, _ = await self.run("image", "inspect", name)
        return code == 0

    async def remove(self, names: Sequence[str]) -> None:
        """End containers at once."""
        if names:
            await self.run("rm", "--force", "--volumes", *names)

    async def ours(self) -> list[tuple[str, str]]:
        """Return (container, process) of every container of any double."""
        form = f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
        _, out, _ = await self.run("ps", "--all", "--filter", f"label={LABEL}", "--format", form)
        rows = (line.split() for line in out.splitlines())
        return [(row[0], row[1]) for row in rows if len(row) > 1]
