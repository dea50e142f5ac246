"""Jobs that Harbor ran, and our own exports, become experiments that everything else works on."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from adapters.benchmarks.harbor_job import read_job, task_digests
from adapters.benchmarks.harbor_trajectory import interactions, read_trajectories
from adapters.evidence_codec import decode_trial, encode_trial
from adapters.reports.atif import trajectory
from adapters.reports.conversation import turns_of
from adapters.reports.harbor_layout import Finished, HarborJob, trial_name
from cli.reporting import assessed_trials
from domain.errors import ConfigurationError
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import ExperimentKind
from domain.records.manifest import AssessmentManifest, TrialManifest
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.records.trial import Purpose
from domain.service.accept import Accepted, Submission, accept
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.evaluate import evaluation
from domain.service.import_trials import Importer, import_job
from domain.service.inspection import show
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.regrade import accept_regrade, regrade_unit
from domain.service.samples import request_fresh_sample
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform
from tests.services.harbor_tool import run_job
from tests.services.test_harbor_layout import CALLS

REFERENCE = parse_reference("team/job@v1", field="test")
GRADE = "cat /app/out > /logs/verifier/reward.txt\n"
HEAD = '[task]\nname = "t/{name}"\n[metadata]\nhost_runnable = true\n'
SCORED = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


def write_task(directory: Path, name: str, toml: str, files: Mapping[str, str], *, top: str = "") -> None:
    """Write a task whose tests take /app/out for the reward."""
    given = {
        "task.toml": top + HEAD.format(name=name) + toml,
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
        "instruction.md": "Do it.\n",
        "tests/test.sh": GRADE,
        **files,
    }
    for path, content in given.items():
        (directory / name / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / name / path).write_text(content)


SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
SHARED = '[verifier]\nenvironment_mode = "shared"\n'
OUT = 'artifacts = ["/app/out"]\n'
TWO = '[[steps]]\nname = "a"\n{gate}[[steps]]\nname = "b"\n'


def steps_files(first: str, second: str) -> dict[str, str]:
    """Return the files of two steps by their solutions."""
    return {
        "steps/a/instruction.md": "A.\n",
        "steps/b/instruction.md": "B.\n",
        "steps/a/solution/solve.sh": first,
        "steps/b/solution/solve.sh": second,
    }


def write_tasks(directory: Path) -> None:
    """Write one task of each kind of ending."""
    solve = "solution/solve.sh"
    write_task(directory, "sep", SEPARATE, {solve: "echo 1 > /app/out\n"}, top=OUT)
    write_task(directory, "shared", SHARED, {solve: "echo 0.5 > /app/out; touch /logs/artifacts/note\n"})
    write_task(directory, "none", SHARED, {solve: "true\n", "tests/test.sh": "true\n"})
    write_task(directory, "slow", "[agent]\ntimeout_sec = 1.0\n" + SHARED, {solve: "echo 1 > /app/out; sleep 60\n"})
    halves = steps_files("echo 1 > /app/out\n", "echo 0.5 > /app/out\n")
    write_task(directory, "steps", SEPARATE + TWO.format(gate=""), halves, top=OUT)
    write_task(directory, "setup", SHARED + TWO.format(gate=""), {**halves, "steps/b/workdir/setup.sh": "exit 3\n"})
    write_task(directory, "gated", SEPARATE + TWO.format(gate="min_reward = 2.0\n"), halves, top=OUT)


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A platform with the tasks, and what imports into it."""

    platform: Platform
    jobs: Path

    async def evaluate(self, engine: str) -> str:
        """Run an evaluation in local boxes to its end."""
        accepted = accept(
            self.platform,
            Submission(
                kind=ExperimentKind.EVALUATION,
                task_set=str(REFERENCE),
                actor=Profile(name=engine, engine=engine),
                plan=Plan(sandbox="local", attempts=2),
            ),
        )
        (launch,) = dispatch(self.platform).launches
        await run_unit(self.platform, launch.unit, "worker", SCORED, silent)
        conclude_evaluation(self.platform, accepted.experiment.experiment_id, succeeded=True)
        return accepted.experiment.experiment_id

    def export(self, experiment_id: str) -> Path:
        """Write an experiment as ``synth run export`` does."""
        with self.platform.ledger.snapshot() as tx:
            found = tx.experiments.get(experiment_id)
            profile = tx.catalog.profile(found.spec.actor_digest)
        job = HarborJob(experiment=found, profile=profile, store=self.platform.store)
        results: list[dict[str, Any]] = []
        directory = self.jobs / experiment_id
        for trial, assessment in assessed_trials(self.platform, experiment_id):
            result, files = job.trial_files(Finished(trial=trial, assessment=assessment))
            results.append(result)
            for name, content in files.items():
                path = directory / trial_name(trial) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for name, content in job.job_files(results).items():
            (directory / name).write_bytes(content)
        return directory

    def take(self, directory: Path, *, actor: str = "") -> Accepted:
        """Import a job."""
        importer = Importer(platform=self.platform, task_digests=task_digests, encode=encode_trial)
        return import_job(importer, read_job(directory), REFERENCE, sandbox="local", actor=actor)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A platform that knows the tasks."""
    platform = make_platform(tmp_path / "home")
    write_tasks(tmp_path / "tasks")
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    return Bench(platform=platform, jobs=tmp_path / "jobs")


def said(assessment: Assessment | None) -> tuple[object, ...]:
    """Return what two assessments of one trial must share."""
    if assessment is None:
        return ()
    return assessment.outcome, assessment.reward, dict(assessment.panel), assessment.tampered, assessment.reason


async def test_an_export_comes_back_as_it_was(bench: Bench) -> None:
    """The same outcomes, rewards, reasons, steps, counts and estimate; and a regrade of both says the same."""
    first = await bench.evaluate("oracle")
    accepted = bench.take(bench.export(first))
    second = accepted.experiment.experiment_id
    ours, theirs = (assessed_trials(bench.platform, item) for item in (first, second))
    assert len(ours) == len(theirs) == 14
    for (trial, assessment), (other, found) in zip(ours, theirs, strict=True):
        assert (other.task_digest, other.outcome, other.detail) == (trial.task_digest, trial.outcome, trial.detail)
        assert other.missing_artifacts == trial.missing_artifacts
        assert said(found) == said(assessment), trial.task_name
        assert [(step.name, step.outcome, said(step.assessment), step.stopped) for step in other.steps] == [
            (step.name, step.outcome, said(step.assessment), step.stopped) for step in trial.steps
        ]
    views = [show(bench.platform, item) for item in (first, second)]
    assert views[0].outcomes == views[1].outcomes
    assert views[0].assessed == views[1].assessed
    assert views[0].mean == views[1].mean
    reports = [evaluation(bench.platform, item) for item in (first, second)]
    assert reports[0].tasks == reports[1].tasks
    assert accepted.experiment.spec.kind is ExperimentKind.IMPORTED
    regraded: list[list[tuple[object, ...]]] = []
    for item in (first, second):
        regrade = accept_regrade(bench.platform, item).experiment.experiment_id
        _, manifest = await regrade_unit(bench.platform, regrade, f"{item}.s000", "worker", silent)
        regraded.append([said(found) for found in manifest.assessments])
    assert regraded[0] == regraded[1]


async def test_the_same_job_is_one_experiment(bench: Bench) -> None:
    """By its content: again it is the same, one byte more and it is another."""
    directory = bench.export(await bench.evaluate("nop"))
    first = bench.take(directory)
    again = bench.take(directory)
    assert (first.created, again.created) == (True, False)
    assert again.experiment.experiment_id == first.experiment.experiment_id
    assert dispatch(bench.platform).launches == ()
    next(directory.glob("sep__*")).joinpath("more").write_text("x")
    assert bench.take(directory).created


def _rewrite(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


BAD: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "job without a name": ("config.json", lambda v: v.pop("job_name"), r"config\.json: job_name"),
    "unknown version": ("result.json", lambda v: v.update(schema_version=2), r"result\.json: schema_version"),
    "no outcome": ("TRIAL/result.json", lambda v: v.pop("config"), r"result\.json: config"),
    "not ended": ("TRIAL/result.json", lambda v: v.update(finished_at=None), r"result\.json: finished_at"),
    "another trial's": ("TRIAL/result.json", lambda v: v.update(trial_name="x"), r"trial_name: 'x'"),
    "reward that is no number": (
        "TRIAL/result.json",
        lambda v: v.update(verifier_result={"rewards": {"reward": True}}),
        r"verifier_result\.rewards\.reward",
    ),
    "unknown task": ("TRIAL/result.json", lambda v: v.update(task_name="t/other"), r"task_name: 't/other' is not in"),
    "another version of its task": (
        "TRIAL/result.json",
        lambda v: v.update(task_checksum="0" * 64),
        r"task\.digest: another version of 't/sep'",
    ),
    "steps of another task": (
        "TRIAL/result.json",
        lambda v: v.update(step_results=[{"step_name": "a"}]),
        r"step_results: a, and the task has 0 steps",
    ),
    "a step that is a path": (
        "TRIAL/result.json",
        lambda v: v.update(step_results=[{"step_name": "../../x"}]),
        r"step_results\.0\.step_name",
    ),
    "artifacts outside": (
        "TRIAL/artifacts/manifest.json",
        lambda v: cast("list[object]", v).append({"source": "/x", "destination": "artifacts/../../x", "status": "ok"}),
        r"manifest\.json: \d+\.destination",
    ),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One exported job of one trial, and the tasks beside it."""
    import asyncio

    home = tmp_path_factory.mktemp("exported")
    platform = make_platform(home / "home")
    write_task(home / "tasks", "sep", SEPARATE, {"solution/solve.sh": "echo 1 > /app/out\n"}, top=OUT)
    publish_task_set(platform, REFERENCE, str(home / "tasks"))
    made = Bench(platform=platform, jobs=home / "jobs")
    made.export(asyncio.run(made.evaluate("oracle"))).rename(home / "job")
    return home


