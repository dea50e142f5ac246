"""Experiments from acceptance to report, over real ledger, store and boxes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.mini import MiniEngine
from adapters.sandboxes.memory import MemorySandbox
from domain.errors import (
    AdmissionError,
    ConfigurationError,
    ConflictError,
    FenceError,
    NotFoundError,
    SandboxError,
)
from domain.lifecycle.lease import UnitCancelledError
from domain.ports import Box, BoxSpec
from domain.records.assessment import AssessmentOutcome
from domain.records.capacity import UNBOUNDED
from domain.records.experiment import ExperimentKind, UnitState
from domain.records.model import BasePolicy
from domain.records.names import parse_reference
from domain.records.profile import Overrides, Plan, Profile
from domain.records.trial import TrialOutcome
from domain.service.accept import Accepted, Submission, accept
from domain.service.capacity import capacity
from domain.service.dispatch import conclude_evaluation, dispatch, request_cancel, unit_run_ended
from domain.service.evaluate import evaluation
from domain.service.inspection import events, find_trial, show, trial_lineage
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.regrade import accept_regrade, regrade_unit
from domain.service.units import Stage, UnitResult, run_unit
from tests.fakes.platform import make_platform, write_task

REFERENCE = parse_reference("team/small@v1", field="test")
SCORED = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
GREET = 'if [ "$(cat /app/out 2>/dev/null)" = hi ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


class FailingSandbox(MemorySandbox):
    """Memory boxes of which the first ``n_failures`` cannot be created."""

    def __init__(self, n_failures: int, fault: type[SandboxError] = SandboxError) -> None:
        super().__init__()
        self.n_failures = n_failures
        self.fault = fault

    async def create(self, spec: BoxSpec) -> Box:
        """Fail while there are failures left."""
        if self.n_failures > 0:
            self.n_failures -= 1
            raise self.fault("no room for a box")
        return await super().create(spec)


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


def submit(platform: Platform, *, engine: str = "nop", key: str | None = None, **plan: object) -> Accepted:
    """Accept an evaluation of the small task set."""
    defaults = Plan(attempts=2, concurrency=4, sandbox="memory")
    return accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set=str(REFERENCE),
            actor=Profile(name="actor", engine=engine),
            plan=replace(defaults, **plan),  # pyright: ignore[reportArgumentType] - fields of Plan, by the caller
            idempotency_key=key,
        ),
    )


async def run_all(platform: Platform) -> list[UnitResult]:
    """Run everything that the dispatcher wants to launch now."""
    launches = dispatch(platform).launches
    return [await run_unit(platform, launch.unit, "worker", SCORED, silent) for launch in launches]


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """Return a platform with a published set of three no-op tasks."""
    made = make_platform(tmp_path / "home")
    for name in ("a1", "a2", "b1"):
        write_task(tmp_path / "tasks", name)
    publish_task_set(made, REFERENCE, str(tmp_path / "tasks"))
    return made


async def test_an_evaluation_runs_from_acceptance_to_report(platform: Platform) -> None:
    """Three tasks of two attempts give six scored trials and a mean with its coverage."""
    accepted = submit(platform)
    (result,) = await run_all(platform)
    assert result.trials.n_planned == len(result.trials.trials) == 6
    report = evaluation(platform, accepted.experiment.experiment_id)
    assert report.headline == 1.0
    assert (report.mean.n_tasks, report.mean.coverage.n_scored, report.mean.coverage.n_total) == (3, 6, 6)
    again = dispatch(platform)
    assert (again.launches, again.reports) == ((), (accepted.experiment.experiment_id,))
    conclude_evaluation(platform, accepted.experiment.experiment_id, succeeded=True)
    assert dispatch(platform).reports == ()


async def test_real_boxes_tell_oracle_from_nop(tmp_path: Path) -> None:
    """In local boxes the oracle scores 1 and nop scores 0 on a task that wants work."""
    platform = make_platform(tmp_path / "home")
    write_task(tmp_path / "tasks", "greet", test=GREET, solution="echo hi > /app/out\n")
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    means = {}
    for engine in ("oracle", "nop"):
        accepted = submit(platform, engine=engine, sandbox="local")
        await run_all(platform)
        means[engine] = evaluation(platform, accepted.experiment.experiment_id).mean.value
    assert means == {"oracle": 1.0, "nop": 0.0}


async def test_running_a_finished_unit_again_keeps_every_trial(platform: Platform) -> None:
    """A second run samples nothing and names the same manifests."""
    submit(platform)
    (first,) = await run_all(platform)
    second = await run_unit(platform, first.unit.unit, "other", SCORED, silent)
    assert second.refs == first.refs


async def test_a_worker_that_dies_loses_and_doubles_nothing(platform: Platform) -> None:
    """After a cut in the middle, the next worker keeps what ended and runs only what is missing."""
    accepted = submit(platform, attempts=20, concurrency=1)
    (launch,) = dispatch(platform).launches
    seen: list[int] = []
    reached = asyncio.Event()

    def note(what: str, done: int, _total: int) -> None:
        seen.append(done)
        if what == "trial" and done == 7:
            reached.set()

    worker = asyncio.ensure_future(run_unit(platform, launch.unit, "first", SCORED, note))
    await reached.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    with platform.ledger.snapshot() as tx:
        kept = {str(trial.key): trial.trial_id for trial in tx.trials.of_unit(launch.unit)}
    assert 7 <= len(kept) < 60
    unit_run_ended(platform, launch.unit, reason="killed")
    (relaunch,) = dispatch(platform).launches
    assert relaunch.generation == launch.generation + 1
    result = await run_unit(platform, launch.unit, "first", SCORED, silent)
    found = {str(trial.key): trial.trial_id for trial in result.trials.trials}
    assert len(found) == 60
    assert kept.items() <= found.items()
    assert show(platform, accepted.experiment.experiment_id).outcomes == {"completed": 60}


async def test_two_workers_cannot_hold_one_unit(platform: Platform) -> None:
    """The second worker is refused while the first lives."""
    submit(platform, attempts=50, concurrency=1)
    (launch,) = dispatch(platform).launches
    first = asyncio.ensure_future(run_unit(platform, launch.unit, "first", SCORED, silent))
    await asyncio.sleep(0.2)
    with pytest.raises(FenceError):
        await run_unit(platform, launch.unit, "second", SCORED, silent)
    await first


async def test_trials_lost_to_infrastructure_are_replaced_and_counted_apart(tmp_path: Path) -> None:
    """A failed box costs a retry, not an attempt; when retries run out the attempt is ungraded, never zero."""
    sandbox = FailingSandbox(2)
    platform = make_platform(tmp_path / "home", sandboxes={"memory": sandbox})
    write_task(tmp_path / "tasks", "a1")
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    submit(platform, attempts=1)
    (result,) = await run_all(platform)
    (trial,) = result.trials.trials
    assert (trial.outcome, trial.n_infra_retries) == (TrialOutcome.COMPLETED, 2)

    sandbox.n_failures = 3
    accepted = submit(platform, attempts=1)
    await run_all(platform)
    report = evaluation(platform, accepted.experiment.experiment_id)
    assert (report.mean.value, report.headline) == (None, None)
    assert report.mean.coverage.n_ungraded == report.mean.coverage.n_total == 1


class _NeverError(SandboxError):
    """A fault that every new box would meet."""

    is_permanent = True


async def test_a_fault_that_every_new_box_would_meet_is_not_tried_again(tmp_path: Path) -> None:
    """One box is asked for, and the record says that a second would have been no use."""
    sandbox = FailingSandbox(9, _NeverError)
    platform = make_platform(tmp_path / "home", sandboxes={"memory": sandbox})
    write_task(tmp_path / "tasks", "a1")
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    submit(platform, attempts=1)
    (result,) = await run_all(platform)
    (trial,) = result.trials.trials
    assert (trial.outcome, trial.is_permanent, trial.n_infra_retries) == (TrialOutcome.INFRA_ERROR, True, 0)
    assert sandbox.n_failures == 8


async def test_an_unscored_experiment_keeps_work_without_a_score(platform: Platform) -> None:
    """Trials end and are retained; nothing is assessed."""
    accepted = accept(
        platform,
        Submission(
            kind=ExperimentKind.UNSCORED,
            task_set=str(REFERENCE),
            actor=Profile(name="actor", engine="nop"),
            plan=Plan(sandbox="memory"),
        ),
    )
    (launch,) = dispatch(platform).launches
    result = await run_unit(platform, launch.unit, "worker", frozenset({Stage.TRIALS}), silent)
    assert (len(result.trials.trials), result.assessments) == (3, None)
    with pytest.raises(NotFoundError):
        evaluation(platform, accepted.experiment.experiment_id)


async def test_cancel_ends_a_running_unit_by_heartbeat(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker learns of the operator's word and the experiment ends cancelled."""
    monkeypatch.setattr("domain.lifecycle.lease.HEARTBEAT_S", 0.05)
    accepted = submit(platform, attempts=2000, concurrency=1)
    (launch,) = dispatch(platform).launches
    worker = asyncio.ensure_future(run_unit(platform, launch.unit, "worker", SCORED, silent))
    await asyncio.sleep(0.3)
    request_cancel(platform, accepted.experiment.experiment_id)
    with pytest.raises(UnitCancelledError):
        await worker
    assert dispatch(platform).launches == ()
    view = show(platform, accepted.experiment.experiment_id)
    assert (view.experiment.state.value, view.units[0].state) == ("cancelled", UnitState.CANCELLED)


