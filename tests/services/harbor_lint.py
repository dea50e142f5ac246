"""Harbor's own linter over task directories, from a virtual environment kept between runs.

``python -m tests.services.harbor_lint DIR...`` prints its findings as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

VERSION = "0.26.0"
PYTHON = "3.12"
"""Harbor does not install on Python 3.11. Source: facts/harbor.md, source basis."""

_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - tests may; Harbor's program and pip inherit it


def find_python() -> Path | None:
    """Return a working Python 3.12: on the path, or among pyenv's versions."""
    candidates = [shutil.which(f"python{PYTHON}"), sys.executable]
    pyenv = Path(_ENVIRONMENT.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += sorted(str(path) for path in pyenv.glob(f"{PYTHON}.*/bin/python{PYTHON}"))
    for candidate in candidates:
        if candidate and _version_of(candidate) == PYTHON:
            return Path(candidate)
    return None


def _version_of(python: str) -> str | None:
    """A pyenv shim exists also where its version is not selected, so ask."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run((python, "-c", asked), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def install(python: Path) -> Path:
    """Return the ``harbor`` program, installed once (470 MB) into the tools directory."""
    tools = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
    environment = tools / f"harbor-{VERSION}"
    program = environment / "bin" / "harbor"
    done = environment / "installed"
    if not done.exists():
        subprocess.run((str(python), "-m", "venv", "--clear", str(environment)), check=True)
        pip = (str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", f"harbor=={VERSION}")
        subprocess.run((*pip, "--disable-pip-version-check"), check=True)
        done.touch()
    return program


def lint(program: Path, tasks: list[Path]) -> list[dict[str, object]]:
    """Return what Harbor finds in the task directories, with its default rules."""
    environment = {**_ENVIRONMENT, "HARBOR_TELEMETRY": "0"}
    command = (str(program), "lint", "--json", *map(str, tasks))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout.strip():
        message = f"harbor lint ended with {done.returncode}: {done.stderr}"
        raise RuntimeError(message)
    return cast("list[dict[str, object]]", json.loads(done.stdout))


def main(arguments: list[str]) -> int:
    """Run the command line."""
    python = find_python()
    if python is None:
        sys.stderr.write(f"no Python {PYTHON} found\n")
        return 2
    findings = lint(install(python), [Path(argument) for argument in arguments])
    sys.stdout.write(json.dumps(findings, indent=2) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
