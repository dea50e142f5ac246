"""Docker Compose, called as a program: it reads compose files, and starts and waits for their services."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from domain.errors import SandboxError

_PLUGINS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where the plugin lies. Source: Docker CLI, ``cli-plugins/manager``; the user's own ``~/.docker`` comes first."""
_OLDEST = (2, 17)
"""The first with ``up --wait-timeout``."""
_UNSET = re.compile(r'The \\?"(?P<name>\w+)\\?" variable is not set')
_TOLD_LINES = 5


class ComposeError(SandboxError):
    """A compose file that no box can be made from, however often it is tried."""

    is_permanent = True


@cache
def find_compose(named: str) -> Path | None:
    """Return the program: the one that is named, else the plugin of this machine's Docker, version 2; or None."""
    places = [named] if named else [
        str(Path.home() / ".docker/cli-plugins/docker-compose"),
        *(f"{directory}/docker-compose" for directory in _PLUGINS),
        shutil.which("docker-compose") or "",
    ]  # fmt: skip
    return next((Path(place) for place in places if place and _version(place) >= _OLDEST), None)


def _version(program: str) -> tuple[int, int]:
    try:
        said = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False, timeout=20)  # noqa: S603 - found or named by the operator
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = re.match(r"v?(\d+)\.(\d+)", said.stdout.strip())
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def read_model(
    program: Path, files: Sequence[Path], project: str, directory: Path, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return the merged compose files as one document: variables filled, short forms written out, paths absolute.

    Raises:
        ComposeError: Compose refuses them, or they interpolate what nobody sets.
    """
    chosen = [part for file in files for part in ("-f", str(file))]
    argv = [*chosen, "--project-directory", str(directory), "-p", project, "config", "--format", "json"]
    done = _run(program, argv, directory, dict(variables), 60.0)
    if done.returncode != 0:
        raise ComposeError(f"{files[-1].name}: {_last_words(done.stderr)}")
    unset = sorted({found["name"] for found in _UNSET.finditer(done.stderr)})
    if unset:
        raise ComposeError(f"{files[-1].name}: nobody sets {', '.join(unset)}", hint="write values or defaults")
    return cast("dict[str, Any]", json.loads(done.stdout))


def start_services(program: Path, file: Path, project: str, engine: str, limit_s: float) -> None:
    """Start all services and wait until they run, and those with a health check are healthy. Blocks.

    Raises:
        SandboxError: one of them does not, within the time.
    """
    up = ["up", "--detach", "--wait", "--wait-timeout", str(int(limit_s)), "--no-build", "--pull", "never"]
    environment = {"DOCKER_HOST": engine, "COMPOSE_PROGRESS": "quiet"}
    try:
        done = _run(program, ["-f", str(file), "-p", project, *up], file.parent, environment, limit_s + 30.0)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"services were not there within {limit_s:g} s") from None
    if done.returncode != 0:
        raise SandboxError(f"services: {_last_words(done.stderr)}")


def _run(
    program: Path, argv: Sequence[str], home: Path, environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run with nothing of our environment: whatever a file interpolates, it learns nothing; it dies with us."""
    own = {"PATH": os.defpath, "HOME": str(home), "DOCKER_CONFIG": str(home), **environment}
    command = ["setpriv", "--pdeathsig", "KILL", str(program), "--ansi", "never", *argv]
    return subprocess.run(  # noqa: S603 - argv is built here, without a shell
        command,
        cwd=home, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit_s,
    )  # fmt: skip


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and "level=warning" not in line]
    return " | ".join(lines[-_TOLD_LINES:]) or "no reason given"
