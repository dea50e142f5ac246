"""``synth run export`` and ``synth run import``: there and back, and everything that reads a run reads an import."""

from pathlib import Path

import pytest

from domain.records.experiment import ExperimentKind
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.units import Stage, run_unit
from resources.wiring import connect, settings_from_environment
from tests.cli.synth import Synth

ALL = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


@pytest.fixture
async def job(published: Synth) -> Path:
    """An exported evaluation of nop, two attempts at three tasks."""
    arguments = ("--dataset", "team/evaluation@v1", "--actor", "@agent.json", "--plan", "@eval-plan.json")
    accepted = published.json("run", "start", *arguments)["experiment"]["experiment_id"]
    platform = connect(settings_from_environment())
    (launch,) = dispatch(platform).launches
    await run_unit(platform, launch.unit, "worker", ALL, lambda _what, _done, _total: None)
    conclude_evaluation(platform, accepted, succeeded=True)
    return Path(published.json("run", "export", accepted, "jobs")["path"])


def test_a_job_is_imported_and_read_like_any_run(published: Synth, job: Path) -> None:
    """Without --dataset the job says which; show, trials, transcript, artifacts, report and regrade work."""
    assert sorted(path.name for path in job.iterdir() if path.is_file()) == [
        "config.json",
        "job.log",
        "lock.json",
        "result.json",
    ]
    first = published.json("run", "import", str(job))
    assert first["created"]
    identity = first["experiment"]["experiment_id"]
    again = published.json("run", "import", str(job), "--dataset", "team/evaluation@v1", "--format", "harbor")
    assert (again["created"], again["experiment"]["experiment_id"]) == (False, identity)
    view = published.json("run", "show", identity)
    assert view["experiment"]["spec"]["kind"] == ExperimentKind.IMPORTED
    assert (view["outcomes"], view["n_trials_planned"], view["mean"]["value"]) == ({"completed": 6}, 6, 0.5)
    trials = published.json("run", "trials", identity)["trials"]
    assert sorted(row["assessment"]["reward"] for row in trials) == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert published.json("run", "transcript", trials[0]["trial"]["trial_id"])["interactions"] == []
    assert published.ok("run", "show", identity).out
    report = published.json("run", "report", identity, "--out", "report")
    assert "mean reward" in Path(report["path"]).read_text()
    assert published.json("run", "regrade", identity)["created"]


def test_what_cannot_be_imported_says_why(published: Synth, job: Path) -> None:
    """No job, no such layout, no such agent, no such task set."""
    for arguments, words in {
        (".",): "config.json: missing",
        (str(job), "--format", "inspect"): "no layout",
        (str(job), "--agent", "other"): "names 0 agents",
        (str(job), "--dataset", "team/none@v1"): "team/none@v1",
        (str(job), "--sandbox", "moon"): "no sandbox 'moon'",
    }.items():
        answer = published("run", "import", *arguments)
        assert answer.code == 2, answer.err
        assert words in answer.err, answer.err
