"""Contract of local boxes: isolation, size and the death of their owner. The rest is in ``test_sandbox.py``."""

import asyncio
import json
import os
import sys
import time
import uuid
from pathlib import Path

import pytest

from domain.ports import Command
from tests.contracts.sandboxes import (
    Case,
    contents,
    files,
    local_sandbox,
    make_case,
    processes_with,
    shell,
    spec,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["local", "local-single"])
async def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every sandbox that runs programs."""
    return await make_case(request.param, tmp_path / "scratch")


@pytest.fixture
async def local(tmp_path: Path) -> Case:
    """The local sandbox in its usual way, for what is costly."""
    return await make_case("local", tmp_path / "scratch")


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
        result = await box.exec(Command(argv=("python3", "-c", code), user=user, dials_proxy=True))
        assert (result.stdout, result.stderr) == (b"ok\n", b"")
    direct = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({box.proxy_socket!r}); s.sendall(b'hi')\n"
        "s.shutdown(1); print(s.recv(99))\n"
        "print(socket.socket().connect_ex(('127.0.0.1', 8099)) != 0)\n"
    )
    result = await box.exec(Command(argv=("python3", "-c", direct), user=user))
    assert (result.stdout, result.stderr) == (b"b'got hi'\nTrue\n", b"")
    closed = await sandbox.create(spec())
    assert closed.proxy_url is closed.proxy_socket is None
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
    for _ in range(100):  # what was just being started shows itself to a later sweep
        if not processes_with(mark):
            break
        await asyncio.sleep(0.05)
        assert await local.sandbox.sweep(int(time.time() * 1000)) == ()
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
