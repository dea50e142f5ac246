"""What is written in Harbor's layout is what Harbor's own models read, and means there what it means here."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from adapters.reports.atif import Document, trajectory
from adapters.reports.harbor_layout import Finished, HarborJob, trial_name
from domain.records.archive import pack_files
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.records.trial import Interaction, Purpose, StepRecord, StopReason, TrialOutcome, TrialRecord
from tests.contracts.verifying import make_task, make_trial
from tests.fakes.store import MemoryStore
from tests.services.harbor_tool import require_harbor, viewer

SPEC = ExperimentSpec(
    kind=ExperimentKind.EVALUATION,
    task_set=parse_reference("team/x@v1", field="x"),
    task_set_digest="d",
    actor_digest="a",
    assessor="verifier",
    plan=Plan(),
)
EXPERIMENT = Experiment(
    experiment_id="evl-1", spec=SPEC, spec_digest="s", state=ExperimentState.SUCCEEDED, n_units=1, created_ms=1000
)

_READER = """
import json
import sys
from pathlib import Path

from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trajectories import Trajectory
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult

job = Path(sys.argv[1])
JobConfig.model_validate_json((job / "config.json").read_text())
lock = JobLock.model_validate_json((job / "lock.json").read_text())
found = JobResult.model_validate_json((job / "result.json").read_text())
trials = []
for directory in sorted(path for path in job.iterdir() if path.is_dir()):
    TrialConfig.model_validate_json((directory / "config.json").read_text())
    assert TrialLock.model_validate_json((directory / "lock.json").read_text()) in lock.trials
    trials.append(TrialResult.model_validate_json((directory / "result.json").read_text()))
    for path in directory.rglob("trajectory.json"):
        Trajectory.model_validate_json(path.read_text())
own = JobStats.from_trial_results(trials)
ours, theirs = (json.loads(stats.model_dump_json())["evals"] for stats in (found.stats, own))
for evals in (ours, theirs):
    for stats in evals.values():
        stats.pop("metrics")
answer = {
    "ours": ours,
    "theirs": theirs,
    "trials": [
        [trial.task_name, trial.reward_valid, trial.verifier_result and trial.verifier_result.rewards]
        for trial in trials
    ],
}
sys.stdout.write(json.dumps(answer))
"""
"""Run by Harbor's own Python: loads a job directory with Harbor's models and says what it understood."""


def scored(reward: float | None, **panel: float) -> Assessment:
    """Return an assessment."""
    outcome = AssessmentOutcome.UNGRADED if reward is None else AssessmentOutcome.SCORED
    return Assessment(
        trial_id="t",
        assessor="verifier:0",
        outcome=outcome,
        panel={} if reward is None else {"reward": reward, **panel},
        reward=reward,
        reason="broken" if reward is None else "",
    )


def call(sequence: int, messages: list[dict[str, object]], content: list[dict[str, object]], agent: str) -> Interaction:
    """Return a captured call."""
    return Interaction(
        interaction_id=f"i{sequence}",
        trial_id="trial-1",
        sequence=sequence,
        agent=agent,
        segment=0,
        purpose=Purpose.AGENT,
        sampler_version="base-1",
        prompt_ids=(1, 2),
        sampled_ids=(3,),
        logprobs=(-0.5,),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=0,
        request=cast("dict[str, None]", {"system": "S", "messages": messages}),
        response=cast("dict[str, None]", {"content": content}),
    )


CALLS = (
    call(
        0,
        [{"role": "user", "content": "Do it."}],
        [
            {"type": "text", "text": "Well"},
            {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
        ],
        "main",
    ),
    call(
        1,
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}]}],
        [{"type": "text", "text": "Done."}],
        "main",
    ),
    call(2, [{"role": "user", "content": "Sub."}], [{"type": "text", "text": "Yes."}], "helper-1"),
)


def trials() -> list[Finished]:
    """Return one trial of each kind of ending."""
    plain = replace(make_trial(make_task(MemoryStore())), started_ms=2000, ended_ms=3000)
    steps = (
        StepRecord(name="a", outcome=TrialOutcome.COMPLETED, assessment=scored(1.0), started_ms=2000, ended_ms=2100),
        StepRecord(
            name="b", outcome=TrialOutcome.AGENT_TIMEOUT, assessment=scored(0.5), started_ms=2100, ended_ms=2200
        ),
    )

    def one(number: int, **changes: object) -> TrialRecord:
        return replace(plain, trial_id=f"trial-{number}", task_name=f"t/{number}", **changes)

    return [
        Finished(trial=one(1, policy="base-1"), assessment=scored(1.0, style=0.5), interactions=CALLS),
        Finished(trial=one(2), assessment=scored(None)),
        Finished(trial=one(3, outcome=TrialOutcome.AGENT_TIMEOUT), assessment=scored(0.0)),
        Finished(trial=one(4, outcome=TrialOutcome.INFRA_ERROR), assessment=None),
        Finished(trial=one(5, steps=steps), assessment=scored(0.75)),
        Finished(trial=one(6, missing_artifacts=("/app/x",)), assessment=scored(0.0)),
    ]


def write_job(directory: Path, finished: list[Finished], store: MemoryStore) -> None:
    """Write a job directory."""
    job = HarborJob(
        experiment=EXPERIMENT,
        profile=Profile(name="p", engine="mini"),
        store=store,
        harbor_digests={item.trial.task_digest: "0" * 64 for item in finished},
    )
    results: list[Document] = []
    for item in finished:
        result, files = job.trial_files(item)
        results.append(result)
        for name, content in files.items():
            path = directory / trial_name(item.trial) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for name, content in job.job_files(results).items():
        (directory / name).write_bytes(content)


def test_a_trajectory_has_its_calls_observations_and_ids() -> None:
    """Tool results stand beside the call they answer; a delegated agent is a trajectory of its own."""
    made = trajectory(CALLS, agent="mini", version="0", model="base-1")
    assert made is not None
    steps = cast("list[dict[str, object]]", made["steps"])
    assert [(step["step_id"], step["source"]) for step in steps] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
    ]
    assert steps[2]["observation"] == {"results": [{"source_call_id": "c1", "content": "a.txt"}]}
    assert cast("dict[str, object]", steps[3]["metrics"])["completion_token_ids"] == [3]
    assert len(cast("list[object]", made["subagent_trajectories"])) == 1
    assert trajectory((), agent="mini", version="0", model=None) is None


def test_logs_outputs_and_missing_artifacts_are_files(tmp_path: Path) -> None:
    """Regular files alone, each below its phase's directory, and the manifest says what is missing."""
    store = MemoryStore()
    outputs, logs = store.put(pack_files({"app/a": b"1"})), store.put(pack_files({"0.stdout": b"x"}))
    item = trials()[5]
    item = replace(item, trial=replace(item.trial, outputs=outputs, logs=logs))
    write_job(tmp_path, [item], store)
    directory = tmp_path / trial_name(item.trial)
    assert (directory / "artifacts" / "app" / "a").read_bytes() == b"1"
    assert (directory / "agent" / "0.stdout").read_bytes() == b"x"
    manifest = json.loads((directory / "artifacts" / "manifest.json").read_text())
    assert [entry["status"] for entry in manifest] == ["ok", "failed"]


