"""Evaluations that the leak drill kills: tasks that leave much, and the worker process that runs them."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from adapters.engines.mini import MiniEngine
from adapters.model_client import HttpModelService
from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.local import LocalSandbox
from adapters.stores.directory import DirectoryStore
from domain.ports import SampleRequest, SampleResult, Sandbox
from domain.service.platform import Platform
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform, write_task
from tests.fakes.scripted_model import ScriptedSampler

STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
_DAEMON = "(setsid nohup sleep 5000 >/dev/null 2>&1 &); "
_WORK = f"{_DAEMON}head -c 2000000 /dev/zero > /app/big; mkdir -p /app/a/b; sleep 1.5; echo right > /app/out"
_TEST = f"{_DAEMON}sleep 1; echo 1 > /logs/verifier/reward.txt\n"
_VARIANTS: dict[str, tuple[str, ...]] = {
    "local": ("",),
    "docker": (
        '[environment]\nnetwork_mode = "no-network"\n',
        '[environment]\nnetwork_mode = "public"\n',
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]\n',
    ),
}
"""What the tasks of a kind of box ask of it, in turn."""
_DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN sleep 2 && echo {name} > /made\n"


class SlowSampler(ScriptedSampler):
    """A model that takes its time, then works, then says so."""

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Answer by what was said so far."""
        text = bytes(token for token in request.prompt_ids if token < 256).decode(errors="replace")
        self.script = ["done" if "<call>" in text else f"<call>bash {json.dumps({'command': _WORK})}</call>"]
        answer = await super().sample(request)
        await asyncio.sleep(0.5)
        return answer


def write_tasks(directory: Path, box: str, n: int) -> None:
    """Write ``n`` tasks for a kind of box; in containers every fourth has an image that takes a while to build."""
    for number in range(n):
        task = write_task(directory, f"leak{number}", test=_TEST)
        file = task / "task.toml"
        text = file.read_text()
        if box == "docker" and number % 4 == 0:
            name = f"{directory.parent.name}-{number}"
            (task / "environment" / "Dockerfile").write_text(_DOCKERFILE.format(name=name))
            file.write_text(text.replace("host_runnable = true\n", ""))
        else:
            variants = _VARIANTS[box]
            file.write_text(text + variants[number % len(variants)])


def sandboxes(home: Path, docker_url: str) -> Mapping[str, Sandbox]:
    """Return the kinds of boxes that the drill knows; without an engine's URL the local one alone."""
    found: dict[str, Sandbox] = {"local": LocalSandbox(home / "boxes", home / "model" / "p.sock")}
    if docker_url:
        found["docker"] = DockerSandbox(docker_url, DirectoryStore(home / "store"), home / "model" / "p.sock")
    return found


def connected(home: Path, docker_url: str) -> Platform:
    """Return the platform of the drill below ``home``."""
    platform = make_platform(home, sandboxes=sandboxes(home, docker_url))
    model = HttpModelService(home / "model" / "c.sock", platform.store, platform.clock)
    return replace(platform, engines={**platform.engines, "mini": MiniEngine()}, model=model)


def main() -> int:
    """Run one unit: ``python -m tests.services.leaking HOME UNIT HOLDER [DOCKER_URL]``."""
    home, unit, holder, docker_url = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    asyncio.run(run_unit(connected(home, docker_url), unit, holder, STAGES, lambda _what, _done, _total: None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
