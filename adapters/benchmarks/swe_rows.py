"""Rows as SWE-bench has them, a repository, a base commit, patches and tests, written as Harbor tasks.

Source: the columns of the SWE-bench data sets (``instance_id``, ``base_commit``, ``patch``, ``test_patch``,
``FAIL_TO_PASS``, ``PASS_TO_PASS``). ``repo`` is a repository or bundle on disk here: nothing is downloaded.
"""

import ast
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from domain.errors import ConflictError, TaskError

_BOX = Path(__file__).parent / "box"
_DATE = "2000-01-01T00:00:00+0000"
_COMMIT = (
    "git init -q -b main . && git add -A -f . && git -c user.name=base -c user.email=base@example.org commit -q -m base"
)
_TEST_ID = re.compile(r"^(?P<path>[\w./-]+\.py)(::(?P<owner>[A-Za-z_]\w*))?::(?P<name>[A-Za-z_]\w*)$")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


def _listed(value: object) -> object:
    """Return a list that is written as JSON text, as the published data sets have it."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("neither a list nor JSON text of one") from None
    return value


Tests = Annotated[list[str], BeforeValidator(_listed)]
Filled = Annotated[str, Field(min_length=1)]


class SweRow(BaseModel):
    """One row. Unknown columns are errors; those below ``version`` are known and not used."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    repo: Filled
    base_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    problem_statement: Filled
    patch: Filled
    test_patch: Filled
    FAIL_TO_PASS: Annotated[Tests, Field(min_length=1)]
    PASS_TO_PASS: Tests
    version: str = ""
    hints_text: str = ""
    created_at: str = ""
    environment_setup_commit: str = ""


class _RefusedError(Exception):
    """What is wrong with a field of a row."""

    def __init__(self, *, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")


def import_rows(rows: Path, target: Path) -> tuple[Path, ...]:
    """Write one task directory for each row of a JSONL file, and return them.

    Raises:
        TaskError: naming row and field of everything that is wrong; then nothing has been written.
        ConflictError: ``target`` has content already.
    """
    if target.exists() and any(target.iterdir()):
        raise ConflictError(f"{target} is not empty", hint="name a new directory")
    parsed, problems = _read(rows)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        for number, row in parsed:
            try:
                _write(row, rows.parent, made / row.instance_id)
            except _RefusedError as refusal:
                problems.append(f"row {number}: {refusal}")
        if problems:
            raise TaskError(f"{rows}: " + "; ".join(problems), hint="correct the named fields; nothing was written")
        target.mkdir(parents=True, exist_ok=True)
        return tuple(Path(shutil.copytree(made / row.instance_id, target / row.instance_id)) for _, row in parsed)


def _read(rows: Path) -> tuple[list[tuple[int, SweRow]], list[str]]:
    try:
        lines = rows.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{rows}: {error}", hint="name a JSONL file of rows") from None
    parsed: list[tuple[int, SweRow]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = SweRow.model_validate_json(line)
            except ValidationError as error:
                problems.extend(_explain(number, error))
                continue
            if any(row.instance_id == other.instance_id for _, other in parsed):
                problems.append(f"row {number}: instance_id: {row.instance_id!r} is used more than once")
            parsed.append((number, row))
    if not parsed and not problems:
        raise TaskError(f"{rows}: no rows", hint="one JSON object on each line")
    return parsed, problems


def _explain(number: int, error: ValidationError) -> list[str]:
    return [
        f"row {number}: {'.'.join(map(str, found['loc'])) or 'the row'}: {found['msg'].removeprefix('Value error, ')}"
        for found in error.errors(include_url=False, include_context=False)
    ]


def _git(where: Path, *words: str) -> str:
    """Run git without anybody's settings or hooks. Raises CalledProcessError."""
    argv = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", *words)
    dates = {"GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE}
    done = subprocess.run(  # noqa: S603 - arguments, no shell; paths and names were checked
        argv, cwd=where, env={**_ENVIRONMENT, **dates}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _words(error: subprocess.CalledProcessError) -> str:
    said = str(error.stderr).strip().splitlines()
    return said[-1] if said else f"git ended with {error.returncode}"


def _write(row: SweRow, base: Path, task: Path) -> None:
    """Write one task. Raises _RefusedError."""
    with tempfile.TemporaryDirectory() as scratch:
        clone, tested = Path(scratch, "clone"), Path(scratch, "tested")
        files = task / "environment" / "files"
        _check_out(row, base / row.repo, clone, files)
        shutil.copytree(files, tested, symlinks=True)
        _git(tested, "init", "-q")
        changed = _apply(tested, "test_patch", row.test_patch)
        for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            for index, test in enumerate(getattr(row, field)):
                _check_test(tested, f"{field}[{index}]", test)
        both = changed & _apply(tested, "patch", row.patch)
        if both:
            raise _RefusedError(field="patch", problem=f"changes {min(both)}, as test_patch does")
        needed = {test.split("::")[0] for test in (*row.FAIL_TO_PASS, *row.PASS_TO_PASS)} | changed
        for path in sorted(needed):
            if (tested / path).is_file():
                kept = task / "tests" / "files" / f"{path}.after"
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tested / path, kept)
    _write_files(row, task, _pinned(files))


def _check_out(row: SweRow, repository: Path, clone: Path, files: Path) -> None:
    if not repository.exists():
        raise _RefusedError(field="repo", problem=f"{row.repo} is no repository or bundle on disk")
    try:
        _git(repository.parent, "clone", "-q", "--no-checkout", "--no-hardlinks", str(repository.resolve()), str(clone))
    except subprocess.CalledProcessError as error:
        raise _RefusedError(field="repo", problem=_words(error)) from None
    try:
        _git(clone, "checkout", "-q", "--detach", row.base_commit)
    except subprocess.CalledProcessError as error:
        raise _RefusedError(field="base_commit", problem=_words(error)) from None
    shutil.rmtree(clone / ".git")
    links = [path for path in clone.rglob("*") if path.is_symlink() or (path.is_dir() and path.name == ".git")]
    if links:
        raise _RefusedError(field="repo", problem=f"{links[0].relative_to(clone)} is a link or a repository of its own")
    shutil.copytree(clone, files)


def _apply(tree: Path, field: str, patch: str) -> set[str]:
    """Apply a patch and return the paths that it changes."""
    written = tree.parent / f"{field}.diff"
    written.write_bytes(patch.encode())
    try:
        names = _git(tree, "apply", "--numstat", "-z", str(written))
        _git(tree, "apply", str(written))
    except subprocess.CalledProcessError as error:
        raise _RefusedError(field=field, problem=_words(error)) from None
    found: set[str] = set()
    for record in filter(None, names.split("\0")):
        added, _, path = record.split("\t")
        if added == "-" or not path:
            raise _RefusedError(field=field, problem="binary changes and renames are not imported")
        found.add(path)
    return found


def _check_test(tree: Path, field: str, test: str) -> None:
    """Refuse a test that is not there, or that needs more than the standard library to run."""
    found = _TEST_ID.match(test)
    if found is None or ".." in PurePosixPath(test.split("::", maxsplit=1)[0]).parts:
        raise _RefusedError(field=field, problem=f"{test!r} is neither path.py::Class::method nor path.py::function")
    path = tree / found["path"]
    if not path.is_file():
        raise _RefusedError(field=field, problem=f"{found['path']} does not exist with test_patch applied")
    try:
        body: Sequence[ast.stmt] = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        raise _RefusedError(field=field, problem=f"{found['path']}: {error}") from None
    if any(isinstance(node, (ast.Import, ast.ImportFrom)) and "pytest" in ast.unparse(node) for node in body):
        raise _RefusedError(field=field, problem=f"{found['path']} imports pytest, which the verifier has not")
    if found["owner"]:
        owners = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == found["owner"]]
        body = owners[0] if owners else ()
    function = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == found["name"]), None)
    if function is None:
        raise _RefusedError(field=field, problem=f"{test} is not in its file")
    if len(function.args.args) != (1 if found["owner"] else 0):
        raise _RefusedError(field=field, problem=f"{test} takes arguments; fixtures are not imported")


