"""Engines without a model: what they upload and run, and what they refuse."""

import pytest

from adapters.engines.nop import NopEngine
from adapters.engines.oracle import OracleEngine
from domain.errors import ConfigurationError, TaskError
from domain.ports import Engine, Launch
from domain.records.archive import pack_files, paths
from domain.records.profile import Profile
from domain.records.task import ObjectRef, Phase, Task, TaskEnvironment

ARCHIVE = pack_files({"solution/solve.sh": b"true", "solution/data/x": b"1", "tests/test.sh": b"true"})
TASK = Task(
    name="t/one",
    digest="d",
    instruction="Do it.",
    archive=ObjectRef(digest="a", size_bytes=1),
    environment=TaskEnvironment(workdir="/work", env={"A": "1"}),
    agent=Phase(timeout_s=7.0, user="agent"),
    verifier=Phase(),
    solution_env={"B": "2"},
)


@pytest.mark.parametrize("engine", [NopEngine(), OracleEngine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    ("field", "profile"),
    [
        ("model", Profile(name="p", engine="e", model="base:b")),
        ("arguments", Profile(name="p", engine="e", arguments=("x",))),
        ("settings", Profile(name="p", engine="e", settings={"x": 1})),
    ],
)
def test_what_has_no_effect_is_refused_by_name(engine: Engine, field: str, profile: Profile) -> None:
    """A profile that names a model for an engine without one means something else than it does."""
    with pytest.raises(ConfigurationError, match=field):
        engine.check(profile)
    engine.check(Profile(name="p", engine=engine.name))
    assert not engine.needs_model


def test_nop_does_nothing() -> None:
    """No upload, no command."""
    assert NopEngine().launch(Profile(name="p", engine="nop"), TASK, ARCHIVE, None) == Launch()


def test_oracle_runs_the_solution_as_the_agent_would() -> None:
    """The solution goes to /solution and runs with the task's user, directory, environment and limit."""
    launch = OracleEngine().launch(Profile(name="p", engine="oracle"), TASK, ARCHIVE, None)
    (upload,), (command,) = launch.uploads, launch.commands
    assert (upload.target, sorted(paths(upload.tar))) == ("/solution", ["data/x", "solve.sh"])
    assert command.argv == ("bash", "/solution/solve.sh")
    assert (command.cwd, command.user, command.timeout_s) == ("/work", "agent", 7.0)
    assert {"A": "1", "B": "2"}.items() <= dict(command.env).items()


def test_oracle_needs_a_solution() -> None:
    """A task without one is named."""
    with pytest.raises(TaskError, match=r"t/one: solution/solve.sh"):
        OracleEngine().launch(Profile(name="p", engine="oracle"), TASK, pack_files({"tests/test.sh": b""}), None)
