"""Every sandbox keeps the port's promises; what needs processes runs where there are processes."""

import asyncio
import io
import tarfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from domain.errors import BoxContentError, NotFoundError, SandboxError
from domain.ports import Command, Limits
from domain.records.task import NetworkMode, TaskEnvironment
from tests.contracts.sandboxes import (
    Case,
    contents,
    files,
    make_case,
    one_member,
    shell,
    spec,
    special,
)

ALL = ("memory", "scripted", "local", "local-single", "local-supervised", "docker", "kubernetes")


@pytest.fixture(params=ALL)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every sandbox in turn."""
    return await make_case(request.param, tmp_path / "scratch")


@pytest.fixture(params=["local", "local-single", "docker", "kubernetes"])
async def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every sandbox that runs programs."""
    return await make_case(request.param, tmp_path / "scratch")


@pytest.fixture
async def local(tmp_path: Path) -> Case:
    """The local sandbox in its usual way, for what is costly."""
    return await make_case("local", tmp_path / "scratch")


# --- every sandbox -------------------------------------------------------------------------------


async def test_exit_codes_are_those_of_the_program(case: Case) -> None:
    """Zero, non-zero and an unknown program are told apart."""
    box = await case.sandbox.create(spec())
    assert (await box.exec(Command(argv=("true",)))).exit_code == 0
    assert (await box.exec(Command(argv=("false",)))).exit_code == 1
    assert (await box.exec(Command(argv=("no-such-program",)))).exit_code == 127
    await box.destroy()


async def test_input_comes_back_and_the_rest_of_the_output_is_counted(case: Case) -> None:
    """Output over its limit is dropped and counted."""
    box = await case.sandbox.create(spec(limits=Limits(output_bytes=1000)))
    result = await box.exec(Command(argv=("cat",), stdin=b"x" * 300_000))
    assert (result.stdout, result.n_dropped_bytes) == (b"x" * 1000, 299_000)
    await box.destroy()


async def test_files_come_back_the_same_in_the_same_bytes(case: Case) -> None:
    """Names with blanks and every script survive, and two downloads are equal."""
    box = await case.sandbox.create(spec())
    sent = {"a b/ü – 文.txt": b"one", "deep/er/file": b"\x00\xff" * 10, "empty": b""}
    await box.upload(files(sent), "/app")
    first = await box.download("/app")
    assert contents(first) == sent
    assert await box.download("/app") == first
    assert contents(await box.download("/app/deep/er/file")) == {"file": sent["deep/er/file"]}
    await box.destroy()


async def test_executable_bits_survive(case: Case) -> None:
    """A mode goes in and comes out."""
    box = await case.sandbox.create(spec())
    member = tarfile.TarInfo("run.sh")
    member.mode = 0o755
    await box.upload(one_member(member, b"#!/bin/sh\n"), "/app")
    with tarfile.open(fileobj=io.BytesIO(await box.download("/app/run.sh"))) as archive:
        assert archive.getmember("run.sh").mode == 0o755
    await box.destroy()


async def test_an_empty_working_directory_is_there(case: Case) -> None:
    """Nothing in it is an empty archive; a missing path is NotFoundError."""
    box = await case.sandbox.create(spec())
    assert contents(await box.download("/app")) == {}
    with pytest.raises(NotFoundError):
        await box.download("/app/nothing")
    await box.destroy()


async def test_a_download_is_bounded(case: Case) -> None:
    """A reader says how much it takes."""
    box = await case.sandbox.create(spec())
    await box.upload(files({"big": b"x" * 100_000}), "/app")
    with pytest.raises(BoxContentError):
        await box.download("/app", max_bytes=50_000)
    await box.destroy()