@pytest.mark.timeout(1200)
def test_harbors_models_read_it_and_agree_on_what_counts(tmp_path: Path) -> None:
    """Scored trials are valid there, ungraded and lost ones are not, and Harbor's own counts are the written ones."""
    program = require_harbor()
    write_job(tmp_path, trials(), MemoryStore())
    command = (str(program.parent / "python"), "-c", _READER, str(tmp_path))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HARBOR_TELEMETRY": "0"},  # noqa: TID251 - tests may
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: valid for name, valid, _ in found["trials"]} == {
        "t/1": True,
        "t/2": False,
        "t/3": True,
        "t/4": False,
        "t/5": True,
        "t/6": True,
    }
    assert found["ours"] == found["theirs"]


@pytest.mark.timeout(1200)
def test_harbors_viewer_shows_it(tmp_path: Path) -> None:
    """The job and every trial are listed by its API; a trial has its result, trajectory, tests' words and files."""
    store = MemoryStore()
    first, *others = trials()
    logs = store.put(pack_files({"test-stdout.txt": b"checked"}))
    assert first.assessment is not None
    first = replace(
        first,
        assessment=replace(first.assessment, logs=logs),
        trial=replace(first.trial, outputs=store.put(pack_files({"app/a": b"1"}))),
    )
    write_job(tmp_path / "jobs" / "evl-1", [first, *others], store)
    name = trial_name(first.trial)
    with viewer(tmp_path / "jobs") as client:
        (job,) = client.get("/api/jobs").json()["items"]
        assert (job["name"], job["n_total_trials"], job["n_completed_trials"]) == ("evl-1", 6, 6)
        listed = client.get("/api/jobs/evl-1/trials").json()["items"]
        assert {item["name"] for item in listed} == {trial_name(item.trial) for item in trials()}
        base = f"/api/jobs/evl-1/trials/{name}"
        assert client.get(base).json()["verifier_result"]["rewards"] == {"reward": 1.0, "style": 0.5}
        shown = client.get(f"{base}/trajectory").json()
        assert [step["source"] for step in shown["steps"]] == ["system", "user", "agent", "agent"]
        assert client.get(f"{base}/verifier-output").json()["stdout"] == "checked"
        assert "app/a" in client.get(f"{base}/files").text
