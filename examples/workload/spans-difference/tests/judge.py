"""Grades a library from outside: it never runs in this process, and this process alone knows what is expected.

A small runner of the standard library instead of pytest, because pytest runs tests and library in one process: there a
library can find the expected values in its caller's frame, rewrite outcomes by a hook, or end the process with code 0.
Here each group of cases goes to a process of its own, as another user, with nothing of the agent's on disk: the sources
travel over its standard input as text. Back comes one line of JSON for each case, which is compared by value and type.
Every case must have been run, or there is no grade at all.
"""

import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

TESTS, APP, LOGS = Path("/tests"), Path("/app"), Path("/logs/verifier")
PACKAGE = "spans"
CANDIDATE_ID = 61001
START_S, CASE_S, TOTAL_S = 3.0, 2.0, 30.0
LAST_WORD_S = 0.1  # a process that the candidate left behind may hold its end of the pipe for ever
MAX_FILES, MAX_SOURCE_BYTES, MAX_REPLY_BYTES = 64, 400_000, 100_000
MEMORY_BYTES, PROCESSES = 256 << 20, 32
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38


def main() -> int:
    suite = json.loads((TESTS / "cases.json").read_text(encoding="utf-8"))
    program = (TESTS / "worker.py").read_text(encoding="utf-8")
    operations = (TESTS / "operations.py").read_text(encoding="utf-8")
    sources = read_sources(APP / PACKAGE)
    other_user = may_change_user()
    close_doors(other_user=other_user)
    ran = passed = 0
    late = False
    started = time.monotonic()
    for group in suite["groups"]:
        give = {"sources": sources, "operations": operations}
        # A candidate that was late once is not asked again: what is left of its cases is wrong, and counted.
        replies = [] if late else ask(program, give, group["cases"], other_user, started + TOTAL_S)
        late = late or (len(replies) < len(group["cases"]) and time.monotonic() - started > CASE_S)
        good = sum(same(reply, case["want"]) for reply, case in zip(replies, group["cases"]))
        ran, passed = ran + len(group["cases"]), passed + good
        print(f"{group['name']}: {good} of {len(group['cases'])}")
    if ran != suite["n_cases"] or ran == 0:
        print(f"{ran} cases instead of {suite['n_cases']}: no grade")
        return 3
    write_reward(1 if passed == ran else 0)
    return 0


