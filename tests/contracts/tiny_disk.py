"""A real file system that is quickly full."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(path: Path, *, size_kib: int) -> Generator[Path]:
    """Mount a tmpfs of ``size_kib`` at ``path``; skips where this user may not mount."""
    path.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system to fill")
    command = [mount, "-t", "tmpfs", "-o", f"size={size_kib}k", "synth-tiny-disk", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
