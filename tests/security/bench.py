"""An agent's box, what the agent does in it beside its work, and the verdict over what it leaves."""

import asyncio
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.stores.directory import DirectoryStore
from domain.errors import BoxContentError
from domain.lifecycle.collect import collect_outputs
from domain.ports import Box, BoxSpec, Limits, Store
from domain.records.archive import pack_files, paths, read_file, subtree
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.profile import Profile
from domain.records.task import Task
from tests.contracts.sandboxes import make_case, shell, spec
from tests.contracts.verifying import Bench, make_task

WORKLOAD = Path("examples/workload")
TASK = "synth-workload/spans-nested"
PROFILE = Profile(name="attacker", engine="nop")
LIMITS = Limits(processes=60, memory_mb=300, disk_mb=30)
KINDS = ("local", "docker")
"""Sandboxes that every attack runs on."""
_JOIN = (
    "cat /tmp/attack/before.py spans/__init__.py /tmp/attack/after.py > /tmp/attack/all"
    " && cat /tmp/attack/all > spans/__init__.py && rm -rf /tmp/attack"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What an agent does beside its work."""

    script: str = "true"
    """Run by bash in the project's directory, after the work."""
    before: str = ""
    """Code put before that of the library."""
    after: str = ""
    """Code put after it: there everything that the library exports can be replaced."""
    right: str = "N"
    """``N`` the true score stands, ``Z`` scored zero, ``D`` detected; one of several."""
    wrong: str = "Z"
    seconds: float = 3.0
    """Limit on the script."""

    def allowed(self, arm: str) -> set[tuple[float, bool]]:
        """Return the (reward, tampered) that may come out in the arm ``right`` or ``wrong``."""
        meaning = {"N": (1.0, False), "Z": (0.0, False), "D": (0.0, True)}
        return {meaning[letter] for letter in (self.right if arm == "right" else self.wrong)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A task of the workload, boxes to attack it in, and its verifier."""

    bench: Bench
    task: Task
    archive: bytes
    image_files: Store | None = None
    host_runs: bool = True
    """Boxes hold the machine's system and get the task's files; otherwise the task's image has them."""

    def spec(self) -> BoxSpec:
        """Return what a fresh box of the task is made from."""
        return replace(spec(limits=LIMITS, environment=self.task.environment), archive=self.task.archive)

    def task_with_image(self, files: Mapping[str, bytes], test: str) -> Task:
        """Return another task with the same environment."""
        same = [name for name in paths(self.archive) if name.startswith("environment/")]
        extra = {name: read_file(self.archive, name) or b"" for name in same} | dict(files)
        task = make_task(self.bench.store, test, extra=extra)
        if self.image_files is not None:
            self.image_files.put(self.bench.store.get(task.archive))
        return replace(task, environment=self.task.environment)

    async def agents_box(self, *, right: bool = False) -> Box:
        """Return a box as an agent finds it; with ``right``, with the task's solution done."""
        box = await self.bench.sandbox.create(self.spec())
        if self.host_runs and self.task.environment.host_files is not None:
            await box.upload(subtree(self.archive, self.task.environment.host_files), self.task.environment.workdir)
        if right:
            await box.upload(subtree(self.archive, "solution"), "/solution")
            done = await shell(box, "bash /solution/solve.sh && rm -rf /solution/*")
            assert done.exit_code == 0, done.stderr
        return box

    async def verdict(self, attack: Attack, arm: str) -> Assessment:
        """Do the work, right or not at all, then the attack; collect, and assess."""
        box = await self.agents_box(right=arm == "right")
        try:
            if attack.before or attack.after:
                code = {"before.py": attack.before.encode(), "after.py": attack.after.encode()}
                await box.upload(pack_files(code), "/tmp/attack")
                assert (await shell(box, _JOIN)).exit_code == 0
            await shell(box, attack.script, timeout_s=attack.seconds)
            outputs, missing = await collect_outputs(box, self.task, PROFILE)
        except BoxContentError as error:
            return Assessment(
                trial_id="t",
                assessor="a",
                outcome=AssessmentOutcome.SCORED,
                reward=0.0,
                reason=error.message,
                tampered=True,
            )
        finally:
            await box.destroy()
        return await self.bench.assess(self.task, outputs, missing_artifacts=missing)

    async def both(self, attack: Attack) -> dict[str, Assessment]:
        """Return the verdicts of both arms, which run side by side."""
        right, wrong = await asyncio.gather(self.verdict(attack, "right"), self.verdict(attack, "wrong"))
        return {"right": right, "wrong": wrong}


async def make_range(kind: str, scratch: Path) -> Range:
    """Return the workload's task over a sandbox; one that does not exist yet is a visible skip."""
    if kind != "local" and importlib.util.find_spec(f"adapters.sandboxes.{kind}") is None:
        pytest.skip(f"there is no {kind} sandbox yet")
    case = await make_case(kind, scratch)
    if case.sandbox.name != kind.partition("-")[0]:
        pytest.skip(f"the suite of contracts makes no {kind} sandbox yet")
    bench = Bench(sandbox=case.sandbox)
    found = {task.name: (task, archive) for task, archive in HarborTaskSource().read(str(WORKLOAD), host_runnable=True)}
    task, archive = found[TASK]
    bench.store.put(archive)
    image_files = DirectoryStore(scratch / "store")  # where a sandbox that builds images looks
    image_files.put(archive)
    return Range(bench=bench, task=task, archive=archive, host_runs=case.own_system, image_files=image_files)