async def test_regrade_reads_retained_outputs_and_runs_no_actor(platform: Platform) -> None:
    """A regrade gives the same rewards from the same trials, and leaves the canonical assessment alone."""
    accepted = submit(platform)
    (result,) = await run_all(platform)
    conclude_evaluation(platform, accepted.experiment.experiment_id, succeeded=True)
    regrade = accept_regrade(platform, accepted.experiment.experiment_id).experiment
    (launch,) = dispatch(platform).launches
    assert launch.admission["source"] == accepted.experiment.experiment_id
    _, manifest = await regrade_unit(platform, regrade.experiment_id, result.unit.unit, "worker", silent)
    assert manifest.source == result.refs[Stage.TRIALS].digest
    assert [item.trial_id for item in manifest.assessments] == [trial.trial_id for trial in result.trials.trials]
    assert {item.outcome for item in manifest.assessments} == {AssessmentOutcome.SCORED}
    assert evaluation(platform, regrade.experiment_id).headline == 1.0
    with pytest.raises(ConfigurationError, match="regrade itself"):
        accept_regrade(platform, regrade.experiment_id)


def test_the_same_key_returns_the_same_experiment(platform: Platform) -> None:
    """An exact retry is the same identity; the same key with another spec is refused."""
    first = submit(platform, key="k")
    again = submit(platform, key="k")
    assert (again.created, again.experiment.experiment_id) == (False, first.experiment.experiment_id)
    with pytest.raises(ConflictError):
        submit(platform, key="k", attempts=3)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"sandbox": "moon"}, ConfigurationError, "sandbox"),
        ({"attempts": 0}, ConfigurationError, "attempts"),
        ({"concurrency": 0}, ConfigurationError, "concurrency"),
    ],
)
def test_bad_plans_are_refused_before_anything_is_written(
    platform: Platform, change: dict[str, object], kind: type[Exception], words: str
) -> None:
    """The error names the field, and no experiment exists afterwards."""
    with pytest.raises(kind, match=words):
        submit(platform, engine="nop", key=None, **change)  # pyright: ignore[reportArgumentType] - fields of Plan
    assert dispatch(platform).launches == ()


