"""The end of a box: bounded, and never the end of what happened in it or of anybody else's work."""

import asyncio
from pathlib import Path

import pytest

from adapters.sandboxes.memory import MemorySandbox
from domain.errors import SandboxError
from domain.lifecycle import teardown
from domain.ports import Box, BoxSpec
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.records.trial import TrialOutcome
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch
from domain.service.publish import publish_task_set
from domain.service.units import Stage, UnitResult, run_unit
from sensors import janitor
from tests.fakes.platform import make_platform, write_task

REFERENCE = parse_reference("team/small@v1", field="test")
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


class _Sticky:
    """A memory box that does not end as it should; everything else is the memory box's own."""

    def __init__(self, box: Box, *, hangs: bool) -> None:
        self._box, self._hangs = box, hangs

    def __getattr__(self, name: str) -> object:
        return getattr(self._box, name)

    async def destroy(self) -> None:
        """Hang, or fail."""
        if self._hangs:
            await asyncio.sleep(3600)
        raise SandboxError("the engine does not answer")


class StickySandbox(MemorySandbox):
    """Memory boxes that never go, and a sweep that hangs."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box that will not go."""
        return _Sticky(await super().create(spec), hangs=self.hangs)  # pyright: ignore[reportReturnType] - by __getattr__

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """Hang."""
        await asyncio.sleep(3600)
        return await super().sweep(now_ms)


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


async def evaluated(home: Path, sandbox: StickySandbox) -> UnitResult:
    """Run four no-op trials, two at once."""
    platform = make_platform(home / "home", sandboxes={"memory": sandbox})
    write_task(home / "tasks", "a1")
    publish_task_set(platform, REFERENCE, str(home / "tasks"))
    plan = Plan(attempts=4, concurrency=2, sandbox="memory", infra_retries=0)
    profile = Profile(name="nop", engine="nop")
    accept(platform, Submission(kind=ExperimentKind.EVALUATION, task_set=str(REFERENCE), actor=profile, plan=plan))
    (launch,) = dispatch(platform).launches
    return await asyncio.wait_for(run_unit(platform, launch.unit, "worker", STAGES, silent), 30)


@pytest.mark.parametrize(("hangs", "why"), [(True, "did not end within"), (False, "the engine does not answer")])
async def test_a_box_that_does_not_go_costs_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool, why: str
) -> None:
    """Every trial is complete and scored, says what was left, and holds up no other one."""
    monkeypatch.setattr(teardown, "TEARDOWN_S", 0.2)
    result = await evaluated(tmp_path, StickySandbox(hangs=hangs))
    assert [trial.outcome for trial in result.trials.trials] == [TrialOutcome.COMPLETED] * 4
    assert all(why in trial.detail for trial in result.trials.trials)
    assert result.assessments is not None
    assert [item.reward for item in result.assessments.assessments] == [1.0] * 4


async def test_a_sandbox_that_cannot_be_swept_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's orphans end, and the one that hangs is named."""
    monkeypatch.setattr(janitor, "_SWEEP_S", 0.2)

    class Swept(MemorySandbox):
        async def sweep(self, now_ms: int) -> tuple[str, ...]:
            del now_ms
            return ("orphan-1",)

    platform = make_platform(tmp_path, sandboxes={"stuck": StickySandbox(hangs=True), "memory": Swept()})
    boxes, problems = await janitor.sweep(platform)
    assert boxes == ["orphan-1"]
    assert len(problems) == 1
