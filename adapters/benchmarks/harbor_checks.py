"""What is wrong with a task's files, and what its configuration asks for that nothing here realises."""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import PurePosixPath

from adapters.benchmarks.compose_files import service_names, wrong_compose
from adapters.benchmarks.harbor_record import DEFINITIONS, RecordMaker, artifacts
from adapters.benchmarks.harbor_schema import EnvironmentTable, HarborTask, StepTable
from adapters.benchmarks.instructions import strip_canary
from adapters.benchmarks.task_archive import TaskFile
from domain.lifecycle.compose_rules import MAIN
from domain.records.task import Artifact, VerifierMode

_BOM = b"\xef\xbb\xbf"
_CONVENTION = Artifact(source="/logs/artifacts")
_SCRIPTS = (".sh",)
_COPIES_CONTEXT = re.compile(r"^\s*(COPY|ADD)\s+(--\S+\s+)*\./?\s+/tests/?\s*$", re.IGNORECASE | re.MULTILINE)
_TEXTS = ("task.toml", "instruction.md", "Dockerfile", ".harborignore")


def unsupported(maker: RecordMaker) -> Iterator[str]:
    """Name what the format allows and no sandbox or engine here realises; silence would change what is measured."""
    config = maker.config
    for name, table in _environments(config):
        if table is not None and table.os != "linux":
            yield f"task.toml: {name}.os: boxes of {table.os} are not made here"
        if table is not None and table.tpu is not None:
            yield f"task.toml: {name}.tpu: no sandbox here has any"
    if len(set(maker.agent_networks())) > 1:
        yield "task.toml: steps.agent.network_mode: differs between steps, and no box here changes its network"
    place = maker.verifier_place()
    shared = place.mode is VerifierMode.SHARED
    if shared and place.network not in {None, maker.agent_networks()[0]}:
        yield "task.toml: verifier.network_mode: differs from the agent's, whose box a shared verifier runs in"
    for step in config.steps or ():
        place = maker.verifier_place(step)
        if place.mode is VerifierMode.SHARED and place.network not in {None, maker.agent_networks()[0]}:
            yield f"task.toml: steps.{step.name}.verifier.network_mode: differs from the agent's, whose box it shares"
    yield from _services(maker)


def _environments(config: HarborTask) -> Iterator[tuple[str, EnvironmentTable | None]]:
    yield "environment", config.environment
    yield "verifier.environment", config.verifier.environment
    for step in config.steps or ():
        yield f"steps.{step.name}.verifier.environment", step.verifier.environment


def _services(maker: RecordMaker) -> Iterator[str]:
    """A service other than main exists only in a compose file."""
    config = maker.config
    has_file = any(f"environment/{name}" in maker.files for name in DEFINITIONS[1:])
    known = service_names(maker.files, "environment") | {MAIN}
    lacks = "is no service of environment/docker-compose.yaml" if has_file else "needs environment/docker-compose.yaml"
    entries = [*config.artifacts, *(entry for step in config.steps or () for entry in step.artifacts)]
    owners: dict[str, str] = {}
    for artifact in artifacts(entries):
        service = artifact.service or MAIN
        if service not in known:
            yield f"task.toml: artifacts.service: {service!r} {lacks}"
        if owners.setdefault(artifact.source, service) != service:
            yield f"task.toml: artifacts: {artifact.source!r} of two services; the verifier finds both at one place"
    for table in (config.verifier, *(step.verifier for step in config.steps or ())):
        for hook in table.collect:
            if hook.service not in known:
                yield f"task.toml: verifier.collect.service: {hook.service!r} {lacks}"


def wrong_files(maker: RecordMaker, ignored: tuple[str, ...]) -> Iterator[str]:
    """Name files that are missing, empty, ignored though needed, or written for another system."""
    config, files = maker.config, maker.files
    yield from _texts(files)
    if config.steps is None:
        yield from _instruction(files, "instruction.md")
        yield from _tests(maker, None, ignored)
    else:
        for step in config.steps:
            yield from _instruction(files, f"steps/{step.name}/instruction.md")
            yield from _tests(maker, step, ignored)
    yield from _undeclared_steps(config, files)
    for context in ("environment", "tests", *(f"steps/{step.name}/tests" for step in config.steps or ())):
        yield from wrong_compose(files, context)
    yield from (f"{path}: excluded by .harborignore" for path in ignored if path.endswith("solution/solve.sh"))
    for path in ("trajectory.json", *(f"steps/{step.name}/trajectory.json" for step in config.steps or ())):
        if path in files:
            yield f"{path}: no engine here continues a conversation"
    has_definition = any(f"environment/{name}" in files for name in DEFINITIONS)
    if (
        config.environment.docker_image is None
        and not has_definition
        and config.metadata.get("host_runnable") is not True
    ):
        yield "environment/: neither Dockerfile nor docker-compose.yaml, and no environment.docker_image"
    yield from _collisions(config)


