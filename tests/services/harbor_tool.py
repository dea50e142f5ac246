"""Harbor itself as a test uses it: jobs run by it, and its viewer, from its own virtual environment."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.services.harbor_lint import PYTHON, find_python, install

_START_S = 120.0
_BOX = '''
import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

SETUP = """
set -e
cd "$ROOT"
for name in usr bin sbin lib lib32 lib64 etc dev proc; do
    [ -e /$name ] || continue
    if [ -L /$name ]; then [ -L $name ] || cp -P /$name $name; continue; fi
    mkdir -p $name; mount --rbind /$name $name
done
exec chroot . /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root "$@"
"""


class DirectoryEnvironment(BaseEnvironment):
    """A root directory in a mount namespace: this machine's programs, and places of its own for everything else."""

    def __init__(self, *args, **kwargs):
        self.root = Path(tempfile.mkdtemp(prefix="harbor-box-"))
        super().__init__(*args, **kwargs)

    @staticmethod
    def type():
        return "directory"

    @property
    def capabilities(self):
        return EnvironmentCapabilities()

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        for name in ("app", "tests", "solution", "tmp", "root", "logs/agent", "logs/verifier", "logs/artifacts"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete):
        shutil.rmtree(self.root, ignore_errors=True)

    def _at(self, path):
        return self.root / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True, symlinks=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        words = [f"{name}={value}" for name, value in (env or {}).items()]
        inner = f"cd {cwd or '/app'} && {command}"
        process = await asyncio.create_subprocess_exec(
            "unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]),
            "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", SETUP, "setup",
            *words, "bash", "-c", inner,
            env={**os.environ, "ROOT": str(self.root)}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        finally:
            if process.returncode is None:
                process.kill()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)
'''
"""An environment class of Harbor that needs no engine. Source: Harbor 0.26 ``environments/base.py``."""


def require_harbor() -> Path:
    """Return the ``harbor`` program; without Python 3.12 skip, or fail where ``CI`` is set."""
    python = find_python()
    if python is None:
        message = f"needs Python {PYTHON} on the path or in pyenv"
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            pytest.fail(message)
        pytest.skip(message)
    return install(python)


def run_job(
    tasks: Path, jobs: Path, agent: str, *, attempts: int = 1, at_once: int = 2, retries: int = 0, boxes: str = ""
) -> Path:
    """Let Harbor run its agent over task directories, and return the job directory.

    Args:
        tasks: what holds them.
        jobs: where the job's directory is made.
        agent: Harbor's name of it.
        attempts: at each task.
        at_once: trials.
        retries: of trials that end with an exception, as Harbor's default has them.
        boxes: Python of a class ``Boxes`` for its environments, below :data:`_BOX`; empty: the class of that.
    """
    program = require_harbor()
    home = jobs.parent / "harbor"
    home.mkdir(exist_ok=True)
    (home / "synth_box.py").write_text(_BOX + boxes)
    config = {
        "job_name": agent,
        "jobs_dir": str(jobs),
        "n_attempts": attempts,
        "n_concurrent_trials": at_once,
        "quiet": True,
        "retry": {"max_retries": retries, "min_wait_sec": 0.1, "max_wait_sec": 0.5},
        "environment": {"import_path": f"synth_box:{'Boxes' if boxes else 'DirectoryEnvironment'}"},
        "agents": [{"name": agent}],
        "datasets": [{"path": str(tasks)}],
    }
    (home / "job.json").write_text(json.dumps(config))
    command = (str(program), "run", "-c", str(home / "job.json"), "-y")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(home), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return jobs / agent


@contextmanager
def viewer(jobs: Path) -> Generator[httpx.Client]:
    """Serve a directory of jobs with ``harbor view``."""
    program = require_harbor()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (str(program), "view", str(jobs), "--jobs", "--no-build", "--port", str(port))
    log = jobs.parent / "view.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=_environment(jobs.parent))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            _await_health(client, process, log)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _await_health(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            if client.get("/api/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"harbor view did not start: {log.read_text()[-2000:]}")


def _environment(home: Path) -> dict[str, str]:
    inherited = dict(os.environ)  # noqa: TID251 - Harbor's program inherits it
    own = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(home)}
    return {**inherited, **own, "BROWSER": "true"}