def test_a_task_that_a_box_cannot_realise_is_refused_by_name(tmp_path: Path) -> None:
    """A Dockerfile task that is not host-runnable never reaches a local box."""
    platform = make_platform(tmp_path / "home")
    task = write_task(tmp_path / "tasks", "image")
    text = (task / "task.toml").read_text().replace("host_runnable = true\n", "")
    (task / "task.toml").write_text(text)
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    with pytest.raises(AdmissionError, match=r"t/image: .*Dockerfile"):
        submit(platform, sandbox="local")


async def test_events_and_lineage_lead_from_trial_to_group(platform: Platform) -> None:
    """Events are ordered by cursor, and a trial is found by its attempt key."""
    accepted = submit(platform)
    (result,) = await run_all(platform)
    found = events(platform, accepted.experiment.experiment_id)
    assert [event.cursor for event in found] == sorted(event.cursor for event in found)
    assert found[0].kind == "experiment.accepted"
    assert sum(event.kind == "trial.ended" for event in found) == 6
    later = events(platform, accepted.experiment.experiment_id, cursor=found[3].cursor)
    assert later == found[4:]
    key = f"{result.unit.unit}/g001/a1"
    lineage = trial_lineage(platform, find_trial(platform, key))
    assert (str(lineage.trial.key), lineage.group) == (key, f"{result.unit.unit}/g001")


