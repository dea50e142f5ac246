"""The script verifier: three outcomes, a fresh box, nothing believed but a clean reward file."""

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from domain.ports import Limits
from domain.records.archive import pack_files, read_file
from domain.records.assessment import AssessmentOutcome
from domain.records.task import Phase
from domain.records.trial import TrialOutcome
from tests.contracts.sandboxes import make_case
from tests.contracts.verifying import Bench, make_task
from tests.fakes.sandbox import ScriptedSandbox

SCORED, UNGRADED = AssessmentOutcome.SCORED, AssessmentOutcome.UNGRADED
MEMORY_TEST = "# synth-memory: reward {}\n"


@pytest.fixture(params=["memory", "scripted"])
async def light(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A verifier over boxes without processes."""
    return Bench(sandbox=(await make_case(request.param, tmp_path / "scratch")).sandbox)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """A verifier over local boxes."""
    return Bench(sandbox=(await make_case("local", tmp_path / "scratch")).sandbox)


@pytest.mark.parametrize(("written", "reward"), [("1", 1.0), ("0.25", 0.25), ("nan", None), ("yes", None)])
async def test_a_no_op_verifier_needs_no_process(light: Bench, written: str, reward: float | None) -> None:
    """A memory box writes the reward that the script declares; it is read as strictly as any other."""
    found = await light.assess(make_task(light.store, MEMORY_TEST.format(written)), None)
    assert (found.outcome, found.reward) == (UNGRADED if reward is None else SCORED, reward)


async def test_missing_artifacts_are_zero_without_a_box(light: Bench) -> None:
    """What the agent did not leave is the agent's fault, decided before any script runs."""
    found = await light.assess(make_task(light.store, MEMORY_TEST.format(1)), None, missing_artifacts=("/app/x",))
    assert (found.outcome, found.reward, found.tampered) == (SCORED, 0.0, False)
    assert "/app/x" in found.reason


@pytest.mark.parametrize("outcome", [TrialOutcome.INFRA_ERROR, TrialOutcome.CANCELLED])
async def test_what_the_platform_ended_is_not_assessed(light: Bench, outcome: TrialOutcome) -> None:
    """Infrastructure is never a zero."""
    found = await light.assess(make_task(light.store, MEMORY_TEST.format(1)), None, outcome=outcome)
    assert (found.outcome, found.reward) == (UNGRADED, None)


async def test_a_box_that_infrastructure_took_is_made_again() -> None:
    """A verdict is worth more than one box; the work is the agent's and does not change."""
    bench = Bench(sandbox=ScriptedSandbox(n_failing_creates=2))
    found = await bench.assess(make_task(bench.store, MEMORY_TEST.format(1)), None)
    assert (found.outcome, found.reward) == (SCORED, 1.0)


async def test_no_box_is_ungraded() -> None:
    """A sandbox that fails leaves the trial without a reward."""
    bench = Bench(sandbox=ScriptedSandbox(n_failing_creates=3))
    found = await bench.assess(make_task(bench.store), None)
    assert (found.outcome, found.reward) == (UNGRADED, None)
    assert "fire" in found.reason


async def test_identity_follows_tests_and_settings(light: Bench) -> None:
    """The same tests judge alike whatever the instruction; other tests or settings are another assessor."""
    verifier = light.verifier()
    one = verifier.identity(make_task(light.store))
    assert one == verifier.identity(make_task(light.store, extra={"solution/solve.sh": b"true"}))
    assert one != verifier.identity(make_task(light.store, "echo 1"))
    assert one != verifier.identity(make_task(light.store, phase=Phase(timeout_s=21.0)))
    assert one.startswith("verifier:")
    assert len(one) == len("verifier:") + 12


async def test_right_wrong_and_nothing(bench: Bench) -> None:
    """The right answer is 1, a wrong one and nothing at all are 0, and the log is kept."""
    task = make_task(bench.store)
    right = await bench.assess(task, pack_files({"app/answer.txt": b"42\n"}))
    wrong = await bench.assess(task, pack_files({"app/answer.txt": b"41\n"}))
    nothing = await bench.assess(task, None)
    assert [found.reward for found in (right, wrong, nothing)] == [1.0, 0.0, 0.0]
    assert right.logs is not None
    assert read_file(bench.store.get(right.logs), "test-stdout.txt") == b"checked\n"


UNGRADED_SCRIPTS = {
    "writes nothing": "true",
    "crashes": "exit 3",
    "syntax error": "if [",
    "CRLF": "set -e\r\n",
    "NaN": "echo nan > /logs/verifier/reward.txt",
    "duplicated key": """echo '{"reward":1,"reward":0}' > /logs/verifier/reward.json""",
    "bad json beside good text": "echo 1 > /logs/verifier/reward.txt; echo x > /logs/verifier/reward.json",
    "huge": "head -c 70000 /dev/zero | tr '\\0' 1 > /logs/verifier/reward.txt",
    "sparse and enormous": "truncate -s 800M /logs/verifier/reward.txt",
    "FIFO": "mkfifo /logs/verifier/reward.txt",
    "directory": "mkdir /logs/verifier/reward.json",
    "link": "echo 1 > /tmp/r; ln -s /tmp/r /logs/verifier/reward.txt",
    "link of the directory": "rm -rf /logs/verifier; ln -s /tmp /logs/verifier; echo 1 > /tmp/reward.txt",
    "process limit": "echo 1 > /logs/verifier/reward.txt; while true; do sleep 60 & done",
}


@pytest.mark.parametrize("script", UNGRADED_SCRIPTS.values(), ids=UNGRADED_SCRIPTS.keys())
async def test_a_verifier_that_fails_grades_nothing(tmp_path: Path, script: str) -> None:
    """Crashes, odd files and broken limits are ungraded with a reason."""
    sandbox = (await make_case("local", tmp_path / "scratch")).sandbox
    bench = Bench(sandbox=sandbox, limits=Limits(processes=60))
    found = await bench.assess(make_task(bench.store, script), None)
    assert (found.outcome, found.reward, dict(found.panel)) == (UNGRADED, None, {})
    assert found.reason


async def test_a_time_out_grades_nothing_even_with_a_reward_there(bench: Bench) -> None:
    """What was written before the time-out may be half the truth."""
    script = "echo 1 > /logs/verifier/reward.txt; sleep 60"
    found = await bench.assess(make_task(bench.store, script, phase=Phase(timeout_s=0.5)), None)
    assert found.outcome is UNGRADED
    assert "did not end" in found.reason


async def test_the_exit_code_says_nothing(bench: Bench) -> None:
    """A clean reward file counts whatever the script returns."""
    found = await bench.assess(make_task(bench.store, "echo 0.5 > /logs/verifier/reward.txt; exit 7"), None)
    assert (found.outcome, found.reward) == (SCORED, 0.5)


async def test_the_script_has_its_user_directory_and_environment(bench: Bench) -> None:
    """User, working directory and variables are the task's; nothing else is set."""
    script = 'echo "{\\"reward\\": 1, \\"uid\\": $(id -u), \\"v\\": $V}" > /logs/verifier/reward.json; pwd; env'
    task = make_task(bench.store, script, phase=Phase(timeout_s=20.0, user="agent", env={"V": "7"}))
    found = await bench.assess(task, None)
    assert dict(found.panel) == {"reward": 1.0, "uid": 1000.0, "v": 7.0}
    assert found.logs is not None
    lines = (read_file(bench.store.get(found.logs), "test-stdout.txt") or b"").decode().split("\n")
    names = {line.partition("=")[0] for line in lines[1:] if line}
    assert lines[0] == "/app"
    assert names <= {*("PATH", "HOME", "LANG", "V", "PWD", "SHLVL", "_"), "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE"}


async def test_declared_artifacts_meet_the_files_of_the_image(bench: Bench) -> None:
    """With declared artifacts the host files are there as well; with the whole directory, what was deleted is not."""
    script = "ls /app | wc -l > /logs/verifier/reward.txt"
    given = {"environment/files/given.txt": b"g"}
    outputs = pack_files({"app/answer.txt": b"42"})
    declared = make_task(bench.store, script, artifacts=("answer.txt",), extra=given, host_files="environment/files")
    whole = make_task(bench.store, script, extra=given, host_files="environment/files")
    assert (await bench.assess(declared, outputs)).reward == 2.0
    assert (await bench.assess(whole, outputs)).reward == 1.0


def _outputs(name: str, kind: bytes, link: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("app/answer.txt", tarfile.SYMTYPE, "/tests/expected.txt"),
        ("app/answer.txt", tarfile.SYMTYPE, "../tests/expected.txt"),
        ("app/answer.txt", tarfile.SYMTYPE, "/proc/self/environ"),
        ("app/answer.txt", tarfile.LNKTYPE, "tests/expected.txt"),
        ("app/../tests/test.sh", tarfile.REGTYPE, ""),
        ("/tests/test.sh", tarfile.REGTYPE, ""),
        ("tests/test.sh", tarfile.REGTYPE, ""),
        ("logs/verifier/reward.txt", tarfile.REGTYPE, ""),
        ("app/pipe", tarfile.FIFOTYPE, ""),
        ("app/device", tarfile.CHRTYPE, ""),
    ],
)
async def test_outputs_that_lead_elsewhere_are_tampering(light: Bench, name: str, kind: bytes, link: str) -> None:
    """Scored zero and flagged, without running the script."""
    found = await light.assess(make_task(light.store, MEMORY_TEST.format(1)), _outputs(name, kind, link))
    assert (found.outcome, found.reward, found.tampered) == (SCORED, 0.0, True)


async def test_links_that_stay_are_no_tampering(bench: Bench) -> None:
    """A link inside the work is graded as what it leads to."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("app/real.txt")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"42"))
        link = tarfile.TarInfo("app/answer.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "real.txt"
        archive.addfile(link)
    assert (await bench.assess(make_task(bench.store), out.getvalue())).reward == 1.0


async def test_cancelled_assessment_leaves_no_box(bench: Bench, tmp_path: Path) -> None:
    """Cancelling destroys the verifier's box."""
    running = asyncio.create_task(bench.assess(make_task(bench.store, "sleep 60"), None))
    await asyncio.sleep(0.4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list((tmp_path / "scratch" / "boxes").iterdir()) == []
