"""Control groups hold the limits exactly where they may be made, and nothing is touched where they may not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.sandboxes.cgroups import Groups, find_groups
from domain.ports import Command, Limits
from tests.contracts.sandboxes import local_sandbox, spec

_HOG = "b = b'x' * (200 << 20); print(len(b))"


@pytest.fixture(name="groups")
def _groups() -> Groups:
    groups = find_groups()
    if groups is None:
        pytest.skip("no control group is delegated to this process: the supervisor holds the limits")
    return groups


async def test_a_burst_of_memory_is_held_by_the_kernel(tmp_path: Path, groups: Groups) -> None:
    """What allocates faster than any sampling is killed by name, and the next box knows nothing of it."""
    sandbox = await local_sandbox(tmp_path)
    for code, limit in ((_HOG, "memory"), ("print(1)", None), (_HOG, "memory")):
        box = await sandbox.create(spec(limits=Limits(memory_mb=64)))
        result = await box.exec(Command(argv=("python3", "-S", "-c", code)))
        assert (result.limit_exceeded, result.stdout) == (limit, b"" if limit else b"1\n")
        assert (await box.stats()).limits_enforced_by["memory"] == groups.kind
        await box.destroy()


async def test_a_refused_fork_is_named_when_the_command_fails(tmp_path: Path, groups: Groups) -> None:
    """Processes beyond the limit never exist; a command that fails of it ends with the limit's name."""
    sandbox = await local_sandbox(tmp_path)
    box = await sandbox.create(spec(limits=Limits(processes=8)))
    script = "for i in $(seq 20); do sleep 5 & done; ls /proc | grep -c '^[0-9]'; exit 3"
    result = await box.exec(Command(argv=("bash", "-c", script)))
    assert result.limit_exceeded == "processes"
    assert (await box.stats()).limits_enforced_by["processes"] == groups.kind
    await box.destroy()


def test_a_group_is_used_again_with_other_limits(groups: Groups) -> None:
    """One directory serves box after box, and goes when it is closed."""
    first = groups.take(Limits(memory_mb=64, processes=9))
    assert first is not None
    groups.give_back(first)
    assert groups.take(Limits(memory_mb=None, processes=None)) is first
    assert first.broken() is None
    groups.give_back(first)
    before = _left_by(os.getpid())
    groups.close()
    assert len(_left_by(os.getpid())) < len(before)


def test_a_sweep_removes_the_groups_of_the_dead(groups: Groups) -> None:
    """What a killed owner left goes; the groups of the living stay."""
    mine = groups.take(Limits())
    assert mine is not None
    code = (
        "import os, signal\nfrom adapters.sandboxes.cgroups import find_groups\nfrom domain.ports import Limits\n"
        "find_groups().take(Limits()); print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    dead = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout)
    assert _left_by(dead)
    groups.sweep()
    assert _left_by(dead) == []
    assert _left_by(os.getpid())
    groups.give_back(mine)
    groups.close()


def _left_by(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/synth-{pid}-*"))


@pytest.mark.parametrize("kind", ["cgroup2", "cgroup"])
def test_nothing_is_made_where_no_group_may_be(tmp_path: Path, kind: str) -> None:
    """A directory that is no control group gets no files, whatever the mount table says."""
    point = tmp_path / "hierarchy"
    (point / "own").mkdir(parents=True)
    (point / "cgroup.procs").touch()
    (point / "own" / "cgroup.procs").touch()
    options = "rw" if kind == "cgroup2" else "rw,memory,pids"
    process = tmp_path / "process"
    process.mkdir()
    (process / "mountinfo").write_text(f"41 31 0:38 / {point} rw,relatime - {kind} {kind} {options}\n")
    (process / "cgroup").write_text("0::/own\n" if kind == "cgroup2" else "4:memory,pids:/own\n")
    assert find_groups(process) is None
    assert sorted(str(path.relative_to(point)) for path in point.rglob("*")) == [
        "cgroup.procs",
        "own",
        "own/cgroup.procs",
    ]