@pytest.mark.parametrize(("name", "change", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_malformed_is_refused_by_file_and_field(
    exported: Path, tmp_path: Path, name: str, change: Callable[[Any], object], words: str
) -> None:
    """Before anything is written."""
    directory = tmp_path / "job"
    shutil.copytree(exported / "job", directory)
    platform = make_platform(tmp_path / "home")
    publish_task_set(platform, REFERENCE, str(exported / "tasks"))
    kept = sorted((tmp_path / "home" / "store").rglob("*"))
    trial = next(path for path in directory.iterdir() if path.is_dir())
    _rewrite(directory / name.replace("TRIAL", trial.name), change)
    with pytest.raises(ConfigurationError, match=words):
        Bench(platform=platform, jobs=tmp_path).take(directory)
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.all() == ()
    assert sorted((tmp_path / "home" / "store").rglob("*")) == kept


def test_links_and_devices_of_a_job_lead_nowhere(exported: Path, tmp_path: Path) -> None:
    """A box's files are not to be trusted: a link out of the outputs is refused, a FIFO too."""
    directory = tmp_path / "job"
    shutil.copytree(exported / "job", directory)
    trial = next(path for path in directory.iterdir() if path.is_dir())
    fifo = trial / "agent" / "pipe"
    fifo.parent.mkdir(exist_ok=True)
    os.mkfifo(fifo)
    with pytest.raises(ConfigurationError, match="neither a file nor a directory"):
        read_job(directory)
    fifo.unlink()
    (trial / "artifacts" / "app" / "out").unlink()
    (trial / "artifacts" / "app" / "out").symlink_to("/etc/passwd")
    with pytest.raises(ConfigurationError, match="leaves its directory"):
        read_job(directory)


def test_a_job_that_would_hold_up_every_worker_is_refused(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One import is one transaction, so it has a bound."""
    monkeypatch.setattr("domain.service.import_trials.MOST_TRIALS", 1)
    platform = make_platform(tmp_path / "home")
    publish_task_set(platform, REFERENCE, str(exported / "tasks"))
    with pytest.raises(ConfigurationError, match="2 trials, and one import takes 1"):
        Bench(platform=platform, jobs=tmp_path).take(exported / "job")


async def test_imported_trials_never_run_here(bench: Bench) -> None:
    """Nothing of them is sampled, resampled or run again; only their outputs are assessed."""
    unit = bench.take(bench.export(await bench.evaluate("nop"))).experiment.experiment_id + ".s000"
    with pytest.raises(ConfigurationError, match="ended elsewhere"):
        await run_unit(bench.platform, unit, "worker", SCORED, silent)
    with pytest.raises(ConfigurationError, match="were imported"):
        request_fresh_sample(bench.platform, unit)


def rows(platform: Platform, experiment_id: str) -> dict[str, tuple[str, str, float | None]]:
    """Return (outcome, verdict, reward) of every trial, by task, those that do not count included."""
    with platform.ledger.snapshot() as tx:
        refs = [tx.units.manifest(f"{experiment_id}.s000", kind) for kind in ("trials", "assessments")]
    assert refs[0] is not None
    assert refs[1] is not None
    trials = platform.records.load(TrialManifest, refs[0]).trials
    panel = {item.trial_id: item for item in platform.records.load(AssessmentManifest, refs[1]).assessments}
    found = {trial.task_name: (trial, panel[trial.trial_id]) for trial in trials}
    return {name: (trial.outcome.value, item.outcome.value, item.reward) for name, (trial, item) in found.items()}


@pytest.mark.timeout(1200)
async def test_jobs_that_harbor_ran_have_our_outcomes(bench: Bench, tmp_path: Path) -> None:
    """Oracle and nop of Harbor 0.26: its wrong scores are not ours, and a regrade says what can be said."""
    oracle, nop = (bench.take(run_job(tmp_path / "tasks", tmp_path / "jobs", agent)) for agent in ("oracle", "nop"))
    assert rows(bench.platform, oracle.experiment.experiment_id) == {
        "t/sep": ("completed", "scored", 1.0),
        "t/shared": ("completed", "scored", 0.5),
        "t/none": ("completed", "ungraded", None),
        "t/slow": ("agent_timeout", "scored", 1.0),
        "t/steps": ("completed", "scored", 0.75),
        "t/setup": ("infra_error", "ungraded", None),  # Harbor: 1.0
        "t/gated": ("completed", "scored", 0.5),  # Harbor: 1.0
    }
    found = rows(bench.platform, nop.experiment.experiment_id)
    assert found["t/sep"] == ("completed", "ungraded", None)  # Harbor cannot say whether the file was there
    assert found["t/shared"] == ("completed", "ungraded", None)
    assert show(bench.platform, nop.experiment.experiment_id).outcomes == {"completed": 7}
    regrade = accept_regrade(bench.platform, oracle.experiment.experiment_id).experiment.experiment_id
    unit = f"{oracle.experiment.experiment_id}.s000"
    _, manifest = await regrade_unit(bench.platform, regrade, unit, "worker", silent)
    assert sorted(item.reward for item in manifest.assessments if item.reward is not None) == [0.5, 0.75, 1.0]


@pytest.mark.timeout(1200)
async def test_a_regrade_of_what_the_job_did_not_keep_is_ungraded(tmp_path: Path) -> None:
    """Harbor keeps no working directory of a task without artifacts; nothing there is no zero."""
    platform = make_platform(tmp_path / "home")
    write_task(tmp_path / "tasks", "plain", SEPARATE, {"solution/solve.sh": "touch /logs/artifacts/x\n"})
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    bench = Bench(platform=platform, jobs=tmp_path / "jobs")
    imported = bench.take(run_job(tmp_path / "tasks", tmp_path / "jobs", "oracle")).experiment.experiment_id
    regrade = accept_regrade(platform, imported).experiment.experiment_id
    _, manifest = await regrade_unit(platform, regrade, f"{imported}.s000", "worker", silent)
    (found,) = manifest.assessments
    assert (found.outcome, found.reward) == (AssessmentOutcome.UNGRADED, None)
    assert "did not keep" in found.reason


async def test_a_transcript_comes_back(tmp_path: Path) -> None:
    """Turns, ids and log-probabilities; marked so that no training takes them."""
    found = tuple(
        replace(call, request=call.request if number != 1 else {**call.request, "system": ""})
        for number, call in enumerate(CALLS)
    )
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(trajectory(found, agent="mini", version="0", model="base-1")))
    read = interactions(read_trajectories([(path, "t")]), "trial-1")
    assert turns_of(read) == turns_of(found)
    assert [call.sampled_ids for call in read] == [call.sampled_ids for call in found]
    assert {call.purpose for call in read} == {Purpose.OTHER}
    assert decode_trial(encode_trial("trial-1", read)) == read
