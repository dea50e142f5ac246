"""House rules that no linter holds: names, sizes, purity of the domain, READMEs, paths, docstrings of tests.

The rules read every file that git tracks or would track, so they hold for a file from the day it exists.
Source: facts/model-codebases.md section 4; architecture.md sections 1 and 7.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FOREIGN = ("examples/tasks/", "examples/workload/")
"""Files of tasks: material for agents, not our code."""
_SHIPPED = ("assets", "resources", "sensors", "adapters", "domain", "cli", "definitions", "deploy", "examples")
_BANNED = {"utils", "helpers", "common", "manager"}
_MAY_PRINT = re.compile(r"^(adapters/\w+/box/|tests/benchmarks/)")
_DOMAIN_THIRD_PARTY = {"numpy", "domain"}
_TOUCHES_THE_WORLD = {
    *("os", "pathlib", "subprocess", "socket", "time", "random", "shutil", "tempfile", "threading", "multiprocessing"),
    *("concurrent", "signal", "select", "selectors", "ssl", "http", "urllib", "sqlite3", "secrets", "uuid", "glob"),
    *("fcntl", "mmap", "ctypes", "sys", "platform", "logging", "datetime", "locale", "getpass", "importlib", "pickle"),
}
"""Standard modules that read or change something outside; a clock, an environment and a log are outside, too."""
_MACHINE_PATHS = re.compile(
    "/wo" + r"rk/(main|shared|\.)|/tm" + r"p/w\b|\.libr" + r"ary/|/Use" + r"rs/\w+|/home/(?!agent|synth)\w+/"
)
_FOLDERS = ("domain", "adapters", "resources", "assets", "sensors", "cli", "examples", "deploy", "tests")
_README_LIMITS = {"README.md": 120}


@cache
def _files() -> tuple[str, ...]:
    """Return the paths of all files that git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(sorted(name for name in listed.split("\0") if name and (_ROOT / name).is_file()))


@cache
def _text(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")


@cache
def _modules() -> dict[str, ast.Module]:
    """Return the syntax tree of each Python file of ours, by path."""
    names = [name for name in _files() if name.endswith(".py") and not name.startswith(_FOREIGN)]
    return {name: ast.parse(_text(name), filename=name) for name in names}


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def _calls_of(tree: ast.Module, names: set[str]) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node.lineno


def _words(identifier: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_"))


def _require(name: str) -> str:
    """Return a file's text; skip on a laptop and fail in CI while nobody has written it."""
    if name in _files():
        return _text(name)
    if os.environ.get("CI"):  # noqa: TID251 - tests may
        pytest.fail(f"{name} does not exist")
    return pytest.skip(f"{name} does not exist yet")


def test_definitions_is_the_only_python_file_at_the_root() -> None:
    """A second one would be an import name that nobody looks after."""
    assert [name for name in _modules() if "/" not in name and name != "definitions.py"] == []


def test_no_installed_distribution_brings_a_shipped_name() -> None:
    """Our top-level names are plain words, so nothing beside us may own one."""
    owners = packages_distributions()
    foreign = {name: set(owners.get(name, [])) - {"synth-platform"} for name in _SHIPPED}
    assert {name: owner for name, owner in foreign.items() if owner} == {}


def test_names_say_something() -> None:
    """No file, class or function is named after nothing in particular."""
    offenders = [
        name for name in _files() if not name.startswith(_FOREIGN) and _BANNED & set(re.split(r"[/._-]", name.lower()))
    ]
    for name, tree in _modules().items():
        offenders += [
            f"{name}:{node.lineno} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and _BANNED & _words(node.name)
        ]
    assert offenders == []


def test_modules_are_short() -> None:
    """400 lines, 500 for tests."""
    lengths = {name: len(_text(name).splitlines()) for name in _modules()}
    limits = {name: 500 if name.startswith("tests/") else 400 for name in lengths}
    assert {name: length for name, length in lengths.items() if length > limits[name]} == {}


def test_functions_are_short() -> None:
    """60 lines from ``def`` to the last one."""
    offenders = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in _modules().items()
        for node in _functions(tree)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > 60
    ]
    assert offenders == []


def test_the_domain_touches_nothing() -> None:
    """It imports itself, numpy and harmless parts of the standard library, and opens no file."""
    offenders: list[str] = []
    for name, tree in _modules().items():
        if not name.startswith("domain/"):
            continue
        for line, module in _imports(tree):
            top = module.partition(".")[0]
            harmless = top in sys.stdlib_module_names and top not in _TOUCHES_THE_WORLD
            if top not in _DOMAIN_THIRD_PARTY and not harmless:
                offenders.append(f"{name}:{line} imports {module}")
        offenders += [
            f"{name}:{line} opens, asks or evaluates" for line in _calls_of(tree, {"open", "input", "eval", "exec"})
        ]
    assert offenders == []


def test_asyncio_orders_calls_only_in_lifecycle_and_service() -> None:
    """Records and mathematics are synchronous."""
    offenders = [
        f"{name}:{line}"
        for name, tree in _modules().items()
        if name.startswith("domain/") and not name.startswith(("domain/lifecycle/", "domain/service/"))
        for line, module in _imports(tree)
        if module.partition(".")[0] == "asyncio"
    ]
    assert offenders == []


def test_the_domain_knows_no_layer_above_it() -> None:
    """Inside the domain, records know nothing, mathematics know records; ports are for lifecycle and service."""
    above = {
        "domain/errors.py": ("domain.",),
        "domain/records/": (
            "domain.maths",
            "domain.lifecycle",
            "domain.service",
            "domain.ports",
            "domain.ledger_ports",
        ),
        "domain/maths/": ("domain.lifecycle", "domain.service", "domain.ports", "domain.ledger_ports"),
        "domain/lifecycle/": ("domain.service",),
    }
    offenders = [
        f"{name}:{line} imports {module}"
        for name, tree in _modules().items()
        for place, forbidden in above.items()
        if name.startswith(place)
        for line, module in _imports(tree)
        if module.startswith(forbidden)
    ]
    assert offenders == []


def test_nothing_prints() -> None:
    """Except programs inside a box and benchmarks; the command line writes through its console."""
    offenders = [
        f"{name}:{line}"
        for name, tree in _modules().items()
        if not _MAY_PRINT.match(name)
        for line in _calls_of(tree, {"print"})
    ]
    assert offenders == []


def test_every_test_says_what_it_shows() -> None:
    """A docstring of one sentence or two, which is what the report of a failure is read for."""
    offenders = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in _modules().items()
        if name.startswith("tests/")
        for node in _functions(tree)
        if node.name.startswith("test_") and not (ast.get_docstring(node) or "").strip().endswith(".")
    ]
    assert offenders == []


