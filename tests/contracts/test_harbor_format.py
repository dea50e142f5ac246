"""The rest of Harbor's format: what each field becomes, which files count, and the table that says so."""

import re
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.benchmarks.harbor_fields import field_paths
from adapters.benchmarks.ignore_rules import is_ignored, parse_rules
from domain.errors import TaskError
from domain.records.archive import paths, read_file
from domain.records.task import CollectHook, McpServer, NetworkMode, NetworkPolicy, Task, VerifierMode

FIELDS = Path("adapters/benchmarks/FIELDS.md")
ROW = re.compile(r"^\| (?P<field>[^|]+) \| (?P<answer>[^|]+) \| `(?P<test>[^`|]+)` \|$", re.MULTILINE)
FULL = """schema_version = "1.4"
artifacts = ["/app"]
multi_step_reward_strategy = "final"
[task]
name = "t/steps"
[agent]
timeout_sec = 30
user = "agent"
network_mode = "no-network"
[verifier]
timeout_sec = 44
user = "root"
env = { A = "1", B = "${HOST}" }
[[verifier.collect]]
command = "dump"
user = 0
[environment]
gpu_types = ["h100"]
skills_dir = "/skills"
[environment.healthcheck]
command = "true"
[[environment.mcp_servers]]
name = "m"
transport = "http"
url = "http://m/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }
[[steps]]
name = "one"
min_reward = 0.5
artifacts = [{ source = "/data", exclude = ["*.o"] }]
[[steps]]
name = "two"
min_reward = { reward = 1, style = 0.5 }
[steps.agent]
timeout_sec = 5
[steps.verifier]
timeout_sec = 6
env = { A = "2" }
environment_mode = "shared"
[steps.healthcheck]
command = "ready"
"""


def write(directory: Path, toml: str, files: dict[str, str | bytes]) -> Path:
    """Write a task; ``files`` come beside ``task.toml`` and a Dockerfile."""
    given: dict[str, str | bytes] = {"task.toml": toml, "environment/Dockerfile": "FROM x\n", **files}
    for name, content in given.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def read(directory: Path) -> tuple[Task, bytes]:
    """Return the only task and its archive."""
    (found,) = HarborTaskSource().read(str(directory), host_runnable=True)
    return found


PLAIN: dict[str, str | bytes] = {"instruction.md": "Do it.\n", "tests/test.sh": "true\n"}
MINIMAL = '[task]\nname = "t/one"\n[metadata]\nhost_runnable = true\n'
STEPS: dict[str, str | bytes] = {
    "tests/test.sh": "shared\n",
    "steps/one/instruction.md": "# canary\nFirst.\n",
    "steps/two/instruction.md": "Second.\n",
    "steps/two/tests/test.sh": "own\n",
}


def test_steps_inherit_and_override(tmp_path: Path) -> None:
    """What a step leaves open is the task's: its verifier's time limit too, which Harbor replaces by 600 s."""
    task, _ = read(write(tmp_path / "task", FULL, STEPS))
    one, two = task.steps
    assert (one.instruction, two.instruction, task.instruction) == ("First.\n", "Second.\n", "First.\n")
    assert (one.agent.timeout_s, two.agent.timeout_s, two.agent.user) == (30.0, 5.0, "agent")
    assert (one.verifier.timeout_s, two.verifier.timeout_s) == (44.0, 6.0)
    assert (dict(one.verifier.env), dict(two.verifier.env)) == ({"A": "1", "B": "${HOST}"}, {"A": "2", "B": "${HOST}"})
    assert (dict(one.min_reward), dict(two.min_reward)) == ({"reward": 0.5}, {"reward": 1.0, "style": 0.5})
    assert [artifact.source for artifact in one.artifacts] == ["/app", "/data"]
    assert (one.artifacts[1].exclude, two.healthcheck and two.healthcheck.command) == (("*.o",), "ready")
    assert (one.verifier_mode, two.verifier_mode) == (VerifierMode.SEPARATE, VerifierMode.SHARED)
    assert one.collect == (CollectHook(command="dump", user="0"),)


def test_environment_tools_and_networks(tmp_path: Path) -> None:
    """Tool servers, skills, healthcheck and the networks of phases arrive in the record."""
    task, _ = read(write(tmp_path / "task", FULL, STEPS))
    header = {"Authorization": "Bearer ${TOKEN}"}
    server = McpServer(name="m", transport="streamable-http", url="http://m/mcp", headers=header)
    assert (task.environment.mcp_servers, task.environment.skills_dir) == ((server,), "/skills")
    assert (task.environment.gpu_types, task.environment.healthcheck is not None) == (("h100",), True)
    assert task.agent_network == NetworkPolicy(mode=NetworkMode.NO_NETWORK)
    assert task.verifier_network is None, "no network unless the verifier asks for one"


