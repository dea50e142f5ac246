"""Submitting and ending experiments: idempotency, wrong input, cancellation."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from cli.supervisor import Identity
from tests.cli.synth import Synth, write_json, write_tasks

START = ("run", "start", "--dataset", "team/evaluation@v1", "--actor", "@agent.json", "--plan", "@eval-plan.json")


def test_the_same_key_returns_the_same_experiment(published: Synth) -> None:
    """A retry finds what it started; another request under the same key is refused."""
    first = published.json(*START, "--idempotency-key", "k")
    again = published.json(*START, "--idempotency-key", "k")
    assert (first["created"], again["created"]) == (True, False)
    assert first["experiment"]["experiment_id"] == again["experiment"]["experiment_id"]
    other = published(*START, "--idempotency-key", "k", "--unscored")
    assert other.code == 2
    assert "error:" in other.err


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 201, "\udcff"])
def test_a_key_that_names_nothing_is_refused(published: Synth, key: str) -> None:
    """Above all the empty one, of a variable that is not set: it would make all such requests one."""
    answer = published(*START, "--idempotency-key", key)
    assert (answer.code, answer.out, "Traceback" in answer.err) == (2, "", False)
    assert published.json("run", "list") == {"experiments": []}


def test_a_published_profile_can_be_named(published: Synth) -> None:
    """``--actor`` takes a reference instead of a file, and an unscored run has its own kind."""
    published.ok("profile", "publish", "@agent.json", "team/agent@v1")
    named = [item if item != "@agent.json" else "team/agent@v1" for item in START]
    experiment = published.json(*named, "--unscored")["experiment"]
    assert experiment["experiment_id"].startswith("uns-")
    listed = published.json("profile", "list")["profiles"]
    assert [(row["reference"], row["digest"]) for row in listed] == [
        ("team/agent@v1", experiment["spec"]["actor_digest"])
    ]


@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        ("agent.json", {"name": "nop", "engine": "nop", "colour": "red"}, ("agent.json", "colour")),
        ("agent.json", {"name": "nop", "engine": "bash"}, ("engine", "bash")),
        ("eval-plan.json", {"attempts": 0}, ("eval-plan.json", "attempts")),
        ("eval-plan.json", {"sandbox": "cloud"}, ("sandbox", "cloud")),
    ],
)
def test_a_wrong_document_names_file_and_field(
    published: Synth, name: str, document: object, words: tuple[str, ...]
) -> None:
    """One message, no traceback, exit code 2, and nothing is accepted."""
    write_json(Path(name), document)
    answer = published(*START)
    assert answer.code == 2
    assert all(word in answer.err for word in words), answer.err
    assert "Traceback" not in answer.err
    assert published.json("run", "list") == {"experiments": []}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "show", "evl-nothing"),
        ("run", "events", "evl-nothing", "--follow"),
        ("run", "transcript", "01knothing"),
        ("run", "report", "evl-nothing"),
        ("run", "resolve", "trn-nothing.b00000", "--not-applied"),
        ("task-set", "publish", "no-such-directory", "team/x@v1"),
        ("task-set", "publish", ".", "Team/x"),
        ("profile", "publish", "agent.json", "team/x@v1"),
        ("policy", "make", "@no-such-recipe.json"),
    ],
)
def test_what_is_not_there_is_one_message(synth: Synth, arguments: tuple[str, ...]) -> None:
    """Exit code 2, in words for people and as JSON for programs."""
    answer = synth(*arguments)
    assert (answer.code, "Traceback" in answer.err, answer.out) == (2, False, "")
    assert answer.err.startswith("error: ")
    told = json.loads(synth(*arguments, "--json").err)["error"]
    assert told["message"]
    assert told["kind"].endswith("Error")


def test_a_task_set_cannot_change(published: Synth, tmp_path: Path) -> None:
    """The same tasks again are fine, others under the same version are a conflict."""
    published.ok("task-set", "publish", str(tmp_path / "tasks"), "team/practice@v1")
    other = write_tasks(tmp_path / "other", {"c-one": "1"})
    answer = published("task-set", "publish", str(other), "team/practice@v1", "--json")
    assert (answer.code, json.loads(answer.err)["error"]["kind"]) == (2, "ConflictError")
    listed = published.json("task-set", "list")["task_sets"]
    assert [item["n_tasks"] for item in listed] == [3, 3]


def test_whoever_asks_is_told_whether_anything_runs_it(published: Synth) -> None:
    """With Synth down nothing happens, and the same words as with Synth up would hide it."""
    told = published.ok(*START).err
    assert "Synth is down: nothing runs until `synth up`" in told
    assert "Synth is down" not in published.ok(*START, "--json").err
    me = Identity.of(os.getpid())
    assert me is not None
    state = {"supervisor": asdict(me), "ui": "http://ui", "proxy": "http://proxy", "ready": True, "services": {}}
    (published.home / "run" / "up.json").write_text(json.dumps(state))
    assert "Synth is up and runs it: http://ui" in published.ok(*START).err


def test_cancelling_is_asked_once(published: Synth) -> None:
    """The request is an event, and asking again changes nothing."""
    experiment = published.json(*START)["experiment"]["experiment_id"]
    published.ok("run", "cancel", experiment)
    assert published.json("run", "cancel", experiment)["experiment"]["cancel_requested"]
    lines = published.ok("run", "events", experiment, "--json").out.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["experiment.accepted", "unit.admitted", "experiment.cancel_requested"]
    after = published.ok("run", "events", experiment, "--json", "--cursor", "2").out
    assert json.loads(after)["kind"] == "experiment.cancel_requested"


def test_another_home(synth: Synth, tmp_path: Path) -> None:
    """``--home`` replaces SYNTH_HOME for one command."""
    tasks = write_tasks(tmp_path / "tasks", {"a-one": "1"})
    synth.ok("--home", str(tmp_path / "elsewhere"), "task-set", "publish", str(tasks), "team/evaluation@v1")
    assert (tmp_path / "elsewhere" / "ledger.db").exists()
    assert not synth.home.exists()
    answer = synth("--home", str(synth.home), "task-set", "list")
    assert (answer.code, "no state at" in answer.err) == (2, True)
