"""The real codex, opencode and mini-swe-agent for tests: pinned, installed once into the tools directory."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

CODEX, OPENCODE, MINI = "0.171.0", "1.18.33", "2.4.6"
_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - tests may; npm and pip inherit it
_TOOLS = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
_BASE = {"PATH": _ENVIRONMENT["PATH"]}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command with its environment."""

    command: tuple[str, ...]
    env: dict[str, str]


def codex(home: Path, work: Path, url: str, token: str, task: str) -> Launch:
    """Return how codex works on a task. Its package has 424 MB and takes 7 s to install."""
    program = _npm(f"codex-{CODEX}", f"@openai/codex@{CODEX}") / ".bin" / "codex"
    provider = f'name = "synth"\nbase_url = "{url}/v1"\nenv_key = "SYNTH_TOKEN"\nwire_api = "responses"\n'
    (home / "config.toml").write_text(
        'model = "policy"\nmodel_provider = "synth"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
        f'web_search = "disabled"\n[model_providers.synth]\n{provider}'
    )
    env = {**_BASE, "HOME": str(home), "CODEX_HOME": str(home), "SYNTH_TOKEN": token}
    return Launch(command=(str(program), "exec", "--skip-git-repo-check", task), env=env)


def opencode(home: Path, work: Path, url: str, token: str, task: str) -> Launch:
    """Return how opencode works on a task. Its platform package has 185 MB and takes 5 s to install."""
    package = "opencode-linux-arm64" if platform.machine() == "aarch64" else "opencode-linux-x64-baseline"
    program = _npm(f"opencode-{OPENCODE}", f"{package}@{OPENCODE}") / package / "bin" / "opencode"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": token},
        "models": {"policy": {"name": "policy", "limit": {"context": 200_000, "output": 4000}}},
    }
    settings = {"model": "synth/policy", "small_model": "synth/policy", "autoupdate": False, "share": "disabled"}
    settings |= {"enabled_providers": ["synth"], "provider": {"synth": provider}}
    (work / "opencode.json").write_text(json.dumps(settings))
    env = {**_BASE, "HOME": str(home), "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    return Launch(command=(str(program), "run", task), env=env)


def mini(home: Path, work: Path, url: str, token: str, task: str) -> Launch:
    """Return how mini-swe-agent works on a task. With litellm it has 750 MB and takes a minute to install."""
    program = _pip(f"mini-swe-agent-{MINI}", f"mini-swe-agent=={MINI}") / "bin" / "mini"
    env = {**_BASE, "HOME": str(home), "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": token}
    env |= {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(home)}
    env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    options = ("-y", "--exit-immediately", "-m", "openai/policy", "-o", str(home / "trajectory.json"))
    return Launch(command=(str(program), *options, "-t", task), env=env)


def _npm(name: str, package: str) -> Path:
    """Return the modules of a package; where npm is missing skip, or fail where ``CI`` is set."""
    prefix = _TOOLS / name
    if not (prefix / "installed").exists():
        if shutil.which("npm") is None or platform.system() != "Linux":
            _missing("needs npm, and Linux")
        options = ("--ignore-scripts", "--no-save", "--no-audit", "--no-fund")
        _install(prefix, ("npm", "install", "--prefix", str(prefix), *options, package))
    return prefix / "node_modules"


def _pip(name: str, package: str) -> Path:
    """Return a virtual environment; a laptop that has none skips, since it takes a minute to make."""
    prefix = _TOOLS / name
    if not (prefix / "installed").exists():
        if not _ENVIRONMENT.get("CI"):
            _missing(f"needs {prefix} (made where CI is set)")
        subprocess.run((sys.executable, "-m", "venv", "--clear", str(prefix)), check=True)
        pip = (str(prefix / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _install(prefix, (*pip, package))
    return prefix


def _install(prefix: Path, command: tuple[str, ...]) -> None:
    prefix.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True, capture_output=True, env=_ENVIRONMENT, timeout=400)
    (prefix / "installed").touch()


def _missing(message: str) -> None:
    if _ENVIRONMENT.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


Harness = Callable[[Path, Path, str, str, str], Launch]
"""Home, working directory, the proxy's address, a token and a task -> how it is worked on."""