def test_verifier_images(tmp_path: Path) -> None:
    """A Dockerfile among the tests, or an image of the verifier's own, brings the tests itself."""
    built, _ = read(write(tmp_path / "a", MINIMAL, {**PLAIN, "tests/Dockerfile": "FROM y\n"}))
    named = MINIMAL + '[verifier.environment]\ndocker_image = "v"\ncpus = 2\nnetwork_mode = "public"\n'
    image, _ = read(write(tmp_path / "b", named, PLAIN))
    assert built.bundles_tests
    assert built.verifier_environment is not None
    assert (built.verifier_environment.context, built.verifier_environment.dockerfile) == ("tests", True)
    assert image.bundles_tests
    assert image.verifier_environment is not None
    assert (image.verifier_environment.docker_image, image.verifier_environment.cpus) == ("v", 2.0)
    assert image.verifier_network == NetworkPolicy(mode=NetworkMode.PUBLIC)


IMAGED = '[task]\nname = "t/one"\n[environment]\ndocker_image = "a"\n'
COPIES = "FROM y\nCOPY . /tests/\n"
BROUGHT: dict[str, tuple[str, dict[str, str | bytes]]] = {
    "an image of its own": (IMAGED + '[verifier.environment]\ndocker_image = "v"\n', {}),
    "an image that has them": (IMAGED, {"tests/Dockerfile": "FROM y\nCOPY data /data\n"}),
    "an image that makes the script": (IMAGED, {"tests/Dockerfile": COPIES + "RUN mv /tests/run.sh /tests/test.sh\n"}),
    "an image of the steps": (
        IMAGED + '[verifier.environment]\ndocker_image = "v"\n[[steps]]\nname = "one"\n',
        {"steps/one/instruction.md": "x"},
    ),
}


@pytest.mark.parametrize(("toml", "files"), BROUGHT.values(), ids=BROUGHT.keys())
def test_a_verifiers_image_may_bring_the_script(tmp_path: Path, toml: str, files: dict[str, str | bytes]) -> None:
    """The format lets ``tests/test.sh`` be absent there; nobody but the image could say that it is missing."""
    task = write(tmp_path / "task", toml, {"instruction.md": "Do it.\n", **files})
    ((found, _),) = HarborTaskSource().read(str(task), host_runnable=False)
    assert found.bundles_tests


UNTESTED: dict[str, tuple[str, dict[str, str | bytes]]] = {
    "tests/test.sh: missing": (IMAGED, {}),
    "tests/test.sh: missing, and the Dockerfile beside it makes none": (IMAGED, {"tests/Dockerfile": COPIES}),
    "tests/test.sh: missing, and host_runnable": (MINIMAL, {"tests/Dockerfile": "FROM y\n"}),
    "steps/one/tests/test.sh: missing": (IMAGED + '[[steps]]\nname = "one"\n', {"steps/one/instruction.md": "x"}),
    "steps/one/tests/test.sh: missing, and the Dockerfile": (
        IMAGED + '[[steps]]\nname = "one"\n',
        {"steps/one/instruction.md": "x", "steps/one/tests/Dockerfile": COPIES},
    ),
}


@pytest.mark.parametrize(("named", "case"), UNTESTED.items(), ids=UNTESTED.keys())
def test_a_task_that_nothing_could_grade_is_refused(
    tmp_path: Path, named: str, case: tuple[str, dict[str, str | bytes]]
) -> None:
    """Without a script, and without an image that could bring one, every trial would be ungraded."""
    toml, files = case
    task = write(tmp_path / "task", toml, {"instruction.md": "Do it.\n", **files})
    with pytest.raises(TaskError, match=re.escape(named)):
        HarborTaskSource().read(str(task), host_runnable=False)


WRONG_FILES: dict[str, dict[str, str | bytes]] = {
    "tests/test.sh: has CRLF": {"tests/test.sh": b"true\r\n"},
    "instruction.md: starts with a byte order mark": {"instruction.md": b"\xef\xbb\xbfDo it.\n"},
    "tests/run.sh: starts with a byte order mark": {"tests/run.sh": b"\xef\xbb\xbftrue\n"},
    "tests/test.sh: excluded by .harborignore": {"tests/.harborignore": "*.sh\n"},
    "solution/solve.sh: excluded": {"solution/solve.sh": "true\n", "solution/.harborignore": "solve.sh\n"},
    "environment/.harborignore has no effect": {"environment/.harborignore": "x\n"},
    "steps/three: task.toml declares no step": {"steps/three/instruction.md": "x\n"},
    "trajectory.json: no engine": {"trajectory.json": "{}"},
}


