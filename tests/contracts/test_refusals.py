"""What cannot be realised is refused by name before anything runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.mini import MiniEngine
from adapters.engines.nop import NopEngine
from adapters.engines.oracle import OracleEngine
from adapters.sandboxes.local import LocalSandbox
from adapters.sandboxes.memory import MemorySandbox
from domain.errors import ConfigurationError
from domain.lifecycle.refusals import task_refusals
from domain.records.profile import Profile
from domain.records.task import (
    Artifact,
    CollectHook,
    McpServer,
    NetworkMode,
    NetworkPolicy,
    Step,
    Task,
    TaskEnvironment,
    VerifierMode,
)
from domain.service.plan_checks import check_profile
from tests.contracts.verifying import make_task
from tests.fakes.store import MemoryStore

ALLOW = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allowed_hosts=("a.b",))
OWN = TaskEnvironment(dockerfile=True, context="tests")


def plain() -> Task:
    """Return a task that any box may run."""
    return make_task(MemoryStore())


def compose(task: Task) -> Task:
    """Return the task with a compose file beside."""
    return replace(task, environment=replace(task.environment, compose=True))


def step(**changes: object) -> Step:
    """Return a step."""
    task = plain()
    return replace(Step(name="a", instruction="x", agent=task.agent, verifier=task.verifier), **changes)


CASES: dict[str, Task] = {
    "agent.network_mode = 'allowlist'": replace(plain(), agent_network=ALLOW),
    "verifier.network_mode = 'allowlist'": replace(plain(), verifier_network=ALLOW),
    "steps.a.verifier.network_mode = 'allowlist'": replace(plain(), steps=(step(verifier_network=ALLOW),)),
    "verifier.tests/Dockerfile": replace(plain(), verifier_environment=OWN, bundles_tests=True),
    "verifier.environment.docker_image": replace(plain(), verifier_environment=TaskEnvironment(docker_image="v")),
    "environment.gpu_types": replace(plain(), environment=replace(plain().environment, gpu_types=("h100",))),
    "artifacts.service = 'db'": compose(replace(plain(), artifacts=(Artifact(source="/d", service="db"),))),
    "verifier.collect.service = 'db'": compose(replace(plain(), collect=(CollectHook(command="x", service="db"),))),
    "artifacts = '/proc/1/environ'": replace(plain(), artifacts=(Artifact(source="/proc/1/environ"),)),
    "artifacts = '/sys'": replace(plain(), steps=(step(artifacts=(Artifact(source="/sys"),)),)),
    "environment.env.K: ${KEY}": replace(plain(), environment=replace(plain().environment, env={"K": "${KEY}"})),
}


@pytest.mark.parametrize(("named", "task"), CASES.items(), ids=CASES.keys())
def test_a_box_that_cannot_is_named_with_the_field(named: str, task: Task) -> None:
    """The phase or step whose wish it is stands in the refusal."""
    refused = task_refusals(task, MemorySandbox(), NopEngine(), {})
    assert [words for words in refused if words.startswith(named)], refused


def test_nothing_is_retained_of_what_boxes_share_with_this_machine(tmp_path: Path) -> None:
    """A local box would call every agent's work an attack; the memory box has an /etc of its own."""
    task = replace(plain(), artifacts=(Artifact(source="/etc/passwd"), Artifact(source="/app/etc")))
    refused = task_refusals(task, LocalSandbox(tmp_path / "boxes", None), NopEngine(), {})
    assert refused == ("artifacts = '/etc/passwd': belongs to the system of a local box",)
    assert task_refusals(task, MemorySandbox(), NopEngine(), {}) == ()
    with pytest.raises(ConfigurationError, match=r"required_outputs\.1: '/proc/self/maps'"):
        check_profile(Profile(name="p", engine="nop", required_outputs=("out", "/proc/self/maps")))


def test_what_can_be_realised_is_admitted() -> None:
    """Closed networks, a shared verifier, and variables that the operator gives."""
    closed = NetworkPolicy(mode=NetworkMode.NO_NETWORK)
    task = replace(
        plain(), agent_network=closed, verifier_network=closed, steps=(step(verifier_mode=VerifierMode.SHARED),)
    )
    task = replace(task, environment=replace(task.environment, env={"K": "${KEY}"}), solution_env={"S": "${OTHER}"})
    assert task_refusals(task, MemorySandbox(), NopEngine(), {"KEY": "v"}) == ()
    assert "solution.env.S" in task_refusals(task, MemorySandbox(), OracleEngine(), {"KEY": "v"})[0]


def test_tools_that_an_engine_cannot_hand_on_are_refused() -> None:
    """An agent without the tools its task counts on does another task; the solution needs none."""
    server = McpServer(name="m", transport="sse", url="http://m")
    task = plain()
    task = replace(task, environment=replace(task.environment, mcp_servers=(server,), skills_dir="/s"))
    refused = task_refusals(task, MemorySandbox(), MiniEngine(), {})
    assert [words.partition(":")[0] for words in refused] == ["environment.mcp_servers", "environment.skills_dir"]
    assert task_refusals(task, MemorySandbox(), OracleEngine(), {}) == ()

    class Handing(MiniEngine):
        """An engine that takes both."""

        @property
        def takes(self) -> frozenset[str]:
            return frozenset({"mcp_servers", "skills_dir"})

    assert task_refusals(task, MemorySandbox(), Handing(), {}) == ()