def test_readmes_are_short() -> None:
    """120 lines for the first, 40 for that of a folder."""
    lengths = {name: len(_text(name).splitlines()) for name in _files() if Path(name).name == "README.md"}
    assert {name: n for name, n in lengths.items() if n > _README_LIMITS.get(name, 40)} == {}


@pytest.mark.parametrize("folder", _FOLDERS)
def test_every_folder_of_the_tree_has_a_readme(folder: str) -> None:
    """The folders of architecture.md section 1 explain themselves."""
    assert _require(f"{folder}/README.md").startswith("# ")


def test_no_tracked_file_knows_this_machine() -> None:
    """Paths of the machine something was written on mean nothing elsewhere."""
    offenders: list[str] = []
    for name in _files():
        try:
            lines = _text(name).splitlines()
        except UnicodeDecodeError:
            continue
        offenders += [f"{name}:{number}" for number, line in enumerate(lines, 1) if _MACHINE_PATHS.search(line)]
    assert offenders == []


def _environment_names(tree: ast.Module) -> Iterator[str]:
    """Yield the constant names that a module reads from the environment, and every constant ``SYNTH_...``."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"SYNTH_[A-Z0-9_]+", node.value)
        ):
            yield node.value
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and re.search(r"(environ\.get|getenv|EnvVar)$", ast.unparse(node.func)):
            keys = node.args[:1]
        else:
            continue
        yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def test_every_setting_is_in_the_example_environment() -> None:
    """Whoever reads .env.example sees each variable that wiring and the command line know."""
    readers = [name for name in _modules() if name == "resources/wiring.py" or name.startswith("cli/")]
    used = {variable: name for name in readers for variable in _environment_names(_modules()[name])}
    if not used:
        pytest.skip("nothing reads the environment yet")
    example = _require(".env.example")
    known = set(re.findall(r"^#?\s*(?:export )?([A-Z][A-Z0-9_]*)=", example, flags=re.MULTILINE))
    missing = {variable: name for variable, name in used.items() if variable not in known | {"PATH", "HOME", "CI"}}
    assert missing == {}
