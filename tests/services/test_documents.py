"""Documents people write are read strictly, and every error names the file and the field."""

import json
import os
from pathlib import Path

import pytest

from adapters.inputs.documents import (
    demonstrations_path,
    read_demonstrations,
    read_plan,
    read_profile,
    read_recipe,
)
from domain.errors import ConfigurationError
from domain.records.experiment import ExperimentKind
from domain.records.profile import Plan
from domain.service.plan_checks import check_plan

EXAMPLES = Path("examples")
PROFILE = {"name": "agent", "engine": "mini", "model": "base:demo"}
RECIPE = {"name": "demo", "demonstrations": "demonstrations.jsonl"}
DEMONSTRATION = {
    "task_name": "team/task",
    "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}],
    "n_opening": 1,
}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """Where a test writes its document."""
    return tmp_path / "document.json"


@pytest.mark.parametrize("name", ["agent", "nop", "oracle"])
def test_example_profiles_are_read(name: str) -> None:
    """The profiles shipped for newcomers are valid."""
    assert read_profile(EXAMPLES / f"{name}.json").name == name


@pytest.mark.parametrize(
    ("name", "kind"), [("eval-plan", ExperimentKind.EVALUATION), ("train-plan", ExperimentKind.TRAINING)]
)
def test_example_plans_fit_their_kind(name: str, kind: ExperimentKind) -> None:
    """The plans shipped for newcomers are accepted for what they are called."""
    check_plan(read_plan(EXAMPLES / f"{name}.json"), kind)


