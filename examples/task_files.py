"""Turn an instance into the files of a Harbor task directory (schema 1.4)."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from examples.spec import Check, CheckKind, Family, Instance

ORGANISATION = "synth-examples"

_TASK = """\
schema_version = "1.4"
artifacts = ["/app"]

[task]
name = "{name}"
description = {description}
keywords = ["shell", "{family}"]

[metadata]
family = "{family}"
split = "{split}"
difficulty = "easy"
host_runnable = true
{host_files}
[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0
environment_mode = "separate"

[environment]
workdir = "/app"
network_mode = "no-network"
"""

_IMAGE = """\
FROM debian:bookworm-slim
"""
_PYTHON = """\
RUN apt-get update && apt-get install --yes --no-install-recommends python3-minimal && rm -rf /var/lib/apt/lists/*
"""

_TEST = """\
#!/bin/bash
# Reward 1 when every check below holds in /app, else 0. Nothing the agent wrote is executed.
content() { [ -f "$1" ] && [ ! -L "$1" ] && cmp -s -- "$1" "/tests/expected/$1"; }
absent() { [ ! -e "$1" ] && [ ! -L "$1" ]; }
directory() { [ -d "$1" ] && [ ! -L "$1" ]; }
link() { [ -L "$1" ] && [ "$(readlink -- "$1")" = "$2" ]; }
prints() { [ -f "$1" ] && [ ! -L "$1" ] && python3 -I /tests/prints.py "$1" "$2"; }

reward=0
if cd /app && CHECKS; then
  reward=1
fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
"""

_PRINTS = '''\
"""Exit 0 when the file given first is one print call of the literal given second. Parses, never runs it."""

import ast
import sys

LIMIT_BYTES = 1000


def prints(source: str, expected: str) -> bool:
    """Say whether ``source`` is exactly one ``print(<literal>)`` that shows ``expected``."""
    body = ast.parse(source).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Call):
        return False
    call = body[0].value
    if not isinstance(call.func, ast.Name) or call.func.id != "print" or call.keywords or len(call.args) != 1:
        return False
    literal = call.args[0]
    return isinstance(literal, ast.Constant) and str(literal.value) == expected


try:
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read(LIMIT_BYTES + 1)
    sys.exit(0 if len(text) <= LIMIT_BYTES and prints(text, sys.argv[2]) else 1)
except (SyntaxError, ValueError):
    sys.exit(1)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """One file of a task directory."""

    text: str
    executable: bool = False


def task_files(family: Family, instance: Instance, *, number: int, split: str) -> Mapping[str, TaskFile]:
    """Return path to file of one task.

    Args:
        family: the instance's family.
        instance: what to write.
        number: position in the family, from 1; part of the task's name.
        split: ``practice`` or ``held-out``.
    """
    files = {
        "task.toml": TaskFile(
            text=_TASK.format(
                name=f"{ORGANISATION}/{family.name}-{number:02d}",
                description=json.dumps(instance.instruction),
                family=family.name,
                split=split,
                host_files='host_files = "environment/files"\n' if instance.files else "",
            )
        ),
        "instruction.md": TaskFile(text=f"{instance.instruction}\n"),
        "environment/Dockerfile": TaskFile(text=_agent_image(family, instance)),
        "solution/solve.sh": TaskFile(text=f"#!/bin/bash\ncd /app || exit 1\n{instance.right[0]}\n", executable=True),
        "tests/Dockerfile": TaskFile(text=_verifier_image(family)),
        "tests/test.sh": TaskFile(text=_TEST.replace("CHECKS", _checks(instance.checks)), executable=True),
    }
    for path, text in instance.files.items():
        files[f"environment/files/{path}"] = TaskFile(text=text)
    for check in instance.checks:
        if check.kind is CheckKind.CONTENT:
            files[f"tests/expected/{check.path}"] = TaskFile(text=check.expected)
        if check.kind is CheckKind.PRINTS:
            files["tests/prints.py"] = TaskFile(text=_PRINTS)
    return files


def _agent_image(family: Family, instance: Instance) -> str:
    copy = "COPY files/ /app/\n" if instance.files else ""
    return f"{_IMAGE}{_PYTHON if family.needs_python else ''}WORKDIR /app\n{copy}"


def _verifier_image(family: Family) -> str:
    """A separate image, so that initial files the agent removed do not come back."""
    return f"{_IMAGE}{_PYTHON if family.needs_python else ''}COPY . /tests/\nWORKDIR /app\n"


def _checks(checks: tuple[Check, ...]) -> str:
    return " && ".join(_call(check) for check in checks)


def _call(check: Check) -> str:
    words = [check.kind.value, check.path]
    if check.kind in {CheckKind.LINK, CheckKind.PRINTS}:
        words.append(check.expected)
    return shlex.join(words)
