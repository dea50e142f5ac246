"""Every sandbox keeps the port's promises; what needs processes runs where there are processes."""

import asyncio
import io
import json
import os
import sys
import tarfile
import time
import uuid
from pathlib import Path

import pytest

from domain.errors import NotFoundError, SandboxError
from domain.ports import Command, Limits
from domain.records.task import NetworkMode, TaskEnvironment
from tests.contracts.sandboxes import (
    Case,
    contents,
    files,
    local_sandbox,
    make_case,
    one_member,
    processes_with,
    shell,
    spec,
    special,
)

REPOSITORY = Path(__file__).parents[2]
ALL = ("memory", "scripted", "local", "local-single")


@pytest.fixture(params=ALL)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every sandbox in turn."""
    return await make_case(request.param, tmp_path / "scratch")


@pytest.fixture(params=["local", "local-single"])
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
    with pytest.raises(SandboxError):
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
    """An image and an allowlist are refused by name; host-runnable tasks pass."""
    asked = TaskEnvironment(docker_image="debian", dockerfile=True, gpus=1, network_mode=NetworkMode.ALLOWLIST)
    text = " ".join(case.sandbox.refusals(asked))
    assert all(word in text for word in ("docker_image", "Dockerfile", "gpus", "allowlist"))
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
    assert names <= {"PATH", "HOME", "LANG", "A", "IFS", "PWD", "OLDPWD", "SHLVL", "_"}
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
    assert processes_with(mark) == []
    assert result.timed_out == (result.exit_code is None)
    await box.destroy()


async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(programs: Case) -> None:
    """Cancelling the awaiting task kills the box's processes first."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await programs.sandbox.create(spec())
    running = asyncio.create_task(shell(box, f"sleep {mark}"))
    await asyncio.sleep(0.3)
    assert processes_with(mark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(mark) == []
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
        with pytest.raises(SandboxError):
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
    with pytest.raises(SandboxError):
        await box.download("/app/sub/passwd")
    await box.destroy()


async def test_special_files_are_refused_without_blocking(programs: Case) -> None:
    """A FIFO or socket in the way is an error at once."""
    box = await programs.sandbox.create(spec())
    await shell(box, "mkfifo pipe")
    with pytest.raises(SandboxError):
        await box.download("/app")
    with pytest.raises(SandboxError):
        await box.download("/app/pipe")
    await box.destroy()


async def test_closed_modes_and_odd_names_come_back(programs: Case) -> None:
    """Files without permissions are read, and a box with them can be removed."""
    box = await programs.sandbox.create(spec())
    await shell(
        box, "mkdir -p c/i; echo s > c/i/f; printf x > $'new\\nline'; chmod 000 c/i/f c/i; chmod 500 c", user="agent"
    )
    assert contents(await box.download("/app")) == {"c/i/f": b"s\n", "new\nline": b"x"}
    await box.destroy()


async def test_memory_is_limited(programs: Case) -> None:
    """A command that grows over its memory is killed by name."""
    box = await programs.sandbox.create(spec(limits=Limits(memory_mb=100)))
    grow = "import time\nkeep=[]\nwhile True:\n keep.append(bytearray(10_000_000)); time.sleep(0.01)"
    result = await box.exec(Command(argv=("python3", "-c", grow), timeout_s=20))
    assert (result.limit_exceeded, result.timed_out) == ("memory", False)
    assert ((await box.stats()).peak_memory_bytes or 0) > 100_000_000
    await box.destroy()


async def test_processes_are_limited(programs: Case) -> None:
    """A fork bomb ends by name, soon, and leaves nothing."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await programs.sandbox.create(spec(limits=Limits(processes=40)))
    result = await shell(box, f"while true; do sleep {mark} & done")
    assert result.limit_exceeded == "processes"
    assert processes_with(mark) == []
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


# --- isolation -----------------------------------------------------------------------------------


async def test_nothing_of_the_host_is_seen(programs: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, no file, no process, no command line of the host reaches a box."""
    secret = f"secret-{uuid.uuid4().hex}"
    monkeypatch.setenv("SYNTH_TEST_SECRET", secret)
    (tmp_path / "ledger.db").write_text(secret)
    box = await programs.sandbox.create(spec())
    script = (
        "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; ls -la / /home /root /tmp /var /opt; ps ax;"
        f" cat {tmp_path}/ledger.db /etc/shadow /proc/1/root/etc/shadow; ls /sys {tmp_path}"
    )
    result = await shell(box, script)
    assert secret.encode() not in result.stdout + result.stderr
    assert str(os.getpid()).encode() not in (await shell(box, "ls /proc")).stdout.split()
    await box.destroy()


async def test_a_command_environment_cannot_reach_what_starts_the_box(programs: Case) -> None:
    """Loader variables hold inside only; they would otherwise run as the host's root."""
    box = await programs.sandbox.create(spec())
    result = await box.exec(Command(argv=("bash", "-c", "echo $LD_PRELOAD"), env={"LD_PRELOAD": "/app/evil.so"}))
    assert result.stdout == b"/app/evil.so\n"
    noise = [line for line in result.stderr.splitlines() if b"/app/evil.so" not in line]
    assert noise == []
    await box.destroy()


async def test_boxes_do_not_see_each_other(programs: Case) -> None:
    """Files and processes of one box are nowhere in another."""
    one, two = await programs.sandbox.create(spec()), await programs.sandbox.create(spec())
    mark = f"m{uuid.uuid4().hex}"
    running = asyncio.create_task(shell(one, f"echo {mark} > /app/{mark}; echo {mark} > /tmp/{mark}; sleep 2 # {mark}"))
    await asyncio.sleep(0.3)
    seen = await shell(two, "find /app /tmp /logs /home /var /opt /root /dev; cat /proc/*/cmdline; ipcs")
    assert mark.encode() not in seen.stdout
    await running
    await one.destroy()
    await two.destroy()


async def test_the_system_cannot_be_changed(programs: Case) -> None:
    """Root inside writes its own directories only, and gains nothing over the machine."""
    box = await programs.sandbox.create(spec())
    script = (
        "for f in /usr/x /etc/x /etc/passwd /bin/x /x /.synth/x /proc/sys/kernel/hostname /proc/sysrq-trigger"
        " /proc/sys/kernel/core_pattern /proc/irq/default_smp_affinity /dev/x; do"
        " (echo 1 > $f) 2>/dev/null && echo WROTE $f; done; mount -t tmpfs x /app 2>/dev/null && echo MOUNTED;"
        " umount /usr 2>/dev/null && echo UNMOUNTED; mknod /app/d b 8 0 2>/dev/null && echo DEVICE;"
        " chroot /app 2>/dev/null; rm -rf /usr/bin/true 2>/dev/null && echo REMOVED; true"
    )
    assert (await shell(box, script)).stdout == b""
    await box.destroy()


async def test_there_is_no_network(programs: Case) -> None:
    """Only loopback, and nobody listens there."""
    box = await programs.sandbox.create(spec())
    code = (
        "import socket\nprint(sorted(n for _, n in socket.if_nameindex()))\n"
        "for a in (('127.0.0.1', 8099), ('192.0.2.1', 80), ('169.254.169.254', 80)):\n"
        " s = socket.socket(); s.settimeout(1)\n"
        " try: s.connect(a); print('CONNECTED', a)\n except OSError: pass\n"
    )
    assert (await box.exec(Command(argv=("python3", "-c", code)))).stdout == b"['lo']\n"
    await box.destroy()


@pytest.mark.parametrize("way", ["range", "single"])
@pytest.mark.parametrize("user", [None, "agent"])
async def test_the_proxy_is_reached_with_model_access_alone(tmp_path: Path, way: str, user: str | None) -> None:
    """Loopback in the box leads to the proxy's Unix socket, also many at once and both ways."""
    guest = tmp_path / "guest"
    guest.mkdir()
    socket = guest / "proxy.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, socket)
    socket.chmod(0o666)
    sandbox = await local_sandbox(tmp_path / "scratch", socket, "single" if way == "single" else None)
    box = await sandbox.create(spec(model_access=True))
    code = (
        "import socket,threading\n"
        "def call(n):\n"
        " s = socket.create_connection(('127.0.0.1', 8099)); s.sendall(b'x' * n); s.shutdown(1)\n"
        " b = b''\n"
        " while d := s.recv(65536): b += d\n"
        " assert b == b'got ' + b'x' * n, len(b)\n"
        "ts = [threading.Thread(target=call, args=(300000 + i,)) for i in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; print('ok')\n"
    )
    assert box.proxy_url == "http://127.0.0.1:8099"
    for _ in range(2):
        result = await box.exec(Command(argv=("python3", "-c", code), user=user))
        assert (result.stdout, result.stderr) == (b"ok\n", b"")
    closed = await sandbox.create(spec())
    assert closed.proxy_url is None
    assert (await shell(closed, "ls -la /.synth; cat < /dev/tcp/127.0.0.1/8099")).exit_code != 0
    await box.destroy()
    await closed.destroy()
    server.close()
    await server.wait_closed()


# --- size and death ------------------------------------------------------------------------------


async def test_a_large_binary_survives(local: Case) -> None:
    """50 MB go in and come out unchanged."""
    box = await local.sandbox.create(spec())
    content = os.urandom(1 << 20) * 50
    await box.upload(files({"blob": content}), "/app")
    assert contents(await box.download("/app"))["blob"] == content
    await box.destroy()


async def test_ten_thousand_files_survive(local: Case) -> None:
    """Many small files go in and come out."""
    box = await local.sandbox.create(spec())
    sent = {f"d{i % 100}/f{i}": str(i).encode() for i in range(10_000)}
    await box.upload(files(sent), "/app")
    assert contents(await box.download("/app")) == sent
    await box.destroy()


async def test_twenty_boxes_work_at_once(local: Case) -> None:
    """Twenty boxes run beside each other and all answer for themselves."""

    async def one(number: int) -> str:
        box = await local.sandbox.create(spec())
        await shell(box, f"echo {number} > n; sleep 0.3")
        out = (await shell(box, "cat n")).stdout.decode().strip()
        await box.destroy()
        return out

    assert await asyncio.gather(*(one(i) for i in range(20))) == [str(i) for i in range(20)]


_OWNER = """
import asyncio, sys
from pathlib import Path
from adapters.sandboxes.local import LocalSandbox
from domain.ports import BoxSpec, Command, Limits
from domain.records.task import TaskEnvironment

async def main():
    sandbox = LocalSandbox(Path(sys.argv[1]), None)
    box = await sandbox.create(BoxSpec(box_id="orphan", experiment_id="e", trial_id="t", fence=1, deadline_ms=10**15,
                                       environment=TaskEnvironment(), limits=Limits()))
    print("ready", flush=True)
    await box.exec(Command(argv=("bash", "-c", f"(trap '' TERM HUP; setsid sleep {sys.argv[2]}) & sleep {sys.argv[2]}"),
                           timeout_s=600))

asyncio.run(main())
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 1.0])
async def test_a_killed_owner_leaves_no_process_and_its_box_is_swept(
    local: Case, tmp_path: Path, delay_s: float
) -> None:
    """SIGKILL of the owner, whenever, ends what its commands run; the sweep removes its box and no other."""
    mark = f"9{uuid.uuid4().int % 10**8}.5"
    box = await local.sandbox.create(spec())
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OWNER, str(tmp_path / "scratch"), mark),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    await asyncio.sleep(delay_s)
    assert await local.sandbox.sweep(int(time.time() * 1000)) == ()
    owner.kill()
    await owner.wait()
    assert await local.sandbox.sweep(int(time.time() * 1000)) == ("orphan",)
    await asyncio.sleep(0.2)
    assert processes_with(mark) == []
    assert (await box.exec(Command(argv=("true",)))).exit_code == 0
    await box.destroy()


async def test_a_label_names_trial_fence_and_deadline(local: Case, tmp_path: Path) -> None:
    """Anyone can see whose box a directory is."""
    wanted = spec(deadline_ms=123_456_789_000_000)
    box = await local.sandbox.create(wanted)
    label = json.loads((tmp_path / "scratch" / "boxes" / wanted.box_id / "label.json").read_text())
    assert (label["trial_id"], label["fence"], label["deadline_ms"]) == ("trial-1", 1, 123_456_789_000_000)
    await box.destroy()