def test_the_example_recipe_keeps_its_path_as_written() -> None:
    """The identity of a recipe holds no path of this machine; the file is found beside the recipe."""
    recipe = read_recipe(EXAMPLES / "base-policy.json")
    assert not Path(recipe.demonstrations).is_absolute()
    assert demonstrations_path(EXAMPLES / "base-policy.json", recipe) == EXAMPLES / recipe.demonstrations


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nmae": "x"}, "nmae: unknown field (did you mean 'name'?)"),
        ({"name": None}, "name: null is not a text in quotes"),
        ({"name": "Agent One"}, "name: 'Agent One' is not a name"),
        ({"engine": ""}, "engine: '' is not a name"),
        ({"model": "demo"}, "model: 'demo' is not a model reference"),
        ({"schema_version": 2}, "schema_version: 2 is unknown"),
        ({"schema_version": "1"}, 'schema_version: "1" is not a whole number'),
        ({"workdir": "app"}, "workdir: 'app' is not an absolute path"),
        ({"environment": {"A-B": "x"}}, "environment.A-B: not a name"),
        ({"environment": {"A": 1}}, "environment.A: 1 is not a text in quotes"),
        ({"files": [{"path": "x", "content": "", "mode": 7}]}, "files.0.mode: unknown field"),
        ({"files": [{"path": "x"}]}, "files.0.content: missing"),
        ({"files": [{"path": "../x", "content": ""}]}, "files.0.path: '../x' is not a path"),
        (
            {"files": [{"path": "x", "content": ""}, {"path": "./x", "content": ""}]},
            "files.1.path: './x' is there twice",
        ),
        ({"name": "agent\n"}, "name: 'agent\\n' is not a name"),
        ({"model": "base:demo\n"}, "model: 'base:demo\\n' is not a model reference"),
        ({"setup": ["true\0"]}, "setup.0: holds a NUL"),
        ({"environment": {"A": "\0"}}, "environment.A: holds a NUL"),
        (
            {"files": [{"path": "x/y", "content": ""}, {"path": "x", "content": ""}]},
            "files.1.path: 'x' and another path cannot both be",
        ),
        ({"required_outputs": ["/"]}, "required_outputs.0: '/' is not a path"),
        ({"instruction_delivery": "mail"}, 'instruction_delivery: "mail" is not "argument", "stdin" or'),
        ({"settings": []}, "settings: [] is not an object"),
    ],
)
def test_a_wrong_profile_names_its_field(document: Path, change: dict[str, object], expected: str) -> None:
    """Whatever is wrong, the message starts with the file and the path of the field."""
    document.write_text(json.dumps(PROFILE | change), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_profile(document)
    assert caught.value.message.startswith(f"{document}: {expected}")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "holds no JSON object"),
        (b"null", "holds no JSON object"),
        (b'{"name": "a", "name": "b"}', "name: written twice"),
        (b'{"settings": {"a": {"b": 1, "b": 2}}}', "b: written twice"),
        (b'{"settings": {"a": NaN}}', "NaN is not a JSON number"),
        (b'{"settings": {"a": -Infinity}}', "-Infinity is not a JSON number"),
        (b'{"settings": {"a": 1e999}}', "1e999 is not a finite number"),
        (b'{"settings": {"a": ' + b"9" * 5000 + b"}}", "99999999999999999999... is too long a number"),
        (b'{"settings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"name": "\\ud800", "engine": "mini"}', "Invalid JSON"),
    ],
)
def test_what_is_no_clean_json_is_refused(document: Path, content: bytes, expected: str) -> None:
    """Broken, ambiguous and non-finite JSON gets one clear error with the file's name."""
    document.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_profile(document)
    assert caught.value.message.startswith(f"{document}: {expected}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and a directory are configuration errors, not tracebacks."""
    with pytest.raises(ConfigurationError, match="no such file"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_plan(tmp_path)
    with pytest.raises(ConfigurationError, match="larger than"):
        read_plan("/dev/zero")


def test_a_pipe_without_a_writer_is_refused_and_a_shells_is_read(tmp_path: Path) -> None:
    """``@<(...)`` is a pipe that somebody writes; a named one may wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="named pipe"):
        read_plan(tmp_path / "pipe")
    reader, writer = os.pipe()
    os.write(writer, b'{"attempts": 3}')
    os.close(writer)
    assert read_plan(f"/dev/fd/{reader}").attempts == 3
    os.close(reader)
    with pytest.raises(ConfigurationError, match="no path of a file"):
        read_plan("plan\0.json")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"attempts": 0}, "attempts: 0 must be at least 1"),
        ({"tasks": 0}, "tasks: 0 must be at least 1"),
        ({"attempts": 1.5}, "attempts: 1.5 is not a whole number"),
        ({"attempts": True}, "attempts: true is not a whole number"),
        ({"sampling": {"top_p": 1}}, "sampling.top_p: unknown field"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature: -1.0 must not be negative"),
        ({"agent_timeout_s": 0}, "agent_timeout_s: 0.0 must be greater than 0"),
        ({"ungraded_limit": 2}, "ungraded_limit: 2.0 must be between 0 and 1"),
        ({"optimisation": {"learning_rate": 0}}, "optimisation.learning_rate: 0.0 must be greater than 0"),
        ({"optimisation": {"beta2": 1}}, "optimisation.beta2: 1.0 must be at least 0 and below 1"),
        ({"optimisation": {"objective": "ppo"}}, 'optimisation.objective: "ppo" is not "importance_sampling" or'),
        ({"evaluate_on": "team"}, "evaluate_on: 'team' is not a published reference"),
        ({"attempts": 10**17}, "attempts: 100000000000000000 must be at most 10000"),
        ({"trial_deadline_s": 1e308}, "trial_deadline_s: 1e+308 must be at most"),
        ({"sampling": {"temperature": 1e-320}}, "sampling.temperature: 1e-320 is neither 0"),
        ({"sandbox": "local\n"}, "sandbox: 'local\\n' is no name"),
        ({"order": "random"}, 'order: "random" is not "listed" or "shuffled"'),
    ],
)
def test_a_wrong_plan_names_its_field(document: Path, change: dict[str, object], expected: str) -> None:
    """Types, ranges and enumerations of a plan are checked when it is read."""
    document.write_text(json.dumps(change), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_plan(document)
    assert caught.value.message.startswith(f"{document}: {expected}")


def test_a_plan_names_all_its_wrong_values(document: Path) -> None:
    """One run shows everything to correct."""
    document.write_text(json.dumps({"attempts": 0, "concurrency": 0}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"attempts.*concurrency"):
        read_plan(document)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"demonstrations": ""}, "demonstrations: is empty"),
        ({"layers": 0}, "layers: 0 must be at least 1"),
        ({"learning_rate": -1}, "learning_rate: -1.0 must be greater than 0"),
        ({"width": 3}, "width: unknown field"),
    ],
)
def test_a_wrong_recipe_names_its_field(document: Path, change: dict[str, object], expected: str) -> None:
    """A recipe that makes no model is refused before anything trains."""
    document.write_text(json.dumps(RECIPE | change), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(document)
    assert caught.value.message.startswith(f"{document}: {expected}")


def test_demonstrations_are_read_line_by_line(document: Path) -> None:
    """Blank lines are nothing; the rest are demonstrations in order."""
    line = json.dumps(DEMONSTRATION)
    document.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    read = read_demonstrations(document)
    assert [item.messages[-1].content for item in read] == ["done", "done"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"n_opening": 0}, "n_opening: message 0 is not the first assistant turn"),
        ({"n_opening": 2}, "n_opening: message 2 is not the first assistant turn"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role: 'robot' is unknown"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: missing"),
        (
            {"messages": [*DEMONSTRATION["messages"], {"role": "user", "content": "again"}]},  # type: ignore[misc]
            "messages: the model's turns are those from n_opening on",
        ),
    ],
)
def test_a_wrong_demonstration_names_its_line(document: Path, change: dict[str, object], expected: str) -> None:
    """The second line is wrong, and the error says so."""
    document.write_text(f"{json.dumps(DEMONSTRATION)}\n{json.dumps(DEMONSTRATION | change)}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_demonstrations(document)
    assert caught.value.message.startswith(f"{document}: line 2: {expected}")


def test_no_demonstrations_are_an_error(document: Path) -> None:
    """An empty file makes no policy."""
    document.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="no demonstrations"):
        read_demonstrations(document)


def test_a_training_plan_needs_what_learning_needs() -> None:
    """All that is missing is named at once."""
    with pytest.raises(ConfigurationError) as caught:
        check_plan(Plan(), ExperimentKind.TRAINING)
    for field in ("batches", "groups_per_batch", "optimisation", "attempts"):
        assert f"{field}: " in caught.value.message


def test_an_evaluation_refuses_a_training_plan() -> None:
    """A plan given to the wrong command is found before anything runs."""
    plan = read_plan(EXAMPLES / "train-plan.json")
    with pytest.raises(ConfigurationError, match="batches: only a training takes it"):
        check_plan(plan, ExperimentKind.EVALUATION)
