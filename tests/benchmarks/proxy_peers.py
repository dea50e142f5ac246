"""Proxies to measure, each a process before the same engine: ours and what others record model calls with.

A peer lives in a virtual environment of its own (``SYNTH_TOOLS_DIR``) and is left out by name when it cannot be made.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.processes import ROOT
from tests.services.harbor_lint import find_python

N_TRIALS = 64
_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - a benchmark hands its environment on
_TOOLS = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
_READY_S = 90.0
_MASTER_KEY = "sk-benchmark-0123456789abcdef"
_MESSAGES = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One proxy that runs."""

    pid: int
    url_of: Callable[[int], str]
    """Trial -> where its calls go."""
    headers_of: Callable[[int], Mapping[str, str]]
    speaks_messages: bool = False
    streams: bool = True
    stored_bytes: Callable[[], int] = lambda: 0


@contextmanager
def running(argv: list[str], environment: Mapping[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Run a process until the block ends; what it complains of is nobody's."""
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    own = {**_ENVIRONMENT, **(environment or {})}
    with subprocess.Popen(argv, cwd=ROOT, env=own, stdin=pipe, stdout=pipe, stderr=nowhere) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


@contextmanager
def engine() -> Generator[str]:
    """Run the engine; yields its address."""
    with running([sys.executable, "-m", "tests.benchmarks.mock_engine"]) as process:
        yield f"http://127.0.0.1:{_line(process).strip()}"


@contextmanager
def ours(home: Path, engine_url: str) -> Generator[Proxy]:
    """Run our model process."""
    argv = [sys.executable, "-m", "tests.benchmarks.proxy_process", str(home), str(N_TRIALS), engine_url]
    with running(argv) as process:
        said = json.loads(_line(process))
        tokens = list(said["tokens"].values())
        yield Proxy(
            pid=process.pid,
            url_of=lambda _: f"{said['url']}/v1/messages",
            headers_of=lambda trial: {**_MESSAGES, "authorization": f"Bearer {tokens[trial % N_TRIALS]}"},
            speaks_messages=True,
            stored_bytes=lambda: _size(home / "model"),
        )


@contextmanager
def rllm(home: Path, engine_url: str, store: str = "sqlite") -> Generator[Proxy]:
    """Run rllm-model-gateway 0.1.0."""
    program = _installed("rllm-gw", sys.executable, "rllm-model-gateway==0.1.0") / "rllm-model-gateway"
    port = _free_port()
    argv = [str(program), "--host", "127.0.0.1", "--port", str(port), "--worker", f"{engine_url}/v1"]
    with running([*argv, "--store", store, "--db-path", str(home / "traces.db"), "--log-level", "warning"]) as process:
        _wait(f"http://127.0.0.1:{port}/health")
        yield Proxy(
            pid=process.pid,
            url_of=lambda trial: f"http://127.0.0.1:{port}/sessions/s{trial}/v1/chat/completions",
            headers_of=lambda _: _MESSAGES,
            stored_bytes=lambda: _size(home),
        )


@contextmanager
def litellm(home: Path, engine_url: str) -> Generator[Proxy]:
    """Run litellm's proxy; it stores nothing."""
    program = _installed("litellm-p", sys.executable, "litellm[proxy]") / "litellm"
    port = _free_port()
    params = {"model": "openai/policy", "api_base": f"{engine_url}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "policy", "litellm_params": params}]}
    config = home / "litellm.yaml"
    config.write_text(json.dumps({**settings, "general_settings": {"master_key": _MASTER_KEY}}))
    own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    argv = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with running(argv, own) as process:
        _wait(f"http://127.0.0.1:{port}/health/liveliness")
        yield Proxy(
            pid=process.pid,
            url_of=lambda _: f"http://127.0.0.1:{port}/v1/chat/completions",
            headers_of=lambda _: {**_MESSAGES, "authorization": f"Bearer {_MASTER_KEY}"},
        )


@contextmanager
def agentlightning(home: Path, engine_url: str) -> Generator[Proxy]:
    """Run agentlightning 1.0.2's server; it streams nothing and keeps all in memory."""
    newer = find_python()
    if newer is None:
        raise RuntimeError("agentlightning needs Python 3.12")
    program = _installed("agl", str(newer), "agentlightning==1.0.2") / "python"
    port = _free_port()
    argv = [str(program), "-m", "agentlightning.server", "host=127.0.0.1", f"port={port}"]
    argv += ["default_proxy.model_name=policy", f"hydra.run.dir={home}"]
    with running(argv) as process:
        base = f"http://127.0.0.1:{port}"
        _wait(f"{base}/healthz")
        httpx.post(f"{base}/api/models", json=[{"model": "policy", "endpoint": f"{engine_url}/v1"}]).raise_for_status()
        rollouts: list[dict[str, Any]] = [{"rollout_id": f"r{number}", "input": {}} for number in range(N_TRIALS)]
        httpx.post(f"{base}/api/rollouts", json=rollouts).raise_for_status()
        yield Proxy(
            pid=process.pid,
            url_of=lambda trial: (
                f"{base}/proxy/rollout/r{trial % N_TRIALS}/attempt/0/mode/train/openai/v1/chat/completions"
            ),
            headers_of=lambda _: _MESSAGES,
            streams=False,
        )


def _installed(name: str, python: str, *packages: str) -> Path:
    """Return the ``bin`` of a virtual environment with the packages, made once."""
    directory = _TOOLS / name
    if not (directory / "installed").exists():
        subprocess.run((python, "-m", "venv", "--clear", str(directory)), check=True)
        pip = (str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run((*pip, *packages), check=True)
        (directory / "installed").touch()
    return directory / "bin"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait(url: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        try:
            if httpx.get(url).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{url} does not answer after {_READY_S:g} s")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
