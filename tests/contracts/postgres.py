"""A private PostgreSQL server for contract tests: its own cluster, port and user, gone at the end."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


def absent(part: str) -> None:
    """Skip where a real part is not installed; under CI it must be, so fail."""
    if os.environ.get("CI"):  # noqa: TID251 - the one switch that tells CI from a laptop
        pytest.fail(f"{part} is missing: the makefile installs it")
    pytest.skip(f"{part} is not installed")


@contextmanager
def postgres() -> Generator[str]:
    """Start a server on 127.0.0.1 and yield the URL of its database."""
    binaries = _binaries()
    if binaries is None:
        absent("PostgreSQL")
        return
    # The server refuses to run as root; the package made a user for it.
    user = "postgres" if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="synth-postgres-"))
    try:
        if user is not None:
            shutil.chown(directory, user)
        data, port = directory / "data", _free_port()
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "synth", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, user=user, cwd=directory,
        )  # fmt: skip
        server = subprocess.Popen(
            [
                binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory,
                "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=50",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, cwd=directory,
        )  # fmt: skip
        try:
            _wait(binaries, port, server)
            yield f"postgresql://synth@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: SIGTERM would wait for every client to leave
            server.wait(timeout=30)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _binaries() -> Path | None:
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return installed[-1].parent if installed else None


def _free_port() -> int:
    """Return a port below the ephemeral range, where no client's socket can take it meanwhile."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    pytest.fail("no free port below 32000")


def _wait(binaries: Path, port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    ready = [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-U", "synth", "-q"]
    while subprocess.run(ready, check=False).returncode != 0:
        if time.monotonic() > deadline or server.poll() is not None:
            pytest.fail("the PostgreSQL server did not start")
        time.sleep(0.1)