def read_sources(package: Path) -> dict:
    """Return the package's modules as text by dotted name; only plain .py files count, and not too many of them."""
    sources, size = {}, 0
    for folder, folders, files in os.walk(package, followlinks=False):
        folders[:] = sorted(name for name in folders if name.isidentifier())
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix != ".py" or not path.stem.isidentifier() or not stat.S_ISREG(path.lstat().st_mode):
                continue
            size += path.lstat().st_size
            if len(sources) >= MAX_FILES or size > MAX_SOURCE_BYTES:
                print("too many sources: the rest is not read")
                return sources
            parts = [package.name, *path.relative_to(package).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            sources[module] = [path.read_bytes().decode("utf-8", "replace"), is_package]
    return sources


def may_change_user() -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        probe = subprocess.run(["/bin/true"], user=CANDIDATE_ID, group=CANDIDATE_ID, extra_groups=[], env={})
        return probe.returncode == 0
    return False


def prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def close_doors(*, other_user: bool) -> None:
    """Leave the candidate nothing to read, to write or to trace.

    Without a user of its own (a pod that may not change users) permissions do not hold it. Then what it could read or
    put in the reward's place is removed from this box, which was made for one grading; the files are in memory.
    """
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not other_user and Path(__file__) == TESTS / "judge.py":
        for folder in (TESTS, APP, Path("/logs/artifacts"), Path("/solution")):
            for path in folder.iterdir() if folder.is_dir() else ():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in (TESTS, LOGS, Path("/solution")):
        with suppress(OSError):
            folder.chmod(0o700)
    for folder in (*Path("/").iterdir(), Path("/dev/shm"), Path("/home/agent"), *Path("/var").iterdir()):
        with suppress(OSError):
            mode = folder.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IWOTH:
                folder.chmod(stat.S_IMODE(mode) & ~stat.S_IWOTH)


def restrain() -> None:
    """Bound the candidate's process: it can write no byte into any file, and cannot gain privileges."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for what, limit in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CPU, 20),
    ):
        resource.setrlimit(what, (limit, limit))


def ask(program: str, give: dict, cases: list, other_user: bool, deadline: float) -> list:
    """Return the replies of one candidate process, at most one for each case; fewer when it ended or was late."""
    read_end, write_end = os.pipe()
    ids = {"user": CANDIDATE_ID, "group": CANDIDATE_ID, "extra_groups": []} if other_user else {}
    questions = [json.dumps({"do": case["do"], "give": case["give"]}) for case in cases]
    message = "\n".join([json.dumps(give), *questions]).encode()
    try:
        child = subprocess.Popen(
            ["/usr/bin/python3", "-I", "-S", "-B", "-c", program, str(write_end)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={}, cwd="/", pass_fds=[write_end], preexec_fn=restrain, start_new_session=True, **ids,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    finally:
        os.close(write_end)
    try:
        feed(child, message, deadline)
        return read_replies(read_end, len(cases), deadline)
    finally:
        os.close(read_end)
        end(child, other_user)


def feed(child: subprocess.Popen, message: bytes, deadline: float) -> None:
    """Write all of the questions; a candidate that does not read is not waited for."""
    descriptor = child.stdin.fileno()
    os.set_blocking(descriptor, False)
    until = min(deadline, time.monotonic() + START_S)
    with selectors.DefaultSelector() as selector, suppress(OSError):
        selector.register(descriptor, selectors.EVENT_WRITE)
        while message and time.monotonic() < until:
            if selector.select(0.2):
                message = message[os.write(descriptor, message) :]
    with suppress(OSError):
        child.stdin.close()


def read_replies(descriptor: int, n_cases: int, deadline: float) -> list:
    """Read lines; this process's clock alone says what is late."""
    replies, text = [], b""
    until = min(deadline, time.monotonic() + START_S)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(replies) <= n_cases and (left := until - time.monotonic()) > 0:
            if not selector.select(left):
                break
            chunk = os.read(descriptor, 65536)
            text += chunk
            *lines, text = text.split(b"\n")
            replies += [decoded(line) for line in lines]
            if not chunk or len(text) > MAX_REPLY_BYTES:
                break
            if lines:
                wait = CASE_S if len(replies) < n_cases else LAST_WORD_S
                until = min(deadline, time.monotonic() + wait)
    return replies if len(replies) <= n_cases else []  # more answers than questions are no answers


def decoded(line: bytes) -> object:
    """Return what a reply says: data only, without NaN or doubled keys; a refused line equals nothing."""
    def refuse(*_: object) -> object:
        raise ValueError("refused")

    def once(pairs: list) -> dict:
        return dict(pairs) if len(dict(pairs)) == len(pairs) else refuse()

    try:
        if len(line) <= MAX_REPLY_BYTES:
            return json.loads(line.decode(), parse_constant=refuse, object_pairs_hook=once)
    except (ValueError, RecursionError):
        pass
    return refuse


def same(reply: object, want: object) -> bool:
    """Compare by value and type: 1, 1.0, True and "1" are four different things."""
    return type(reply) is type(want) and json.dumps(reply, sort_keys=True) == json.dumps(want, sort_keys=True)


def end(child: subprocess.Popen, other_user: bool) -> None:
    """Kill the candidate and whatever it started, before anything else happens."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(100):
        if other_user and (killer := os.fork()) == 0:
            with suppress(OSError):
                os.setresgid(CANDIDATE_ID, CANDIDATE_ID, CANDIDATE_ID)
                os.setresuid(CANDIDATE_ID, CANDIDATE_ID, CANDIDATE_ID)
                os.kill(-1, signal.SIGKILL)  # all at once, faster than they can fork
            os._exit(0)
        elif other_user:
            os.waitpid(killer, 0)
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_left_over(pid, other_user)]
        if not left:
            return
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    raise RuntimeError("processes of the candidate cannot be ended")


def is_left_over(pid: int, other_user: bool) -> bool:
    with suppress(OSError):
        if other_user:
            return os.stat(f"/proc/{pid}").st_uid == CANDIDATE_ID
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid()  # we are the reaper of its orphans
    return False


def write_reward(reward: int) -> None:
    for name in ("reward.json", "reward.txt"):
        path = LOGS / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(LOGS / "reward.json", flags, 0o600), "w") as stream:
        json.dump({"reward": reward}, stream)


if __name__ == "__main__":
    sys.exit(main())
