"""Harbor accepts what we call its format."""

import os
from pathlib import Path

import pytest

from examples.generate import write_tasks
from tests.services.harbor_lint import PYTHON, find_python, install, lint


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
