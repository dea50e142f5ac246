"""Reading what an experiment did: trials, artifacts, transcripts, reports, regrades; and ``agent run``."""

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from cli.connection import platform
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.ungraded import nothing_graded, ungraded_reasons
from domain.service.units import Stage, run_unit
from tests.cli.synth import Synth, write_json, write_tasks

START = ("run", "start", "--dataset", "team/evaluation@v1", "--actor", "@agent.json", "--plan", "@eval-plan.json")
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


def _note(_what: str, _done: int, _total: int) -> None:
    """Say nothing."""


@pytest.fixture
def evaluated(published: Synth) -> tuple[Synth, str]:
    """Return the command and an evaluation of three tasks x two attempts that has ended."""
    return published, _evaluate(published)


def _evaluate(synth: Synth) -> str:
    """Run the evaluation of ``START`` as its worker would; returns its id."""
    experiment: str = synth.json(*START)["experiment"]["experiment_id"]
    opened = platform()
    for launch in dispatch(opened).launches:
        asyncio.run(run_unit(opened, launch.unit, "test", STAGES, _note))
    conclude_evaluation(opened, experiment, succeeded=True)
    return experiment


def test_show_counts_what_happened(evaluated: tuple[Synth, str]) -> None:
    """Planned trials, outcomes, assessments and the mean are one document."""
    synth, experiment = evaluated
    view = synth.json("run", "show", experiment)
    assert (view["n_trials_planned"], view["outcomes"], view["assessed"]) == (6, {"completed": 6}, {"scored": 6})
    mean = view["mean"]
    assert (mean["value"], mean["n_tasks"], mean["n_attempts"]) == (pytest.approx(0.5), 3, 6)
    assert mean["low"] < 0.5 < mean["high"]
    shown = synth.ok("run", "show", experiment).out
    assert "6 of 6" in shown
    assert "0.500 [" in shown
    assert "over 3 tasks, 6 scored attempts" in shown


def test_a_run_that_graded_nothing_says_so_and_why(synth: Synth, tmp_path: Path) -> None:
    """Its trials succeeded and nobody has a reward: reasons with counts, and no number anywhere."""
    directory = write_tasks(tmp_path / "tasks", {"a-one": "1", "a-two": "1"})
    for task in directory.iterdir():
        (task / "tests" / "test.sh").write_text("true\n")
    synth.ok("task-set", "publish", str(directory), "team/evaluation@v1")
    write_json(Path("agent.json"), {"name": "nop", "engine": "nop"})
    write_json(Path("eval-plan.json"), {"attempts": 2, "sandbox": "memory"})
    experiment = _evaluate(synth)
    reason = "the verifier wrote no reward file"
    view = synth.json("run", "show", experiment)
    assert (view["assessed"], view["ungraded"], view["n_scored"]) == ({"ungraded": 4}, {reason: 4}, 0)
    for command in ("show", "trials"):
        shown = synth.ok("run", command, experiment).out
        assert f"4 x {reason}" in shown
        assert "no trial was graded" in shown
        assert "mean reward" not in shown
    page = Path(synth.json("run", "report", experiment)["path"]).read_text()
    assert "no trial was graded" in page


def test_reasons_are_counted_whatever_trial_they_name() -> None:
    """The ids in a reason are of one trial; what is wrong is the same."""
    found = [
        Assessment(
            trial_id=f"{number}",
            assessor="verifier:0",
            outcome=AssessmentOutcome.UNGRADED,
            reason=f"verifier of trial 01k{number}: no such image" + "!" * 200 * (number == 3),
        )
        for number in range(4)
    ]
    long, short = sorted(ungraded_reasons(found).items(), key=lambda item: item[1])
    assert short == ("no such image", 3)
    assert (long[1], len(long[0])) == (1, 160)
    assert nothing_graded({"no such image": 3}) == "no trial was graded: 3 x no such image"


def test_trials_are_listed_and_filtered(evaluated: tuple[Synth, str]) -> None:
    """Each with its assessment, in order of attempt."""
    synth, experiment = evaluated
    rows = synth.json("run", "trials", experiment)["trials"]
    assert [row["assessment"]["reward"] for row in rows] == [1.0, 1.0, 0.0, 0.0, 0.5, 0.5]
    assert len(synth.json("run", "trials", experiment, "--task", "a-", "--limit", "3")["trials"]) == 3
    assert synth.json("run", "trials", experiment, "--outcome", "agent_timeout") == {"trials": []}
    assert "tests/b-one" in synth.ok("run", "trials", experiment).out


def test_an_experiment_is_exported_in_harbors_layout(evaluated: tuple[Synth, str], tmp_path: Path) -> None:
    """One job with a directory for each trial; a job that is there is not written over."""
    synth, experiment = evaluated
    found = synth.json("run", "export", experiment, str(tmp_path / "jobs"), "--format", "harbor")
    assert (found["path"], found["n_trials"]) == (str(tmp_path / "jobs" / experiment), 6)
    results = [json.loads(path.read_text()) for path in Path(found["path"]).glob("*/result.json")]
    rewards = [result["verifier_result"]["rewards"]["reward"] for result in results]
    assert sorted(rewards) == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert synth("run", "export", experiment, str(tmp_path / "jobs")).code != 0
    assert synth("run", "export", experiment, str(tmp_path / "other"), "--format", "x").code != 0