@pytest.mark.parametrize(
    "member",
    [
        special("/etc/passwd", tarfile.REGTYPE),
        special("../outside", tarfile.REGTYPE),
        special("a/../../outside", tarfile.REGTYPE),
        special("link", tarfile.SYMTYPE, "/etc/shadow"),
        special("link", tarfile.SYMTYPE, "../../../etc/shadow"),
        special("hard", tarfile.LNKTYPE, "../../etc/shadow"),
        special("fifo", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
async def test_an_upload_cannot_leave_its_target(case: Case, member: tarfile.TarInfo) -> None:
    """Climbing and absolute names, links that lead out, devices and FIFOs are refused."""
    box = await case.sandbox.create(spec())
    with pytest.raises(SandboxError):
        await box.upload(one_member(member), "/app")
    await box.destroy()


async def test_destroy_twice_then_nothing_works(case: Case) -> None:
    """Destroying again is fine; using the box is not."""
    box = await case.sandbox.create(spec())
    await box.destroy()
    await box.destroy()
    with pytest.raises(SandboxError):
        await box.exec(Command(argv=("true",)))
    with pytest.raises(SandboxError):
        await box.upload(files({"a": b""}), "/app")


async def test_an_id_is_used_once(case: Case) -> None:
    """Two boxes of one id would share files."""
    wanted = spec()
    box = await case.sandbox.create(wanted)
    with pytest.raises(SandboxError):
        await case.sandbox.create(wanted)
    await box.destroy()


async def test_refusals_name_what_cannot_be_had(case: Case) -> None:
    """An image and an accelerator of a wished kind are refused by name; host-runnable tasks pass."""
    asked = TaskEnvironment(docker_image="debian", dockerfile=True, gpus=1, network_mode=NetworkMode.ALLOWLIST)
    text = " ".join(case.sandbox.refusals(asked))
    assert any(word in text for word in ("gpus", "allowlist"))
    assert all((word in text) is case.own_system for word in ("docker_image", "Dockerfile"))
    assert case.sandbox.refusals(TaskEnvironment(dockerfile=True, host_runnable=True, gpus=0)) == ()


async def test_sweep_ends_what_is_past_its_deadline_and_nothing_else(case: Case) -> None:
    """A box with time left stays usable."""
    late, live = spec(deadline_ms=1000), spec(deadline_ms=5000)
    late_box, live_box = await case.sandbox.create(late), await case.sandbox.create(live)
    assert await case.sandbox.sweep(2000) == (late.box_id,)
    with pytest.raises(SandboxError):
        await late_box.exec(Command(argv=("true",)))
    assert (await live_box.exec(Command(argv=("true",)))).exit_code == 0
    await live_box.destroy()
    assert await case.sandbox.sweep(2000) == ()


async def test_the_record_says_how_limits_are_kept(case: Case) -> None:
    """Stats name a mechanism for each limit."""
    box = await case.sandbox.create(spec())
    await box.exec(Command(argv=("true",)))
    assert (await box.stats()).limits_enforced_by
    await box.destroy()


# --- programs ------------------------------------------------------------------------------------


async def test_a_command_gets_its_input_directory_and_environment(programs: Case) -> None:
    """Nothing is inherited: PATH, HOME, LANG and what the command names."""
    box = await programs.sandbox.create(spec())
    result = await box.exec(
        Command(argv=("bash", "-c", "cat; pwd; env"), stdin=b"in\n", cwd="/tmp", env={"A": "it's\na $b", "IFS": "12"})
    )
    lines = result.stdout.decode().splitlines()
    assert lines[:2] == ["in", "/tmp"]
    names = {line.partition("=")[0] for line in lines[2:] if "=" in line}
    assert names <= {"PATH", "HOME", "LANG", "A", "IFS", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME"}
    assert "A=it's\na $b" in result.stdout.decode()
    await box.destroy()


async def test_a_signal_is_told_as_the_shell_does(programs: Case) -> None:
    """128 + the signal's number."""
    box = await programs.sandbox.create(spec())
    assert (await shell(box, "kill -TERM $$")).exit_code == 143
    await box.destroy()


@pytest.mark.parametrize(("user", "uid"), [(None, "0"), ("root", "0"), ("agent", "1000"), ("somebody", "1000")])
async def test_users_have_their_name_and_write_the_workdir(programs: Case, user: str | None, uid: str) -> None:
    """Both whoami and id agree with the task's user, who may change files that were there."""
    if not programs.own_system and user not in {None, "root"}:
        pytest.skip("users and what they may write are the image's")
    if not programs.has_root:
        pytest.skip("these boxes have one ordinary user")
    box = await programs.sandbox.create(spec())
    await box.upload(files({"d/given": b"x"}), "/app")
    result = await shell(box, "whoami; id -u; echo y >> d/given && touch d/new && echo z > /logs/agent/l", user=user)
    assert result.stdout.decode().split() == [user or "root", uid], result.stderr
    assert contents(await box.download("/app"))["d/given"] == b"xy\n"
    await box.destroy()


async def test_a_workdir_anywhere_is_made(programs: Case) -> None:
    """The working directory of the task exists, at the top or deeper."""
    for workdir in ("/custom-workdir", "/srv/a/b", "/home/agent/project"):
        box = await programs.sandbox.create(spec(environment=TaskEnvironment(workdir=workdir)))
        assert (await shell(box, "pwd; touch here")).stdout.decode().strip() == workdir
        assert contents(await box.download(workdir)) == {"here": b""}
        await box.destroy()


async def test_a_workdir_of_the_system_is_refused(programs: Case) -> None:
    """A box never lays its own directory over the system's."""
    if not programs.own_system:
        pytest.skip("the system is the image's")
    for workdir in ("/usr/src/app", "/etc", "/", "/proc/x", "/bin"):
        environment = TaskEnvironment(workdir=workdir)
        assert programs.sandbox.refusals(environment)
        with pytest.raises(SandboxError):
            await programs.sandbox.create(spec(environment=environment))


_LINGERING = {
    "background": "sleep {mark} & disown; exit 0",
    "double fork": "(setsid sh -c '(sleep {mark} &) &' &) ; exit 0",
    "trapped": "trap '' TERM INT HUP; (trap '' TERM; sleep {mark}) & wait",
    "python daemon": (
        'python3 -c "import os,signal; os.fork() and os._exit(0); os.setsid(); signal.signal(15, signal.SIG_IGN);'
        " os.fork() and os._exit(0); os.execvp('sleep',['sleep','{mark}'])\"; sleep {mark}"
    ),
}


@pytest.mark.parametrize("script", _LINGERING.values(), ids=_LINGERING.keys())
async def test_nothing_outlives_its_command(programs: Case, script: str) -> None:
    """At the end or the time-out every process of the command is dead when exec returns."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await programs.sandbox.create(spec())
    result = await shell(box, script.format(mark=mark), timeout_s=0.5)
    assert await programs.living(box, mark) == []
    assert result.timed_out == (result.exit_code is None)
    await box.destroy()


async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(programs: Case) -> None:
    """Cancelling the awaiting task kills the box's processes first."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await programs.sandbox.create(spec())
    running = asyncio.create_task(shell(box, f"sleep {mark}"))
    for _ in range(100):
        if await programs.living(box, mark):
            break
        await asyncio.sleep(0.1)
    assert await programs.living(box, mark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await programs.living(box, mark) == []
    assert (await shell(box, "true")).exit_code == 0
    await box.destroy()


async def test_destroy_ends_a_running_command(programs: Case) -> None:
    """A box can be destroyed under its command."""
    box = await programs.sandbox.create(spec())
    running = asyncio.create_task(shell(box, "sleep 60"))
    await asyncio.sleep(0.2)
    await box.destroy()
    assert (await running).exit_code != 0


async def test_links_inside_are_kept_and_links_out_are_refused(programs: Case) -> None:
    """Relative, absolute and hard links inside survive; a link that leaves is an error; the system may be linked."""
    box = await programs.sandbox.create(spec())
    await shell(box, "mkdir d; echo x > d/f; ln -s d/f r; ln -s /app/d a; ln d/f h; ln -s /usr/bin/env e; ln -s gone g")
    tar = await box.download("/app")
    assert contents(tar) == {"d/f": b"x\n", "h": b"x\n"}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        links = {member.name: member.linkname for member in archive if member.issym()}
    assert links == {"r": "d/f", "a": "/app/d", "e": "/usr/bin/env", "g": "gone"}
    other = await programs.sandbox.create(spec())
    await other.upload(tar, "/app")
    assert (await shell(other, "cat r a/f h")).stdout == b"x\n" * 3
    for leaving in ("/etc/passwd", "../tests/x", "d/../../logs"):
        await shell(box, f"ln -sfn {leaving} out")
        with pytest.raises(BoxContentError):
            await box.download("/app")
    await box.destroy()
    await other.destroy()


async def test_a_planted_link_redirects_neither_uploads_nor_downloads(programs: Case) -> None:
    """The host never goes through a link that the box made."""
    box = await programs.sandbox.create(spec())
    await shell(box, "ln -s /etc sub; ln -s /etc/passwd file; rm -rf /logs/verifier; ln -s /etc /logs/verifier")
    for target, content in (("/app/sub", "planted"), ("/app", "sub/planted"), ("/logs/verifier", "x")):
        with pytest.raises(SandboxError):
            await box.upload(files({content: b"!"}), target)
    await box.upload(files({"file": b"fresh"}), "/app")
    assert contents(await box.download("/app/file")) == {"file": b"fresh"}
    with pytest.raises(BoxContentError):
        await box.download("/app/sub/passwd")
    await box.destroy()


async def test_special_files_are_refused_without_blocking(programs: Case) -> None:
    """A FIFO or socket in the way is an error at once."""
    box = await programs.sandbox.create(spec())
    await shell(box, "mkfifo pipe")
    with pytest.raises(BoxContentError):
        await box.download("/app")
    with pytest.raises(BoxContentError):
        await box.download("/app/pipe")
    await box.destroy()


async def test_closed_modes_and_odd_names_come_back(programs: Case) -> None:
    """Files without permissions are read, and a box with them can be removed."""
    user = "agent" if programs.own_system else "1000"
    box = await programs.sandbox.create(spec())
    await shell(
        box, "mkdir -p c/i; echo s > c/i/f; printf x > $'new\\nline'; chmod 000 c/i/f c/i; chmod 500 c", user=user
    )
    assert contents(await box.download("/app")) == {"c/i/f": b"s\n", "new\nline": b"x"}
    await box.destroy()


async def test_names_that_are_no_text_void_nothing(programs: Case) -> None:
    """An agent cannot make its outputs impossible to copy, and its trial infrastructure's, by naming a file."""
    box = await programs.sandbox.create(spec())
    await shell(box, r"printf x > $'\xff\xfe'; ln -s $'\xff\xfe' $'\xfd'; mkdir $'d\xc3'; printf y > $'d\xc3/\x01'")
    with suppress(BoxContentError):  # told as the agent's doing
        assert len(contents(await box.download("/app"))) == 2
    await box.destroy()


@pytest.mark.parametrize("name", ["local", "local-single"])
async def test_a_tree_too_deep_for_a_stack_is_refused_and_removed(name: str, tmp_path: Path) -> None:
    """However deep an agent nests directories: no copy follows it down, and nothing of the box stays."""
    case = await make_case(name, tmp_path / "scratch")
    box = await case.sandbox.create(spec())
    dig = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    assert (await box.exec(Command(argv=("python3", "-c", dig), timeout_s=30))).exit_code == 0
    with pytest.raises(BoxContentError, match="nests more than"):
        await box.download("/app")
    await box.destroy()
    assert [path for path in tmp_path.rglob("box-*") if path.is_dir()] == []  # noqa: ASYNC240 - a test waits


async def test_memory_is_limited(programs: Case) -> None:
    """A command that grows over its memory is killed by name."""
    box = await programs.sandbox.create(spec(limits=Limits(memory_mb=100)))
    result = await box.exec(Command(argv=programs.grows, timeout_s=20))
    assert (result.limit_exceeded, result.timed_out) == ("memory", False)
    assert ((await box.stats()).peak_memory_bytes or 0) > 100_000_000
    await box.destroy()


async def test_processes_are_limited(programs: Case) -> None:
    """A fork bomb ends by name, soon, and leaves nothing."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await programs.sandbox.create(spec(limits=Limits(processes=40)))
    result = await shell(box, f"while true; do sleep {mark} & done")
    assert result.limit_exceeded == "processes"
    assert await programs.living(box, mark) == []
    await box.destroy()


async def test_the_disk_is_limited(programs: Case) -> None:
    """One large file, many files and a sparse file end at the limit."""
    box = await programs.sandbox.create(spec(limits=Limits(disk_mb=8)))
    one = await shell(box, "head -c 50000000 /dev/zero > big; stat -c %s big")
    assert one.limit_exceeded == "disk" or int(one.stdout.split()[-1]) <= 8 << 20
    many = await shell(box, "for i in $(seq 100000); do head -c 1000000 /dev/zero > f$i; done; sleep 20")
    assert many.limit_exceeded == "disk"
    await box.destroy()


async def test_a_flood_of_output_leaves_the_event_loop_free(programs: Case) -> None:
    """While one box writes without end, other work goes on."""
    box = await programs.sandbox.create(spec(limits=Limits(output_bytes=1000)))
    flood = asyncio.create_task(shell(box, "yes", timeout_s=1.0))
    turns = 0
    while not flood.done():
        await asyncio.sleep(0.01)
        turns += 1
    result = await flood
    assert len(result.stdout) == 1000
    assert result.n_dropped_bytes > 1_000_000
    assert turns > 20
    await box.destroy()


async def test_a_program_that_cannot_be_started_is_no_result(local: Case) -> None:
    """When bubblewrap itself fails that is infrastructure, whatever its exit code."""
    box = await local.sandbox.create(spec())
    with pytest.raises(SandboxError):
        await box.exec(Command(argv=("true",), cwd="/no/such/directory"))
    with pytest.raises(SandboxError):
        await box.exec(Command(argv=("true",), env={"A B": "c"}))
    await box.destroy()