@pytest.mark.parametrize(("named", "files"), WRONG_FILES.items(), ids=WRONG_FILES.keys())
def test_wrong_files_are_named(tmp_path: Path, named: str, files: dict[str, str | bytes]) -> None:
    """Line ends, marks, rules that exclude what is needed, and files that nothing would read."""
    with pytest.raises(TaskError, match=re.escape(named)):
        read(write(tmp_path / "task", MINIMAL, {**PLAIN, **files}))


def test_a_byte_order_mark_in_the_configuration_is_named(tmp_path: Path) -> None:
    """It is named as what it is, not as broken TOML."""
    with pytest.raises(TaskError, match=re.escape("task.toml: starts with a byte order mark")):
        read(write(tmp_path / "task", "\ufeff" + MINIMAL, PLAIN))


def test_a_step_without_an_instruction_is_named(tmp_path: Path) -> None:
    """Every declared step has its directory."""
    with pytest.raises(TaskError, match=re.escape("steps/two/instruction.md: missing")):
        read(write(tmp_path / "task", FULL, {**STEPS, "steps/two/instruction.md": "# canary\n"}))


def test_ignored_files_are_no_part_of_the_task(tmp_path: Path) -> None:
    """They change neither archive nor digest; the rules themselves are not in it either."""
    plain, _ = read(write(tmp_path / "a", MINIMAL, PLAIN))
    rules: dict[str, str | bytes] = {"tests/.harborignore": "*.tmp\n!keep.tmp\n/cache/\n", "tests/keep.tmp": "k"}
    noise: dict[str, str | bytes] = {"tests/x.tmp": "x", "tests/cache/y": "y"}
    with_rules, archive = read(write(tmp_path / "b", MINIMAL, {**PLAIN, **rules, **noise}))
    assert "tests/keep.tmp" in paths(archive)
    assert [name for name in paths(archive) if name in noise or name.endswith("ignore")] == []
    without_noise, _ = read(write(tmp_path / "c", MINIMAL, {**PLAIN, **rules}))
    assert with_rules.digest == without_noise.digest != plain.digest


@pytest.mark.parametrize(
    ("rules", "path", "ignored"),
    [
        ("*.o", "tests/a/b.o", True),
        ("/a", "tests/b/a", False),
        ("a/**/z", "tests/a/b/c/z", True),
        ("a/", "tests/a", False),
        ("a/", "tests/a/b", True),
        ("a\n!a/b", "tests/a/b", True),
        ("*\n!k", "tests/k", False),
        ("[ab].txt", "tests/b.txt", True),
        ("[!ab].txt", "tests/b.txt", False),
        ("# c\n\n?.x", "tests/d.x", True),
        ("*", "environment/x", False),
    ],
)
def test_ignore_rules_are_those_of_git(rules: str, path: str, *, ignored: bool) -> None:
    """Patterns, anchors, directories, negations; and nothing outside tests and solution."""
    assert is_ignored(path, parse_rules(rules, "tests" if path.startswith("tests") else "")) is ignored


def test_the_table_names_every_field_and_real_tests() -> None:
    """The table has one row for each field of the schema, and each row's test exists."""
    rows = list(ROW.finditer(FIELDS.read_text(encoding="utf-8")))
    fields = [row["field"].strip("`") for row in rows if row["field"].startswith("`")]
    assert sorted(fields) == sorted(field_paths())
    assert {row["answer"].split()[0].rstrip(":,;") for row in rows} == {"read", "refused", "ours"}
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path("tests").rglob("test_*.py"))
    assert sorted({row["test"] for row in rows if f"def {row['test']}(" not in tests}) == []


def test_the_archive_of_a_step_has_its_own_tests(tmp_path: Path) -> None:
    """A step's test script replaces the shared one of the same name; the rest of the task stays."""
    from domain.lifecycle.step_view import step_archive

    task, archive = read(write(tmp_path / "task", FULL, {**STEPS, "tests/data.txt": "d"}))
    one, two = (step_archive(archive, step) for step in task.steps)
    assert (read_file(one, "tests/test.sh"), read_file(two, "tests/test.sh")) == (b"shared\n", b"own\n")
    assert read_file(two, "tests/data.txt") == b"d"
    assert [name for name in paths(two) if name.startswith("steps/")] == []
