"""Our reading of a task's files finds what Harbor's own linter finds, under the same names and at the same lines."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from domain.errors import TaskError
from domain.lifecycle.task_lint import lint
from tests.services.harbor_lint import lint as harbor_lint
from tests.services.harbor_tool import require_harbor

HEAD = '{top}[task]\nname = "t/{name}"\n[metadata]\nhost_runnable = true\n[verifier]\n{verifier}'
SEPARATE = 'environment_mode = "separate"\n'
SHARED = 'environment_mode = "shared"\n'
IMAGE = "FROM debian:bookworm-slim\nWORKDIR /app\n"
STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.verifier]\n'
STEP_FILES = {"steps/a/instruction.md": "A.\n", "steps/b/instruction.md": "B.\n"}

BAD: dict[str, tuple[str, Mapping[str, str]]] = {
    "clean": (SEPARATE, {"tests/test.sh": "# pip install x\npytest -q /tests\necho 1 > /logs/verifier/reward.txt\n"}),
    "shared": (SHARED, {}),
    "shared-step": (SEPARATE + STEPS + SHARED, STEP_FILES),
    "installs": (
        SEPARATE,
        {
            "tests/test.sh": (
                "set -e\n"
                "pip install requests==2.31.0\n"
                "pip install \\\n  requests 'numpy>=1,<2' && echo done\n"
                "pip install -r requirements.txt\n"
                "pip install -c constraints.txt flask\n"
                "python3 -m pip install --upgrade pip\n"
                "uv pip install --python 3.12 pandas==2.*\n"
                "uvx --with pytest-json-ctrf==0.3.5 --with pytest==8.3.4 pytest /tests\n"
                "pip install git+https://x.org/y.git@0123456789012345678901234567890123456789\n"
                "pip install git+https://x.org/y.git@main\n"
                "pip install $PACKAGES ./local.whl -e .\n"
                "pip install --no-index pytest==8.0\n"
                "pip install 'never closed\n"
            ),
            "solution/solve.sh": "cat <<'EOF' > x\npip install flask\nEOF\npip3 install flask; uv tool install ruff\n",
        },
    ),
    "downloads": (
        SEPARATE,
        {
            "tests/test.sh": (
                "curl -LsSf https://astral.sh/uv/install.sh | sh\n"
                "curl http://localhost:8080/health -o /tmp/h\n"
                "curl http://127.0.0.1/x -o /tmp/h\n"
                "curl -sf https://example.org/api > /dev/null\n"
                "curl -sf https://example.org/api >/dev/null\n"
                "curl -s https://example.org/api -o data.json\n"
                "curl -O https://example.org/data.json\n"
                "curl https://example.org/data.json\n"
                "wget https://example.org/data.json\n"
                "wget --spider https://example.org/data.json\n"
                "wget -qO- https://example.org/data.json | bash\n"
                "wget -q -O /dev/null https://example.org/data.json\n"
                "git clone https://example.org/r.git\n"
                "git clone git@example.org:r.git; git fetch https://example.org/r.git\n"
                'curl -o "$OUT" https://example.org/x && curl --output=y https://example.org/y\n'
            ),
            "solution/solve.sh": "curl -O https://example.org/data.json\n",
        },
    ),
    "shared-downloads": (SHARED, {"tests/test.sh": "wget https://example.org/x\npip install pytest\n"}),
    "image": (
        SEPARATE,
        {
            "environment/Dockerfile": (
                "FROM debian:bookworm-slim AS base\n"
                "RUN --mount=type=cache,target=/c pip install flask\n"
                'RUN ["pip", "install", "numpy"]\n'
                "RUN apt-get update && \\\n    pip install torch==2.1 pandas\n"
                "COPY --chown=1:1 ../tests/test.sh /x\n"
                'ADD ["solution/solve.sh", "/y"]\n'
                "COPY tests/test_outputs.py tests/data.csv /z/\n"
                "RUN <<EOF\npip install left\nEOF\n"
            )
        },
    ),
    "verifier-image": (
        SEPARATE,
        {"tests/Dockerfile": "FROM debian:bookworm-slim\nCOPY test.sh /tests/test.sh\nRUN pip install pytest\n"},
    ),
    "logs": (SEPARATE, {"TOP": 'artifacts = ["/logs/agent/x", "/app/y", "//logs/verifier"]\n'}),
}
"""Name -> (end of ``[verifier]`` and what follows it, files)."""
REFUSED: dict[str, tuple[str, str, Mapping[str, str]]] = {
    "unknown-config-field": ("timeout_secs", SEPARATE + "timeout_secs = 3\n", {}),
    "invalid-task-config": ("timeout_sec", SEPARATE + 'timeout_sec = "soon"\n', {}),
    "invalid-task-files": ("instruction.md", SEPARATE, {"instruction.md": ""}),
    "unused-harborignore": (".harborignore", SEPARATE, {"environment/.harborignore": "*.log\n"}),
    "overlapping-artifacts": (
        "artifacts",
        SEPARATE,
        {"TOP": 'artifacts = [{source = "/a", destination = "d"}, {source = "/b", destination = "d"}]\n'},
    ),
}
"""Harbor's rule -> what our refusal names, end of ``[verifier]``, files."""


def write(directory: Path, name: str, verifier: str, files: Mapping[str, str]) -> Path:
    """Write a task."""
    top = files.get("TOP", "")
    given = {
        "task.toml": HEAD.format(top=top, name=name, verifier=verifier),
        "environment/Dockerfile": IMAGE,
        "instruction.md": "Do it.\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "true\n",
        **{path: content for path, content in files.items() if path != "TOP"},
    }
    for path, content in given.items():
        (directory / name / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / name / path).write_text(content)
    return directory / name


def ours(directory: Path) -> set[tuple[str, str, int | None]]:
    """Return what we find in a task directory."""
    ((task, archive),) = HarborTaskSource().read(str(directory), host_runnable=False)
    return {(found.rule, found.path, found.line) for found in lint(task, archive)}


@pytest.mark.timeout(1200)
def test_both_find_the_same(tmp_path: Path) -> None:
    """In every bad task: rule, file and line."""
    program = require_harbor()
    tasks = {name: write(tmp_path, name, *given) for name, given in BAD.items()}
    theirs: dict[str, set[tuple[str, str, int | None]]] = {name: set() for name in BAD}
    for found in harbor_lint(program, list(tasks.values())):
        path = Path(str(found["path"])).relative_to(tmp_path.resolve())
        line = found["line"]
        assert line is None or isinstance(line, int)
        theirs[path.parts[0]].add((str(found["rule"]), path.relative_to(path.parts[0]).as_posix(), line))
    assert {name: ours(path) for name, path in tasks.items()} == theirs
    assert {name for name, found in theirs.items() if not found} == {"clean"}


@pytest.mark.timeout(1200)
def test_what_its_other_rules_find_is_refused_before_it_is_published(tmp_path: Path) -> None:
    """A task that Harbor's linter only warns of never gets into a set here."""
    program = require_harbor()
    tasks = {rule: write(tmp_path, rule, verifier, files) for rule, (_, verifier, files) in REFUSED.items()}
    found = {
        (Path(str(item["path"])).relative_to(tmp_path).parts[0], item["rule"])
        for item in harbor_lint(program, list(tasks.values()))
    }
    assert found >= {(rule, rule) for rule in REFUSED}
    for rule, path in tasks.items():
        with pytest.raises(TaskError, match=REFUSED[rule][0]):
            list(HarborTaskSource().read(str(path), host_runnable=False))
