"""What the shipped code needs is what is installed with it, and all of it is pinned."""

import ast
import re
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SHIPPED = ("adapters", "assets", "cli", "definitions.py", "deploy", "domain", "resources", "sensors")
_RUN_WITHOUT_IMPORT = {"dagster-webserver", "psycopg2-binary"}
"""A command that ``synth up`` starts, and a driver that SQLAlchemy loads by the URL's name."""
_PARTS = {"pydantic-core": "pydantic"}
"""Distributions that come with another one, in exactly the version that it asks for."""


def _normal(name: str) -> str:
    """Return the name of a distribution as registries compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements name, without extras and versions."""
    return {_normal(re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0]) for item in requirements}


def _project() -> tuple[set[str], set[str]]:
    """Return what is needed to run, and what only developers need."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return _named(project["dependencies"]), _named(project["optional-dependencies"]["dev"])


def _imported(*places: str) -> set[str]:
    """Return the distributions that the files below some places import, also inside functions."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *places]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    modules: set[str] = set()
    for path in (_ROOT / name for name in listed if name.endswith(".py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else ():
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    found = {_normal(name) for module in modules for name in known.get(module, [])} - {"synth-platform"}
    return {_PARTS.get(name, name) for name in found}


def test_shipped_code_imports_what_is_declared_and_no_more_is_declared() -> None:
    """A package that only tests import belongs to the developers' group; one that nobody imports to none."""
    needed, development = _project()
    imported = _imported(*_SHIPPED)
    assert imported <= needed
    assert needed - imported == _RUN_WITHOUT_IMPORT
    assert _imported("tests", "examples") <= needed | development


def test_every_declared_package_is_pinned_and_justified() -> None:
    """The lock names one version of each, and CONTRIBUTING.md says why it is there."""
    needed, development = _project()
    lines = [line for line in (_ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s+]+", line) for line in lines)
    assert needed | development <= _named(lines)
    rows = re.findall(r"^\| ([a-z0-9, -]+) \| .+ \|$", (_ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    explained = {name.strip() for row in rows for name in row.split(",")}
    assert needed | development <= explained
    assert explained - {"package"} <= _named(lines)
