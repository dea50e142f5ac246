"""What of a task a sandbox, an engine or the operator's variables cannot give, said before anything runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from domain.errors import AdmissionError
from domain.lifecycle.step_view import step_view
from domain.lifecycle.variables import missing_variables
from domain.ports import Engine, Sandbox, Toolchain
from domain.records.canonical import digest_of
from domain.records.profile import Profile
from domain.records.task import NetworkMode, NetworkPolicy, ObjectRef, Task, TaskEnvironment, VerifierMode

_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}")


@runtime_checkable
class TakesTools(Protocol):
    """An engine that hands a task's tool servers or skills to its harness; the task of a launch names them."""

    @property
    def takes(self) -> frozenset[str]:
        """``mcp_servers`` and ``skills_dir``, as far as it takes them."""
        ...


@runtime_checkable
class BringsToolchains(Protocol):
    """An engine whose harness is no part of a task's image, and that asks something of a model's size."""

    def toolchains(self, profile: Profile) -> tuple[Toolchain, ...]:
        """Return what a box needs beside its image. Raises AdmissionError when this machine has not got it."""
        ...

    def check_model(self, profile: Profile, *, context_tokens: int, max_tokens: int) -> None:
        """Refuse a model that the harness cannot work with. Raises AdmissionError."""
        ...


@runtime_checkable
class BindsToolchains(Protocol):
    """A sandbox that binds directories of this machine into its boxes."""

    @property
    def binds_toolchains(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class KeepsItsSystem(Protocol):
    """A sandbox whose boxes share more of a system than every box does; nothing is taken out of it."""

    @property
    def system_directories(self) -> frozenset[str]:
        """Names directly below ``/``."""
        ...


KERNEL_DIRECTORIES = frozenset({"dev", "proc", "sys"})
"""What lies below is no work of anybody's, and is never retained."""


def task_refusals(task: Task, sandbox: Sandbox, engine: Engine, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Name everything of ``task`` that cannot be realised; empty: admitted."""
    found = [
        *_places(task, sandbox),
        *_services(task, sandbox),
        *_outputs(task, sandbox),
        *_tools(task, engine),
        *missing_variables(task, variables, with_solution=engine.name == "oracle"),
    ]
    return tuple(dict.fromkeys(found))


def toolchains_of(profile: Profile, engine: Engine, sandbox: Sandbox) -> tuple[Toolchain, ...]:
    """Return what the engine's harness needs in every box.

    Raises:
        AdmissionError: this machine has not got it, or the sandbox binds nothing.
    """
    found = engine.toolchains(profile) if isinstance(engine, BringsToolchains) else ()
    if found and not (isinstance(sandbox, BindsToolchains) and sandbox.binds_toolchains):
        raise AdmissionError(
            f"profile {profile.name!r}: sandbox {sandbox.name!r} binds no programs of this machine into its boxes, and "
            f"engine {engine.name!r} brings its own",
            hint="put the program into the task's image and name it in settings.binary",
        )
    return found


def needs(task: Task) -> str:
    """Return a name for everything of ``task`` that admission looks at: tasks of one name are refused alike.

    What it is told apart by is left out one by one, so a field that is forgotten here costs time, never an answer.
    """
    bare = replace(
        task,
        name="",
        digest="",
        instruction="",
        archive=ObjectRef(digest="", size_bytes=0),
        metadata={},
        family=None,
        environment=_place_alone(task.environment),
        steps=tuple(replace(step, instruction="", min_reward={}) for step in task.steps),
    )
    return digest_of(bare)


def _place_alone(environment: TaskEnvironment) -> TaskEnvironment:
    """Any well-formed image is as good as another: a box asks for it when it is made."""
    image = environment.docker_image
    usual = image is not None and _IMAGE.fullmatch(image) is not None
    return replace(environment, docker_image="image" if usual else image, host_files=None)


def _places(task: Task, sandbox: Sandbox) -> Iterator[str]:
    """Refuse boxes of the agent and of each verifier; the verifier's own words say so."""
    yield from sandbox.refusals(task.environment)
    if task.agent_network is not None:
        yield from _network(task, "agent", task.agent_network, sandbox)
    views = [("verifier", task)] if not task.steps else []
    views += [(f"steps.{step.name}.verifier", step_view(task, step)) for step in task.steps]
    for name, view in views:
        if view.verifier_mode is VerifierMode.SHARED:
            continue
        if view.verifier_environment is not None:
            # As the verifier's box is made: the network it declares for itself is told below.
            quiet = replace(view.verifier_environment, network_mode=NetworkMode.NO_NETWORK, allowed_hosts=())
            yield from (f"{name}.{_own_name(quiet, words)}" for words in sandbox.refusals(quiet))
        if view.verifier_network is not None:
            yield from _network(view, name, view.verifier_network, sandbox)


def _own_name(environment: TaskEnvironment, words: str) -> str:
    """Return a refusal with the directory that the environment is built from."""
    return words.replace("environment/", f"{environment.context}/", 1)


def _network(task: Task, name: str, policy: NetworkPolicy, sandbox: Sandbox) -> Iterator[str]:
    wanted = replace(task.environment, network_mode=policy.mode, allowed_hosts=policy.allowed_hosts)
    usual = set(sandbox.refusals(replace(task.environment, network_mode=NetworkMode.NO_NETWORK, allowed_hosts=())))
    for words in sandbox.refusals(wanted):
        if words not in usual:
            yield words.replace("environment.", f"{name}.", 1)


def _services(task: Task, sandbox: Sandbox) -> Iterator[str]:
    """A box without compose has one service; host-runnable tasks may not ask it for another."""
    if not task.environment.compose or not sandbox.refusals(TaskEnvironment(compose=True)):
        return
    artifacts = [*task.artifacts, *(artifact for step in task.steps for artifact in step.artifacts)]
    hooks = [*task.collect, *(hook for step in task.steps for hook in step.collect)]
    for artifact in artifacts:
        if artifact.service is not None:
            yield f"artifacts.service = {artifact.service!r}: not in a {sandbox.name} box"
    for hook in hooks:
        if hook.service != "main":
            yield f"verifier.collect.service = {hook.service!r}: not in a {sandbox.name} box"


def _outputs(task: Task, sandbox: Sandbox) -> Iterator[str]:
    """An artifact that a box will not give away would make every agent's work look like an attack."""
    system = sandbox.system_directories if isinstance(sandbox, KeepsItsSystem) else frozenset[str]()
    artifacts = [*task.artifacts, *(artifact for step in task.steps for artifact in step.artifacts)]
    for artifact in artifacts:
        if artifact.source.strip("/").split("/")[0] in system | KERNEL_DIRECTORIES:
            yield f"artifacts = {artifact.source!r}: belongs to the system of a {sandbox.name} box"


def _tools(task: Task, engine: Engine) -> Iterator[str]:
    """An agent without the tools that its task counts on does another task; a solution or nothing needs none."""
    if not engine.needs_model:
        return
    takes = engine.takes if isinstance(engine, TakesTools) else frozenset[str]()
    if task.environment.mcp_servers and "mcp_servers" not in takes:
        yield f"environment.mcp_servers: engine {engine.name!r} takes none"
    if task.environment.skills_dir is not None and "skills_dir" not in takes:
        yield f"environment.skills_dir: engine {engine.name!r} takes no skills"
