"""Harbor's task format is read strictly: honoured, or refused by file and field."""

import os
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.benchmarks.instructions import strip_canary
from adapters.sandboxes.removal import remove_box
from domain.errors import ConfigurationError, TaskError
from domain.records.archive import paths
from domain.records.names import parse_reference
from domain.records.task import Artifact, NetworkMode, Task

MINIMAL = '[task]\nname = "t/one"\n'
SOURCE = HarborTaskSource()


def write(directory: Path, toml: str = MINIMAL, **files: str) -> Path:
    """Write a task with a Dockerfile, an instruction and a test; ``files`` add to it (``__`` is ``/``)."""
    given = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM debian\n",
        "tests/test.sh": "true\n",
        "solution/solve.sh": "true\n",
        **{name.replace("__", "/"): content for name, content in files.items()},
    }
    for name, content in given.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def read_one(directory: Path, *, host_runnable: bool = False) -> Task:
    """Return the only task."""
    ((task, _),) = SOURCE.read(str(directory), host_runnable=host_runnable)
    return task


def test_every_field_has_its_place(tmp_path: Path) -> None:
    """Names, limits, users, variables and artifacts arrive in the record."""
    toml = """
schema_version = "1.4"
artifacts = ["out.txt", { source = "/data", destination = "d", exclude = ["*.o"] }]
[task]
name = "org/full"
keywords = ["a"]
[metadata]
family = "f"
difficulty = "easy"
[agent]
timeout_sec = 30
user = 1001
[verifier]
timeout_sec = 12.5
user = "root"
environment_mode = "separate"
env = { A = "1", B = "${HOST:-two}" }
[solution]
env = { C = "3" }
[environment]
cpus = 2
memory = "2G"
storage_mb = 100
gpus = 0
workdir = "/work"
network_mode = "no-network"
env = { D = "${X:-}" }
"""
    task = read_one(write(tmp_path, toml))
    assert (task.name, task.family, task.instruction) == ("org/full", "f", "Do it.\n")
    assert (task.agent.timeout_s, task.agent.user) == (30.0, "1001")
    assert (task.verifier.timeout_s, task.verifier.user) == (12.5, "root")
    assert (dict(task.verifier.env), dict(task.solution_env)) == ({"A": "1", "B": "${HOST:-two}"}, {"C": "3"})
    environment = task.environment
    assert (environment.cpus, environment.memory_mb, environment.storage_mb, environment.gpus) == (2.0, 2048, 100, 0)
    assert (environment.workdir, environment.network_mode) == ("/work", NetworkMode.NO_NETWORK)
    assert (environment.dockerfile, environment.host_runnable, dict(environment.env)) == (True, False, {"D": "${X:-}"})
    wanted = Artifact(source="/data", destination="d", exclude=("*.o",))
    assert task.artifacts == (Artifact(source="out.txt"), wanted)


def test_host_runnable_by_metadata_or_argument(tmp_path: Path) -> None:
    """Either says that a box without the image will do; the image's WORKDIR still holds."""
    files = {"environment__Dockerfile": "FROM x\nWORKDIR /one\nRUN y\nWORKDIR /two\n", "environment__files__g": "g"}
    toml = MINIMAL + '[metadata]\nhost_runnable = true\nhost_files = "environment/files"\n'
    marked = read_one(write(tmp_path / "a", toml, **files)).environment
    assert (marked.host_runnable, marked.host_files, marked.workdir) == (True, "environment/files", "/two")
    assert read_one(write(tmp_path / "b"), host_runnable=True).environment.host_runnable