def test_artifacts_are_tar_archives(evaluated: tuple[Synth, str], tmp_path: Path) -> None:
    """Of a whole experiment, or of one attempt by its key."""
    synth, experiment = evaluated
    rows = synth.json("run", "artifacts", experiment, "--out", str(tmp_path / "all"))["artifacts"]
    assert {row["kind"] for row in rows} == {"outputs", "logs"}
    for row in rows:
        with tarfile.open(row["path"]) as archive:
            assert archive.getnames() is not None
    one = synth.json("run", "artifacts", f"{experiment}.s000/g001/a1", "--out", str(tmp_path / "one"))["artifacts"]
    assert {row["attempt"] for row in one} == {f"{experiment}.s000/g001/a1"}


def test_a_transcript_without_a_model(evaluated: tuple[Synth, str], tmp_path: Path) -> None:
    """A trial that called no model still says how it ended and what it scored."""
    synth, experiment = evaluated
    attempt = f"{experiment}.s000/g002/a0"
    text = synth.ok("run", "transcript", attempt).out
    assert "tests/b-one" in text
    assert "reward 0.500" in text
    synth.ok("run", "transcript", attempt, "--html", str(tmp_path / "page.html"))
    assert "No model call was captured" in (tmp_path / "page.html").read_text()
    assert synth.json("run", "transcript", attempt)["assessments"][0]["reward"] == 0.5


def test_a_report_of_an_evaluation(evaluated: tuple[Synth, str]) -> None:
    """One file with the numbers, and transcripts that its squares open."""
    synth, experiment = evaluated
    written = synth.json("run", "report", experiment, "--transcripts", "4")
    page = Path(written["path"])
    assert page == synth.home / "reports" / experiment / "index.html"
    assert written["n_transcripts"] == len(list((page.parent / "transcripts").iterdir())) == 4
    text = page.read_text()
    assert "0.500" in text
    assert "6 scored, 0 ungraded, 0 fail-closed" in " ".join(text.split())
    assert text.count('href="transcripts/') == 4


def test_a_regrade_is_accepted_beside_its_source(evaluated: tuple[Synth, str]) -> None:
    """The source stays as it is; a regrade of a regrade is refused."""
    synth, experiment = evaluated
    regrade = synth.json("run", "regrade", experiment)["experiment"]
    assert (regrade["spec"]["kind"], regrade["spec"]["source"]) == ("regrade", experiment)
    assert synth("run", "regrade", regrade["experiment_id"]).code == 2


def test_following_ends_with_the_experiment(evaluated: tuple[Synth, str]) -> None:
    """Events come in order of cursor, without a gap."""
    synth, experiment = evaluated
    lines = synth.ok("run", "events", experiment, "--follow").out.splitlines()
    assert "experiment.succeeded" in lines[-1]
    assert [int(line.split()[0]) for line in lines] == sorted(int(line.split()[0]) for line in lines)


def test_an_agent_runs_once_here(published: Synth, tmp_path: Path) -> None:
    """``agent run`` goes the way of every trial, prints outcome and reward, and leaves a trial that can be read."""
    task = str(tmp_path / "tasks" / "b-one")
    found = published.json("agent", "run", "@agent.json", "--task", task, "--sandbox", "memory")
    assert (found["trial"]["outcome"], found["assessment"]["reward"]) == ("completed", 0.5)
    assert "b-one" in published.ok("run", "transcript", found["trial"]["trial_id"]).out
    states = [item["state"] for item in published.json("run", "list", "--all")["experiments"]]
    assert states == ["succeeded"]
    several = published("agent", "run", "@agent.json", "--task", str(tmp_path / "tasks"), "--sandbox", "memory")
    assert several.code == 2


def test_status_without_anything_running(published: Synth) -> None:
    """Exit code 1, and a document that says so; people are told where nothing runs."""
    answer = published("status", "--json")
    assert (answer.code, answer.json["running"], answer.json["open"]) == (1, False, [])
    assert published.json("down") == {"stopped": False}
    for command in ("status", "down"):
        assert str(published.home) in published(command).out


LOOKING = (
    ("run", "list"),
    ("run", "show", "evl-x"),
    ("run", "events", "evl-x"),
    ("run", "checkpoints", "trn-x"),
    ("run", "trials", "evl-x"),
    ("run", "transcript", "01kx"),
    ("run", "artifacts", "evl-x"),
    ("run", "export", "evl-x", "jobs"),
    ("run", "report", "evl-x"),
    ("run", "cancel", "evl-x"),
    ("run", "regrade", "evl-x"),
    ("run", "resample", "evl-x.s000"),
    ("run", "resolve", "trn-x.b00000", "--applied"),
    ("task-set", "list"),
    ("task-set", "show", "team/x@v1"),
    ("task-set", "check", "team/x@v1"),
    ("profile", "list"),
    ("policy", "list"),
    ("capacity",),
    ("status",),
)


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_looking_makes_nothing(synth: Synth, arguments: tuple[str, ...]) -> None:
    """In another directory than yesterday's: a name for what is wrong, not an empty table of a state made just now."""
    answer = synth(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert f"no state at {synth.home}" in answer.err
    assert "SYNTH_HOME or --home" in answer.err
    assert not synth.home.exists()
    assert not list(Path.cwd().iterdir())
