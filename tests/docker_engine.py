"""A real Docker engine for tests: the one that SYNTH_TEST_DOCKER names, else one of our own, started once and ended.

No registry is asked: the base image is Debian's, made by debootstrap and kept between runs.
"""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

IMAGE = "debian:bookworm-slim"
"""What tests may build on: Debian with python3 and an ordinary user ``agent`` (1000)."""
_READY_S = 60.0
_STOP_S = 20.0
_TIMEOUT_S = 20
_PACKAGES = "python3"
_TOOLS = ("dockerd", "debootstrap", "containerd", "iptables")


def docker_url() -> str:
    """Return the address of an engine with :data:`IMAGE`; without one the test is skipped, and fails in CI."""
    try:
        return _engine()
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            raise
        pytest.skip(f"no Docker engine: {error}")


@functools.cache
def _engine() -> str:
    named = os.environ.get("SYNTH_TEST_DOCKER")  # noqa: TID251 - a test's own setting
    if named:
        return named
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=f"{os.defpath}:/usr/sbin:/sbin") is None]
    if missing or os.geteuid() != 0:
        raise RuntimeError(f"{', '.join(missing)} missing" if missing else "only root can start one")
    url = _started(Path(tempfile.mkdtemp(prefix="synth-docker-")))
    _import_image(url, _base())
    return url


def _started(directory: Path) -> str:
    """Start an engine whose state lies in ``directory``; both go when this process ends."""
    socket = directory / "docker.sock"
    argv = ["dockerd", "--data-root", str(directory / "data"), "--exec-root", str(directory / "exec")]
    argv += ["-H", f"unix://{socket}", "--pidfile", str(directory / "pid")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=_environment())
    atexit.register(_stop, process, directory)
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if socket.exists() and _answers(f"unix://{socket}"):
            return f"unix://{socket}"
        time.sleep(0.1)
    raise RuntimeError(f"dockerd did not start: {(directory / 'log').read_text()[-1000:]}")


def _environment() -> dict[str, str]:
    inherited = dict(os.environ)  # noqa: TID251 - a server of the tests inherits their environment
    return {**inherited, "PATH": f"{inherited.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _answers(url: str) -> bool:
    try:
        return bool(client(url).ping())
    except Exception:  # noqa: BLE001 - not yet, whatever the reason
        return False


@functools.cache
def client(url: str) -> Any:
    """Return the low-level client of an engine, closed when this process ends."""
    import docker

    opened = docker.APIClient(base_url=url, version="1.41", timeout=60)
    atexit.register(opened.close)
    return opened


def _stop(process: subprocess.Popen[bytes], directory: Path) -> None:
    _clear(f"unix://{directory / 'docker.sock'}")
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)


def _clear(url: str) -> None:
    """Remove all networks: an engine leaves their bridges on the machine, and after thirty no later one finds room."""
    import docker
    from docker.errors import DockerException

    with suppress(DockerException, OSError):
        api: Any = docker.APIClient(base_url=url, version="1.41", timeout=_TIMEOUT_S)
        for container in api.containers(all=True, quiet=True):
            api.remove_container(container["Id"], force=True)
        api.prune_networks()
        api.close()


def _base() -> Path:
    """Return a tar of a small Debian, made once."""
    tools = os.environ.get("SYNTH_TOOLS_DIR")  # noqa: TID251 - where tests keep what takes long to make
    kept = Path(tools or Path.home() / ".cache" / "synth-tools") / "bookworm-python3.tar"
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="synth-debian-") as directory:
        root = Path(directory) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
        subprocess.run(command, check=True, capture_output=True, env=_environment())
        subprocess.run(["chroot", str(root), "useradd", "-m", "-u", "1000", "agent"], check=True, env=_environment())
        draft = kept.with_suffix(f".{os.getpid()}")
        subprocess.run(["tar", "-C", str(root), "--exclude=./var/cache/apt/*", "-cf", str(draft), "."], check=True)
        draft.replace(kept)
    return kept


def _import_image(url: str, tar: Path) -> None:
    repository, _, tag = IMAGE.partition(":")
    client(url).import_image_from_file(str(tar), repository=repository, tag=tag)