def _pinned(files: Path) -> str:
    """Return the name that the task's image gives to its one commit."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(shutil.copytree(files, Path(scratch, "tree")))
        _git(tree, "init", "-q", "-b", "main", ".")
        _git(tree, "add", "-A", "-f", ".")
        _git(tree, "-c", "user.name=base", "-c", "user.email=base@example.org", "commit", "-q", "-m", "base")
        return _git(tree, "rev-parse", "HEAD")


def _write_files(row: SweRow, task: Path, commit: str) -> None:
    tests = [*row.FAIL_TO_PASS, *row.PASS_TO_PASS]
    record = {"FAIL_TO_PASS": row.FAIL_TO_PASS, "PASS_TO_PASS": row.PASS_TO_PASS, "n_tests": len(tests)}
    texts = {
        "instruction.md": row.problem_statement.rstrip() + "\n",
        "task.toml": _TASK.format(name=row.instance_id, base=row.base_commit, commit=commit),
        "environment/Dockerfile": _DOCKERFILE.format(date=_DATE, commands=_COMMIT, commit=commit),
        "solution/gold.patch": row.patch,
        "solution/solve.sh": _SOLVE,
        "tests/row.json": json.dumps(record, indent=1) + "\n",
        "tests/test.sh": _TEST,
        "tests/Dockerfile": _TEST_DOCKERFILE,
    }
    for path, text in texts.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_bytes(text.encode())
    shutil.copyfile(_BOX / "apply_patch.py", task / "solution/apply_patch.py")
    for name in ("judge_rows.py", "run_test.py"):
        shutil.copyfile(_BOX / name, task / "tests" / name)


_TASK = """schema_version = "1.4"
artifacts = ["/app"]

[task]
name = "swe/{name}"
keywords = ["python"]

[metadata]
host_runnable = true
host_files = "environment/files"
base_commit = "{base}"
commit = "{commit}"

[agent]
timeout_sec = 1800.0

[verifier]
timeout_sec = 1800.0
environment_mode = "separate"

[environment]
workdir = "/app"
network_mode = "no-network"
"""
_INSTALL = "apt-get update && apt-get install -y --no-install-recommends"
_DOCKERFILE = f"""FROM debian:bookworm-slim
RUN {_INSTALL} git python3 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY files/ /app/
# The base commit without its history: what came before and after it is nowhere.
RUN export GIT_AUTHOR_DATE={{date}} GIT_COMMITTER_DATE={{date}} && {{commands}} \\
    && test "$(git rev-parse HEAD)" = {{commit}}
"""
_TEST_DOCKERFILE = f"""FROM debian:bookworm-slim
RUN {_INSTALL} python3 && rm -rf /var/lib/apt/lists/*
COPY . /tests/
WORKDIR /app
"""
_SOLVE = """#!/bin/bash
exec python3 -I -S -B /solution/apply_patch.py /solution/gold.patch /app
"""
_TEST = """#!/bin/bash
exec /usr/bin/python3 -I -S -B /tests/judge_rows.py
"""
