"""``deploy/setup.sh packages``: pip works for minutes and says nothing that people want to read."""

import subprocess
from pathlib import Path

import pytest

_SECOND = 'case "$*" in *-e*) exit;; esac'
"""Our own package, installed after those of the lock, is quiet and quick."""
_ROOT = Path(__file__).parents[2]


def _install(directory: Path, pip: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up with a Python whose pip is a shell script."""
    python = directory / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{pip}\n")
    python.chmod(0o755)
    command = ["deploy/setup.sh", "packages", str(python)]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


def test_it_says_what_begins_how_long_and_that_it_ended(tmp_path: Path) -> None:
    """Three things, whatever pip says on its standard output."""
    done = _install(tmp_path, f"{_SECOND}; echo Collecting one; echo Installing collected packages")
    n_packages = sum(line[:1].isalpha() for line in (_ROOT / "requirements.lock").read_text().splitlines())
    first, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "")
    assert first == f"synth: installing {n_packages} pinned packages into {tmp_path}: a minute or two, once"
    assert last.startswith("synth: packages are installed")


def test_it_fails_with_pips_own_words(tmp_path: Path) -> None:
    """A failure is not swallowed by the counting."""
    done = _install(tmp_path, "echo 'ERROR: no such package' >&2; exit 7")
    assert done.returncode != 0
    assert "ERROR: no such package" in done.stderr
    assert "installed" not in done.stderr


@pytest.mark.timeout(60)
def test_it_goes_on_saying_how_far_it_is(tmp_path: Path) -> None:
    """A line at least every 15 s, in a silence of pip's too."""
    done = _install(tmp_path, f"{_SECOND}; echo Collecting one; sleep 16")
    assert any("synth: 1 of " in line and "packages fetched" in line for line in done.stderr.splitlines()), done.stderr