async def test_a_task_that_can_never_fit_is_refused_with_the_resource(platform: Platform) -> None:
    """The plan's overrides count, and a smaller override lets it in; the trial's box has that size."""
    small = replace(platform, budget=replace(UNBOUNDED, memory_mb=1024.0, cpus=2.0))
    with pytest.raises(AdmissionError, match=r"memory_mb: a trial takes 2048, the budget has 1024"):
        submit(small)
    with pytest.raises(AdmissionError, match=r"cpus: a trial takes 3, the budget has 2"):
        submit(small, overrides=Overrides(memory_mb=256, cpus=3.0))
    submit(small, overrides=Overrides(memory_mb=256))
    (result,) = await run_all(small)
    assert len(result.trials.trials) == 6
    with pytest.raises(ConfigurationError, match=r"overrides\.memory_mb"):
        submit(small, overrides=Overrides(memory_mb=0))


async def test_what_a_unit_may_use_is_in_the_ledger_while_it_runs(platform: Platform) -> None:
    """The live figures name the unit, what it uses and what it wants; afterwards nobody holds anything."""
    bounded = replace(platform, budget=replace(UNBOUNDED, trials=3.0))
    accepted = submit(bounded, attempts=2000, concurrency=8)
    running = asyncio.ensure_future(run_all(bounded))
    view = capacity(bounded)
    while not view.grants:
        await asyncio.sleep(0.02)
        view = capacity(bounded)
    (grant,) = view.grants
    trials = next(item for item in view.resources if item.name == "trials")
    assert (grant.experiment_id, trials.budget, trials.wanted) == (accepted.experiment.experiment_id, 3, 3)
    assert trials.used <= trials.held <= 3
    request_cancel(bounded, accepted.experiment.experiment_id)
    with pytest.raises(UnitCancelledError):
        await running
    assert capacity(bounded).grants == ()


def test_tools_that_the_harness_cannot_hand_on_are_refused_at_acceptance(tmp_path: Path) -> None:
    """By field, before anything runs or is written; an engine without a model takes the same tasks."""
    platform = make_platform(tmp_path / "home")
    platform = replace(platform, engines={**platform.engines, "mini": MiniEngine()})
    server = '[[environment.mcp_servers]]\nname = "m"\nurl = "http://m"\n'
    for name, lines in {"server": server, "skills": '[environment]\nskills_dir = "/skills"\n'}.items():
        config = write_task(tmp_path / "tasks", name) / "task.toml"
        config.write_text(config.read_text() + lines)
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    policy = BasePolicy(
        name="tiny",
        digest="0" * 64,
        family="qwen3",
        files=(),
        recipe_digest="1" * 64,
        context_tokens=128,
        n_parameters=7,
        metrics={},
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(policy)
    profile = Profile(name="actor", engine="mini", model="base:tiny")
    submission = Submission(
        kind=ExperimentKind.EVALUATION, task_set=str(REFERENCE), actor=profile, plan=Plan(sandbox="memory")
    )
    with pytest.raises(AdmissionError) as refused:
        accept(platform, submission)
    assert "t/server: environment.mcp_servers: engine 'mini' takes none" in str(refused.value)
    assert "t/skills: environment.skills_dir: engine 'mini' takes no skills" in str(refused.value)
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.all() == ()
    assert submit(platform, engine="oracle").created
