"""The verifier of an imported row: every test that should pass is run in a process of its own, as another user.

The work is copied without what Python or a test runner would read by itself (``.pth``, byte code, ``conftest.py``,
links), and the row's own test files are laid over it. The interpreter is isolated, nothing of the environment is
passed on, and only this process writes the reward, when every named test has been run.

Tests of such rows share a process with the code they test, so code that is made to deceive can still make its own test
pass. That is in the nature of the rows; rewards that must withstand it need a verifier such as that of the workload.
"""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

TESTS, APP, LOGS = Path("/tests"), Path("/app"), Path("/logs/verifier")
TREE = TESTS / "run"
CANDIDATE_ID = 61001
TEST_S = 60.0
TOTAL_S = 1500.0
MAX_BYTES, MAX_FILES = 200 << 20, 20_000
AFTER = ".after"
UNREAD = ("conftest.py", "sitecustomize.py", "usercustomize.py")


def main() -> int:
    """Grade and return the exit code."""
    row = json.loads((TESTS / "row.json").read_text(encoding="utf-8"))
    tests = [*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]]
    runner = (TESTS / "run_test.py").read_text(encoding="utf-8")
    copy_work(APP, TREE)
    lay_over(TESTS / "files", TREE)
    other_user = may_change_user()
    close_doors()
    started = time.monotonic()
    failed = [
        test
        for test in tests
        if time.monotonic() - started > TOTAL_S or not passes(runner, test, other_user=other_user)
    ]
    print(f"{len(tests) - len(failed)} of {len(tests)} tests pass; failed: {failed[:20]}")
    if len(tests) != row["n_tests"] or not row["FAIL_TO_PASS"]:
        return 3
    write_reward(0 if failed else 1)
    return 0


def copy_work(source: Path, target: Path) -> None:
    """Copy regular files, a bounded number of them, for everybody to read and nobody to write."""
    size = count = 0
    for folder, folders, files in os.walk(source, followlinks=False):
        folders[:] = [n for n in folders if n not in {".git", "__pycache__"} and not Path(folder, n).is_symlink()]
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = Path(folder, name)
            if name in UNREAD or name.endswith((".pyc", ".pth")) or not stat.S_ISREG(path.lstat().st_mode):
                continue
            size, count = size + path.lstat().st_size, count + 1
            if size > MAX_BYTES or count > MAX_FILES:
                return
            shutil.copyfile(path, place / name)


def lay_over(files: Path, tree: Path) -> None:
    """Put the row's own test files in their places, whatever lies there."""
    for path in sorted(files.rglob("*" + AFTER)):
        target = tree / path.relative_to(files).with_name(path.name.removesuffix(AFTER))
        if target.is_dir():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def may_change_user() -> bool:
    """Say whether tests can have a user of their own here."""
    with suppress(OSError, subprocess.SubprocessError):
        who = CANDIDATE_ID
        subprocess.run(["/bin/true"], user=who, group=who, extra_groups=[], env={}, check=True)
        return True
    return False


def close_doors() -> None:
    """Let the tests read their tree and nothing else of the verifier's."""
    for path in TREE.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    TREE.chmod(0o755)
    TESTS.chmod(0o711)
    LOGS.chmod(0o700)
    for path in TESTS.iterdir():
        if path != TREE:
            path.chmod(0o700)


def restrain() -> None:
    """Bound one test's process."""
    for what, limit in (
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, 1 << 30),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_CPU, int(TEST_S)),
    ):
        resource.setrlimit(what, (limit, limit))


def passes(runner: str, test: str, *, other_user: bool) -> bool:
    """Run one test; True when its process said so, once, and in time."""
    read_end, write_end = os.pipe()
    argv = ["/usr/bin/python3", "-I", "-S", "-B", "-c", runner, str(TREE), test, str(write_end)]
    who = CANDIDATE_ID if other_user else None
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd=TREE,
        pass_fds=[write_end],
        preexec_fn=restrain,
        start_new_session=True,
        user=who,
        group=who,
        extra_groups=[] if other_user else None,
    )
    os.close(write_end)
    try:
        with suppress(subprocess.TimeoutExpired):
            child.wait(TEST_S)
        end(child, other_user=other_user)
        os.set_blocking(read_end, False)
        with suppress(BlockingIOError):
            return os.read(read_end, 1000) == b'{"passed": true}\n' and child.returncode == 0
        return False
    finally:
        os.close(read_end)


def end(child: "subprocess.Popen[bytes]", *, other_user: bool) -> None:
    """Kill a test's process and whatever it left behind."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if other_user:
        killer = os.fork()
        if killer == 0:
            with suppress(OSError):
                os.setresgid(CANDIDATE_ID, CANDIDATE_ID, CANDIDATE_ID)
                os.setresuid(CANDIDATE_ID, CANDIDATE_ID, CANDIDATE_ID)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(killer, 0)


def write_reward(reward: int) -> None:
    """Write the reward as a new file of ours."""
    for name in ("reward.json", "reward.txt"):
        (LOGS / name).unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(LOGS / "reward.json", flags, 0o600), "w") as stream:
        json.dump({"reward": reward}, stream)


if __name__ == "__main__":
    sys.exit(main())
