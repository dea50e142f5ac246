"""Harbor accepts what we call its format."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from adapters.benchmarks.harbor_fields import field_paths
from examples.generate import write_tasks
from tests.services.harbor_lint import PYTHON, find_python, install, lint

_FIELDS = """
import json
from typing import get_args, get_origin
from pydantic import BaseModel
from harbor.models.task import config

def walk(model, path):
    for name, field in model.model_fields.items():
        yield (path + "." + name).lstrip(".")
        for inner, many in models(field.annotation):
            yield from walk(inner, (path + "." + name).lstrip(".") + ("[]" if many else ""))

def models(kind):
    name = getattr(kind, "__forward_arg__", kind)
    kind = getattr(config, name, None) if isinstance(name, str) else kind
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind, False
    many = get_origin(kind) is list
    for part in get_args(kind):
        yield from ((model, inner or many) for model, inner in models(part))

print(json.dumps(sorted(set(walk(config.TaskConfig, "")))))
"""
"""Run by Harbor's own Python: the path of every field of ``task.toml``."""
_OLD_NAMES = {"version", "memory", "storage"}
"""Harbor renames them before its model sees them."""


@pytest.mark.timeout(1200)
def test_our_schema_has_exactly_harbors_fields() -> None:
    """Whatever Harbor 0.26 reads is read or refused by name here, and nothing else."""
    python = find_python()
    if python is None:
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            pytest.fail(f"needs Python {PYTHON}")
        pytest.skip(f"needs Python {PYTHON}")
    command = (str(install(python).parent / "python"), "-c", _FIELDS)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ours = {path for path in field_paths() if path.rpartition(".")[2] not in _OLD_NAMES}
    theirs = {path for path in json.loads(done.stdout) if path.rpartition(".")[2] not in _OLD_NAMES}
    assert sorted(ours ^ theirs) == []


@pytest.mark.timeout(1200)
def test_harbor_lint_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    """Every generated task and the hand-written one pass the default rules, and the linter does look."""
    python = find_python()
    if python is None:
        message = f"needs Python {PYTHON} on the path or in pyenv"
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            pytest.fail(message)
        pytest.skip(message)
    program = install(python)
    write_tasks(tmp_path, seed=0)
    tasks = sorted(path for split in ("practice", "held-out") for path in (tmp_path / split).iterdir())
    workload = sorted(path for path in Path("examples/workload").iterdir() if path.is_dir())
    assert lint(program, [*tasks, *workload, Path("examples/tasks/hello")]) == []
    config = tasks[0] / "task.toml"
    config.write_text(config.read_text(encoding="utf-8").replace('"separate"', '"shared"'), encoding="utf-8")
    assert [finding["rule"] for finding in lint(program, tasks[:1])] == ["shared-verifier"]