BAD = {
    "environment.memroy_mb": "[environment]\nmemroy_mb = 1",
    "verifer": "[verifer]\ntimeout_sec = 1",
    "environment.memory": "[environment]\nmemory = 8192",
    "environment.memory_mb": '[environment]\nmemory_mb = "2G"',
    "agent.timeout_sec": "[agent]\ntimeout_sec = true",
    "agent.user": '[agent]\nuser = "a b"',
    "environment.cpus": "[environment]\ncpus = nan",
    "environment.workdir": '[environment]\nworkdir = "app"',
    "environment": '[environment]\nworkdir = "/a/../b"',
    "environment: ": '[environment]\nnetwork_mode = "allowlist"',
    "environment.network_mode": '[environment]\nnetwork_mode = "none"',
    "schema_version": 'schema_version = "2.0"',
    "steps.0.nam": "[[steps]]\nnam = 'a'",
    "steps.0.name": "[[steps]]\nname = 'a/b'",
    "steps: ": "[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'",
    "multi_step_reward_strategy": 'multi_step_reward_strategy = "mean"',
    "environment.memroy_mb: unknown field (did you mean 'memory_mb'?)": "[environment]\nmemroy_mb = 1",
    "environment.collect: unknown field (it belongs to steps[].verifier or verifier)": "[environment]\ncollect = []",
    "environment.env.D": '[environment.env]\nD = "Bearer ${KEY}"',
    "memory says 2048 MiB": '[environment]\nmemory = "2G"\nmemory_mb = 1024',
    "allow_internet": '[environment]\nallow_internet = false\nnetwork_mode = "public"',
    "environment.allowed_hosts": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["https://a.b/c"]',
    "environment.tpu": '[environment]\ntpu = { type = "v6e", topology = "2x4" }',
    "headers: Authorization": '[[environment.mcp_servers]]\nname = "m"\nurl = "http://m"\n'
    'headers = { Authorization = "Bearer abc" }',
    "artifacts: '/app' and '/data' come to lie": 'artifacts = ["/app", { source = "/data", destination = "app" }]',
    "artifacts.service": 'artifacts = [{ source = "/d", service = "db" }]',
    "verifier.collect.service": '[[verifier.collect]]\ncommand = "true"\nservice = "db"',
    "verifier.network_mode": '[verifier]\nenvironment_mode = "shared"\nnetwork_mode = "no-network"',
    "environment.os": '[environment]\nos = "windows"',
    "environment.mcp_servers": '[[environment.mcp_servers]]\nname = "m"',
    "environment.healthcheck.retries": '[environment.healthcheck]\ncommand = "true"\nretries = 0',
    "metadata.host_runnable": '[metadata]\nhost_runnable = "yes"',
    "metadata.host_files": '[metadata]\nhost_files = "environment/nothing"',
    "metadata.family": "[metadata]\nfamily = 1",
    "metadata: ": "[metadata]\nwhen = 2026-01-01",
    "artifacts": 'artifacts = [{ source = "../x" }]',
    "artifacts.0": 'artifacts = ["../x"]',
    "environment.memory: ": '[environment]\nmemory = "' + "9" * 400 + 'G"',
    "environment.memory_mb: Input": "[environment]\nmemory_mb = 99999999999999999999",
    "agent.timeout_sec: Input": "[agent]\ntimeout_sec = 1e300",
    "environment.env.A: holds a NUL": '[environment]\nenv = { A = "\\u0000" }',
    "nested too deeply": "[metadata]\n" + ".".join(["a"] * 3000) + " = 1",
    "task.toml: nested too deeply": "[metadata]\na = " + "[" * 3000 + "]" * 3000,
    "not valid TOML": "[environment",
    "not valid TOML: Exceeds": "[environment]\ncpus = " + "9" * 5000,
}


@pytest.mark.parametrize(("named", "toml"), BAD.items(), ids=BAD.keys())
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, named: str, toml: str) -> None:
    """Unknown, mistyped and unsupported fields are errors that say where."""
    top, _, rest = toml.partition("\n") if not toml.startswith("[") else ("", "", toml)
    text = f"{top}\n{MINIMAL}{rest}" if top else MINIMAL + toml
    with pytest.raises(TaskError) as caught:
        SOURCE.read(str(write(tmp_path / "bad", text)), host_runnable=False)
    assert "bad/task.toml" in str(caught.value)
    assert named in str(caught.value)


def test_names_end_where_they_seem_to_end(tmp_path: Path) -> None:
    """A line end after a name is part of it, and refused."""
    with pytest.raises(TaskError, match=r"task\.name"):
        SOURCE.read(str(write(tmp_path / "bad", '[task]\nname = "t/one\\n"\n')), host_runnable=False)
    with pytest.raises(ConfigurationError):
        parse_reference("team/name@v1\n", field="reference")


@pytest.mark.parametrize(
    ("path", "content"),
    [("instruction.md", None), ("instruction.md", b"\xff"), ("tests/test.sh", None), ("environment/Dockerfile", None)],
)
def test_a_missing_file_is_named(tmp_path: Path, path: str, content: bytes | None) -> None:
    """A task without instruction, test or environment is an error, not a shorter task set."""
    task = write(tmp_path / "task")
    (task / path).unlink()
    if content is not None:
        (task / path).write_bytes(content)
    with pytest.raises(TaskError, match=path.split("/", maxsplit=1)[0]):
        SOURCE.read(str(task), host_runnable=False)


