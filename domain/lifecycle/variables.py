"""``${VAR}`` in a task: filled from what the operator allows when a trial runs, and kept nowhere.

Records and archives hold the template. A value exists only in the commands of a box; logs lose it again
(``lifecycle.redaction``). Source: Harbor 0.26 ``utils/env.py``; there every variable of the host may be read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from domain.errors import AdmissionError
from domain.records.task import McpServer, Phase, Task, TaskEnvironment

_WHOLE = re.compile(r"^\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>.*))?\}$", re.DOTALL)
_INSIDE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}")


def missing_variables(task: Task, variables: Mapping[str, str], *, with_solution: bool) -> tuple[str, ...]:
    """Name each field whose variable has neither a value nor a default.

    Args:
        task: as read, with its templates.
        variables: what the operator allows, by name.
        with_solution: whether the task's solution runs, the only reader of ``[solution.env]``.
    """
    found = [
        f"{where}: ${{{name}}} is no variable that the operator gives to tasks"
        for where, name, default in _templates(task, with_solution=with_solution)
        if default is None and name not in variables
    ]
    return tuple(dict.fromkeys(found))


def used_values(task: Task, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the operator's values that go into this task's boxes."""
    names = {name for _, name, _ in _templates(task, with_solution=True)}
    return tuple(sorted({variables[name] for name in names & variables.keys()}))


def filled(task: Task, variables: Mapping[str, str]) -> Task:
    """Return the task as its box sees it. It is never kept.

    Raises:
        AdmissionError: a variable has neither a value nor a default.
    """
    problems = missing_variables(task, variables, with_solution=False)
    if problems:
        raise AdmissionError(f"{task.name}: {'; '.join(problems)}", hint="name it in SYNTH_TASK_VARIABLES and set it")
    if next(_templates(task, with_solution=True), None) is None:
        return task
    verifier = task.verifier_environment
    return replace(
        task,
        environment=_environment(task.environment, variables),
        agent=_phase(task.agent, variables),
        verifier=_phase(task.verifier, variables),
        verifier_environment=None if verifier is None else _environment(verifier, variables),
        solution_env=_fill(task.solution_env, variables),
        steps=tuple(
            replace(
                step,
                agent=_phase(step.agent, variables),
                verifier=_phase(step.verifier, variables),
                verifier_environment=None
                if step.verifier_environment is None
                else _environment(step.verifier_environment, variables),
            )
            for step in task.steps
        ),
    )


def _templates(task: Task, *, with_solution: bool) -> Iterator[tuple[str, str, str | None]]:
    """Return (field, variable, default) of every template; the default is None where there is none."""
    for where, env in _tables(task, with_solution=with_solution):
        for key, value in env.items():
            match = _WHOLE.fullmatch(value)
            if match is not None:
                yield f"{where}.{key}", match["name"], match["default"]
    for server in task.environment.mcp_servers:
        for key, value in server.headers.items():
            for match in _INSIDE.finditer(value):
                yield f"environment.mcp_servers.{server.name}.headers.{key}", match["name"], match["default"]


def _tables(task: Task, *, with_solution: bool) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "environment.env", task.environment.env
    yield "verifier.env", task.verifier.env
    if with_solution:
        yield "solution.env", task.solution_env
    if task.verifier_environment is not None:
        yield "verifier.environment.env", task.verifier_environment.env
    for step in task.steps:
        yield f"steps.{step.name}.verifier.env", step.verifier.env
        if step.verifier_environment is not None:
            yield f"steps.{step.name}.verifier.environment.env", step.verifier_environment.env


def _fill(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with values; what has none is left out."""
    out: dict[str, str] = {}
    for key, value in env.items():
        match = _WHOLE.fullmatch(value)
        if match is None:
            out[key] = value
        elif match["name"] in variables:
            out[key] = variables[match["name"]]
        elif match[2] is not None:
            out[key] = match["default"]
    return out


def _phase(phase: Phase, variables: Mapping[str, str]) -> Phase:
    return replace(phase, env=_fill(phase.env, variables))


def _environment(environment: TaskEnvironment, variables: Mapping[str, str]) -> TaskEnvironment:
    servers = tuple(_server(server, variables) for server in environment.mcp_servers)
    return replace(environment, env=_fill(environment.env, variables), mcp_servers=servers)


def _server(server: McpServer, variables: Mapping[str, str]) -> McpServer:
    def value(match: re.Match[str]) -> str:
        return variables.get(match["name"], match["default"] or "")

    return replace(server, headers={key: _INSIDE.sub(value, text) for key, text in server.headers.items()})
