"""What Harbor's linter finds in a task by reading its files, under the same names, over a published task.

Its rules about unknown fields, wrong values, missing files, ignored ignore files and colliding artifacts are not here:
such a task is refused before it is published. Compose files are refused by every sandbox. Source: Harbor 0.26
``lint``; facts/harbor.md section 1.4.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from domain.lifecycle.command_rules import broken_rules
from domain.lifecycle.shell_lines import commands, logical_lines
from domain.lifecycle.step_view import step_view
from domain.records.archive import paths, read_file
from domain.records.task import Task, VerifierMode

_PROTECTED = ("/logs/verifier/", "/logs/agent/")
_HIDDEN = re.compile(r"(?:^|/)(?:solution/solve\.sh|tests/(?:test\.sh|test_[^/]+\.py))$")
_OPTIONS = re.compile(r"^(?:--\S+\s+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing that is wrong."""

    rule: str
    path: str
    """Of the file, inside the task."""
    line: int | None = None
    message: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        where = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.rule}: {self.message}"


def lint(task: Task, archive: bytes) -> Iterator[LintFinding]:
    """Yield every finding, in order of file and line."""
    found = [*_modes(task), *_artifacts(task), *_files(task, archive)]
    yield from sorted(found, key=lambda item: (item.path, item.line or 0, item.rule, item.message))


def _views(task: Task) -> list[tuple[str, Task]]:
    """Return (directory, task) of each phase that a verifier ends."""
    return [(f"steps/{step.name}/", step_view(task, step)) for step in task.steps] or [("", task)]


def _modes(task: Task) -> Iterator[LintFinding]:
    if any(view.verifier_mode is VerifierMode.SHARED for _, view in _views(task)):
        yield LintFinding(
            rule="shared-verifier",
            path="task.toml",
            message='what the agent left in its box can fool the tests; write verifier.environment_mode = "separate"',
        )


def _artifacts(task: Task) -> Iterator[LintFinding]:
    """Only a separate verifier gets artifacts, where they would lie on its own logs."""
    sources = {
        artifact.source: None
        for _, view in _views(task)
        if view.verifier_mode is VerifierMode.SEPARATE
        for artifact in view.artifacts
    }
    for source in sources:
        path = "/".join(["", *(part for part in source.split("/") if part not in {"", "."}), ""])
        if any(path.startswith(place) or place.startswith(path) for place in _PROTECTED):
            message = f"artifact {source!r} overlaps the logs of agent or verifier"
            yield LintFinding(rule="artifact-log-overlap", path="task.toml", message=message)


def _files(task: Task, archive: bytes) -> Iterator[LintFinding]:
    names = frozenset(paths(archive))
    builds = {f"{task.environment.context}/Dockerfile": True}
    scripts: dict[str, bool] = {}
    for directory, view in _views(task):
        is_separate = view.verifier_mode is VerifierMode.SEPARATE
        if view.verifier_environment is not None:
            builds.setdefault(f"{view.verifier_environment.context}/Dockerfile", False)
        script = _own_or_shared(directory, "tests/test.sh", names)
        scripts[script] = scripts.get(script, False) or is_separate
        scripts.setdefault(_own_or_shared(directory, "solution/solve.sh", names), False)
    for path in builds.keys() & names:
        yield from _dockerfile(path, _text(archive, path), is_agents=builds[path])
    for path in scripts.keys() & names:
        for number, line in logical_lines(_text(archive, path)):
            yield from _commands(path, number, line, is_separate_verifier=scripts[path])


def _own_or_shared(directory: str, name: str, names: frozenset[str]) -> str:
    return f"{directory}{name}" if f"{directory}{name}" in names else name


def _dockerfile(path: str, text: str, *, is_agents: bool) -> Iterator[LintFinding]:
    for number, line in logical_lines(text):
        instruction, _, rest = line.strip().partition(" ")
        value = _OPTIONS.sub("", rest.strip())
        words = _words(value)
        if instruction.upper() == "RUN":
            inner = shlex.join(words) if value.startswith("[") else value
            yield from _commands(path, number, inner, is_separate_verifier=False)
        elif instruction.upper() in {"COPY", "ADD"} and is_agents and any(map(_HIDDEN.search, words[:-1])):
            message = "the agent's image would hold tests or solution"
            yield LintFinding(rule="agent-image-test-leak", path=path, line=number, message=message)


def _words(value: str) -> list[str]:
    """Return an instruction's words, written either way; what cannot be read has none."""
    try:
        if not value.startswith("["):
            return shlex.split(value)
        found: object = json.loads(value)
    except ValueError:
        return []
    return [str(word) for word in cast("list[object]", found)] if isinstance(found, list) else []


def _commands(path: str, number: int, line: str, *, is_separate_verifier: bool) -> Iterator[LintFinding]:
    found = commands(line)
    for position, (command, after) in enumerate(found):
        reader = found[position + 1][0] if after == "|" and position + 1 < len(found) else ()
        for rule, message in broken_rules(command, reader, is_separate_verifier=is_separate_verifier):
            yield LintFinding(rule=rule, path=path, line=number, message=message)


def _text(archive: bytes, name: str) -> str:
    return (read_file(archive, name) or b"").decode(errors="replace")