def test_all_bad_tasks_are_reported_at_once_and_none_is_dropped(tmp_path: Path) -> None:
    """One error names every bad task of a directory; good ones do not hide it."""
    write(tmp_path / "good")
    write(tmp_path / "bad1", MINIMAL + "x = 1")
    (tmp_path / "bad2").mkdir()
    with pytest.raises(TaskError) as caught:
        SOURCE.read(str(tmp_path), host_runnable=False)
    assert "bad1/task.toml: task.x" in str(caught.value)
    assert "bad2/task.toml: missing" in str(caught.value)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    """A name means one task."""
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(TaskError, match="t/one"):
        SOURCE.read(str(tmp_path), host_runnable=False)


def test_tasks_come_in_order_of_name(tmp_path: Path) -> None:
    """The order does not depend on the file system."""
    for number in (3, 1, 2):
        write(tmp_path / f"d{9 - number}", f'[task]\nname = "t/{number}"\n')
    assert [task.name for task, _ in SOURCE.read(str(tmp_path), host_runnable=False)] == ["t/1", "t/2", "t/3"]


def test_digest_and_archive_follow_path_bit_and_content_alone(tmp_path: Path) -> None:
    """Time and place do not count; the executable bit, a name and a byte do."""
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    os.utime(second / "task.toml", (1, 1))
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "x.pyc").write_bytes(b"x")
    ((one, one_tar),) = SOURCE.read(str(first), host_runnable=False)
    ((two, two_tar),) = SOURCE.read(str(second), host_runnable=False)
    assert (one, one_tar) == (two, two_tar)
    assert paths(one_tar) == (
        "environment/Dockerfile",
        "instruction.md",
        "solution/solve.sh",
        "task.toml",
        "tests/test.sh",
    )
    (second / "tests" / "test.sh").chmod(0o755)
    executable = read_one(second)
    (second / "tests" / "test.sh").write_text("false\n")
    assert len({one.digest, executable.digest, read_one(second).digest}) == 3


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "tests/../../outside", "nowhere"])
def test_a_link_must_stay_in_the_task(tmp_path: Path, target: str) -> None:
    """Links that leave or lead nowhere are refused by name."""
    (tmp_path / "outside").write_text("secret")
    task = write(tmp_path / "task")
    (task / "link").symlink_to(target)
    with pytest.raises(TaskError, match="link"):
        SOURCE.read(str(task), host_runnable=False)


def test_a_link_inside_is_kept(tmp_path: Path) -> None:
    """A link is a link, with its text in the digest."""
    task = write(tmp_path / "task")
    plain = read_one(task).digest
    (task / "tests" / "again.sh").symlink_to("test.sh")
    assert read_one(task).digest != plain


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """Reading it would block."""
    task = write(tmp_path / "task")
    os.mkfifo(task / "tests" / "pipe")
    with pytest.raises(TaskError, match="neither a file nor a directory"):
        SOURCE.read(str(task), host_runnable=False)
    (task / "task.toml").unlink()
    os.mkfifo(task / "task.toml")
    with pytest.raises(TaskError, match=r"task.toml: no file"):
        SOURCE.read(str(task), host_runnable=False)


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    """A name that is no text, a file without an end, and directories deeper than a stack or a path."""
    task = write(tmp_path / "name")
    Path(os.fsdecode(os.fsencode(task) + b"/tests/\xff")).touch()
    with pytest.raises(TaskError, match=r"tests/\\xff: its name is not UTF-8"):
        SOURCE.read(str(task), host_runnable=False)
    task = write(tmp_path / "sparse")
    with (task / "tests" / "data").open("wb") as stream:
        stream.truncate((1 << 30) + 1)
    with pytest.raises(TaskError, match=r"tests/data: larger than"):
        SOURCE.read(str(task), host_runnable=False)
    task = write(tmp_path / "deep")
    levels = [os.open(task / "tests", os.O_RDONLY)]
    for _ in range(2100):
        os.mkdir("d", dir_fd=levels[-1])
        levels.append(os.open("d", os.O_RDONLY, dir_fd=levels[-1]))
        os.close(levels[-2])
    os.close(levels[-1])
    with pytest.raises(TaskError, match="cannot be read: File name too long"):
        SOURCE.read(str(task), host_runnable=False)
    remove_box(task)


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("<!-- canary GUID 1 -->\n\nDo it.\n", "Do it.\n"),
        ("# CANARY x\n# canary y\n\n\nDo it.\n", "Do it.\n"),
        ("# Title\ncanary\n", "# Title\ncanary\n"),
        ("\nDo it.\n", "\nDo it.\n"),
    ],
)
def test_canary_lines_are_stripped(text: str, stripped: str) -> None:
    """Leading canaries and the blank lines after them go; all else stays."""
    assert strip_canary(text) == stripped