def _texts(files: Mapping[str, TaskFile]) -> Iterator[str]:
    """A carriage return fails a shell script and changes a digest; a byte order mark hides the first line."""
    for path, file in files.items():
        name = path.rpartition("/")[2]
        if file.link is not None or not (name in _TEXTS or name.endswith(_SCRIPTS)):
            continue
        if file.content.startswith(_BOM):
            yield f"{path}: starts with a byte order mark"
        if b"\r\n" in file.content:
            yield f"{path}: has CRLF line ends, write LF"


def _instruction(files: Mapping[str, TaskFile], path: str) -> Iterator[str]:
    file = files.get(path)
    if file is None or not _readable(file):
        yield f"{path}: missing, empty or not UTF-8"


def _readable(file: TaskFile) -> bool:
    try:
        return bool(strip_canary(file.content.decode()).strip())
    except UnicodeDecodeError:
        return False


def _tests(maker: RecordMaker, step: StepTable | None, ignored: tuple[str, ...]) -> Iterator[str]:
    """A verifier's image may bring the script itself; an image that takes it from here, or a box without it, cannot."""
    own = [] if step is None else [f"steps/{step.name}/tests/test.sh"]
    candidates = [*own, "tests/test.sh"]
    if any(path in maker.files for path in candidates):
        return
    why = "excluded by .harborignore" if any(path in ignored for path in candidates) else "missing"
    place = maker.verifier_place(step)
    if not place.bundles_tests:
        yield f"{candidates[0]}: {why}"
    elif maker.host_runnable:
        yield f"{candidates[0]}: {why}, and host_runnable: a box without the verifier's image has no other tests"
    elif place.environment is not None and _takes_script_from_context(maker, place.environment.context):
        yield f"{place.environment.context}/test.sh: {why}, and the Dockerfile beside it makes none"


def _takes_script_from_context(maker: RecordMaker, context: str) -> bool:
    """Say whether an image copies its whole context to /tests and names no test script that it has from elsewhere."""
    dockerfile = maker.files.get(f"{context}/Dockerfile")
    text = "" if dockerfile is None else dockerfile.content.decode(errors="replace")
    return _COPIES_CONTEXT.search(text) is not None and "test.sh" not in text


def _undeclared_steps(config: HarborTask, files: Mapping[str, TaskFile]) -> Iterator[str]:
    declared = {step.name for step in config.steps or ()}
    present = {parts[1] for path in files if len(parts := path.split("/")) > 2 and parts[0] == "steps"}  # noqa: PLR2004 - steps/NAME/FILE
    for name in sorted(present - declared):
        yield f"steps/{name}: task.toml declares no step of this name"


def _collisions(config: HarborTask) -> Iterator[str]:
    """Two artifacts at one place: Harbor keeps the first and skips the second, whatever is graded by it."""
    for step in config.steps or (None,):
        declared = artifacts([*config.artifacts, *(step.artifacts if step is not None else ())])
        entries = (
            declared
            if any(entry.source.rstrip("/") == _CONVENTION.source for entry in declared)
            else (_CONVENTION, *declared)
        )
        for first, second in combinations(entries, 2):
            if not _covers(first, second) and _overlap(_output(first), _output(second)):
                yield f"task.toml: artifacts: {first.source!r} and {second.source!r} come to lie at one place"


def _output(artifact: Artifact) -> PurePosixPath:
    return PurePosixPath("/", (artifact.destination or artifact.source).lstrip("/")).relative_to("/")


def _overlap(first: PurePosixPath, second: PurePosixPath) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)


def _covers(first: Artifact, second: Artifact) -> bool:
    """Say whether ``first`` brings what ``second`` names to the very same place."""
    outer, inner = PurePosixPath(first.source), PurePosixPath(second.source)
    if first.service != second.service or not inner.is_relative_to(outer):
        return False
    if outer == inner and _output(first) == _output(second):
        return first.exclude == second.exclude
    return not first.exclude and _output(second) == _output(first) / inner.relative_to(outer)
