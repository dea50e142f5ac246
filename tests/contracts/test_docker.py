"""What only a container engine can show: images, volumes of files, crowds, death of the owner, the proxy's way in."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.docker_engine import LABEL, Engine
from adapters.stores.directory import DirectoryStore
from domain.errors import SandboxError
from domain.ports import BoxSpec, Command, Limits
from domain.records.archive import pack_files
from domain.records.task import NetworkMode, TaskEnvironment
from tests.contracts.sandboxes import contents, files, processes_with, shell, spec
from tests.contracts.test_egress import site
from tests.docker_engine import IMAGE, client, docker_url
from tests.fakes.store import MemoryStore

pytestmark = pytest.mark.timeout(240)


class Bench:
    """A sandbox on the tests' engine, and the store that it builds from."""

    def __init__(self, directory: Path, proxy_socket: Path | None = None) -> None:
        """Open both."""
        self.url = docker_url()
        self.store = DirectoryStore(directory / "store")
        self.sandbox = DockerSandbox(self.url, self.store, proxy_socket)

    def built(self, dockerfile: str, **more: bytes) -> BoxSpec:
        """Return the spec of a box from a Dockerfile."""
        content = {"environment/Dockerfile": dockerfile.encode()}
        content |= {f"environment/{name}": data for name, data in more.items()}
        environment = TaskEnvironment(dockerfile=True, network_mode=NetworkMode.NO_NETWORK)
        return replace(spec(environment=environment), archive=self.store.put(pack_files(content)))


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_box_starts_from_the_image_of_its_task(bench: Bench) -> None:
    """The Dockerfile is built once for the same content; its files, user and variables hold."""
    text = f"FROM {IMAGE}\nCOPY note /srv/note\nENV GREETING=hello\nRUN chown agent /srv\nUSER agent\nWORKDIR /srv\n"
    wanted = bench.built(text, note=b"from the task\n")
    images: list[str] = []
    for each in (wanted, replace(wanted, box_id=f"{wanted.box_id}-again")):
        box = await bench.sandbox.create(each)
        result = await shell(box, "cat /srv/note; echo $GREETING; id -un; echo x > /srv/mine")
        assert result.stdout == b"from the task\nhello\nagent\n", result.stderr
        assert (await shell(box, "id -un", user="root")).stdout == b"root\n"
        (found,) = client(bench.url).containers(filters={"name": f"synth-{each.box_id}$"})
        images.append(found["ImageID"])
        await box.destroy()
    assert images[0] == images[1]


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        (f"FROM {IMAGE}\nRUN echo about to fail && exit 7\n", "about to fail"),
        ("FROM\n", "FROM"),
        (f"FROM {IMAGE}\nCOPY nothing /x\n", "nothing"),
    ],
)
async def test_an_image_that_cannot_be_built_says_why(bench: Bench, dockerfile: str, words: str) -> None:
    """The last words of the build are in the error, and no container is left."""
    wanted = bench.built(dockerfile)
    with pytest.raises(SandboxError, match=words):
        await bench.sandbox.create(wanted)
    assert client(bench.url).containers(all=True, filters={"name": wanted.box_id}) == []


async def test_an_unknown_image_is_an_error(bench: Bench) -> None:
    """An image that is not here and cannot be pulled is named."""
    environment = TaskEnvironment(docker_image="nobody.invalid/none:1", network_mode=NetworkMode.NO_NETWORK)
    with pytest.raises(SandboxError, match=r"nobody\.invalid/none:1"):
        await bench.sandbox.create(spec(environment=environment))


async def test_an_engine_that_does_not_answer_refuses_by_name(tmp_path: Path) -> None:
    """Admission says so, and a sweep is no error."""
    sandbox = DockerSandbox(f"unix://{tmp_path}/none.sock", DirectoryStore(tmp_path / "store"), None)
    (refusal,) = sandbox.refusals(TaskEnvironment())
    assert "no Docker engine answers" in refusal
    assert await sandbox.sweep(0) == ()
    remote = DockerSandbox("tcp://10.0.0.1:2375", DirectoryStore(tmp_path / "store"), None)
    assert "not on this machine" in remote.refusals(TaskEnvironment())[0]


async def test_much_comes_back_as_it_went_in(bench: Bench) -> None:
    """50 MB in one file and 10,000 small ones."""
    box = await bench.sandbox.create(spec())
    blob = os.urandom(1 << 20) * 50
    many = {f"d{number % 100}/f{number}": str(number).encode() for number in range(10_000)}
    await box.upload(files({"blob": blob}), "/app/one")
    await box.upload(files(many), "/app/many")
    assert contents(await box.download("/app/one"))["blob"] == blob
    assert contents(await box.download("/app/many")) == many
    await box.destroy()


async def test_twenty_boxes_work_at_once(bench: Bench) -> None:
    """Twenty containers beside each other all answer for themselves."""

    async def one(number: int) -> str:
        box = await bench.sandbox.create(spec())
        await shell(box, f"echo {number} > n; sleep 0.3")
        out = (await shell(box, "cat n")).stdout.decode().strip()
        await box.destroy()
        return out

    assert await asyncio.gather(*(one(number) for number in range(20))) == [str(number) for number in range(20)]


async def test_a_box_whose_first_process_is_killed_goes_on(bench: Bench) -> None:
    """An agent that ends its own container costs itself the command, not the trial: its files stay."""
    box = await bench.sandbox.create(spec())
    result = await shell(box, "echo kept > f; kill -9 -1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; sleep 9")
    assert result.exit_code == 137
    assert (await shell(box, "cat f")).stdout == b"kept\n"
    await box.destroy()


async def test_no_network_is_none(bench: Bench) -> None:
    """Without the public network there is loopback alone; capabilities to make one's own packets are gone."""
    box = await bench.sandbox.create(spec())
    code = "import socket; print([name for _, name in socket.if_nameindex()])"
    assert (await box.exec(Command(argv=("python3", "-c", code)))).stdout == b"['lo']\n"
    raw = "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
    assert (await box.exec(Command(argv=("python3", "-c", raw)))).exit_code == 1
    await box.destroy()


async def test_the_proxy_is_reached_both_ways(tmp_path: Path) -> None:
    """Over the mounted socket always, over loopback for commands that dial it; not without model access."""
    guest = tmp_path / "guest"
    guest.mkdir()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, guest / "proxy.sock")
    (guest / "proxy.sock").chmod(0o666)
    bench = Bench(tmp_path, guest / "proxy.sock")
    box = await bench.sandbox.create(spec(model_access=True))
    dial = (
        "import socket; s = socket.create_connection(('127.0.0.1', 8099)); s.sendall(b'hi'); s.shutdown(1)\n"
        "print(s.recv(9))"
    )
    direct = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({box.proxy_socket!r}); s.sendall(b'hi')\n"
        "s.shutdown(1); print(s.recv(9))"
    )
    for user in (None, "agent"):
        dialled = await box.exec(Command(argv=("python3", "-c", dial), user=user, dials_proxy=True))
        assert (dialled.stdout, dialled.stderr) == (b"b'got hi'\n", b"")
        assert (await box.exec(Command(argv=("python3", "-c", direct), user=user))).stdout == b"b'got hi'\n"
    await box.destroy()
    closed = await bench.sandbox.create(spec())
    assert closed.proxy_url is closed.proxy_socket is None
    assert (await shell(closed, "ls /.synth")).exit_code != 0
    await closed.destroy()
    server.close()
    assert processes_with(str(guest)) == [], "the relay ends with its box"


_OWNER = """
import asyncio, sys
from pathlib import Path
from adapters.sandboxes.docker import DockerSandbox
from adapters.stores.directory import DirectoryStore
from domain.ports import BoxSpec, Command, Limits
from domain.records.task import NetworkMode, TaskEnvironment

async def main():
    sandbox = DockerSandbox(sys.argv[1], DirectoryStore(Path(sys.argv[2])), None)
    environment = TaskEnvironment(network_mode=NetworkMode.NO_NETWORK)
    box = await sandbox.create(BoxSpec(box_id=sys.argv[3], experiment_id="e", trial_id="t", fence=1,
                                       deadline_ms=10**15, environment=environment, limits=Limits()))
    print("ready", flush=True)
    await box.exec(Command(argv=("sleep", "600"), timeout_s=600))

asyncio.run(main())
"""


async def test_a_sweep_ends_the_boxes_of_a_killed_owner_and_no_others(bench: Bench, tmp_path: Path) -> None:
    """The label says whose a container is; foreign containers and those of the living stay."""
    await bench.sandbox.sweep(0)  # what earlier, killed tests may have left on a shared engine
    live = await bench.sandbox.create(spec())
    api = client(bench.url)
    foreign = api.create_container(IMAGE, ["sleep", "600"], labels={LABEL: "somebody else's"})["Id"]
    argv = [sys.executable, "-c", _OWNER, bench.url, str(tmp_path / "store"), f"orphan-{os.getpid()}"]
    owner = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    assert await bench.sandbox.sweep(0) == ()
    owner.kill()
    await owner.communicate()
    assert await bench.sandbox.sweep(0) == (f"orphan-{os.getpid()}",)
    assert await bench.sandbox.sweep(0) == ()
    assert (await shell(live, "true")).exit_code == 0
    assert api.inspect_container(foreign)["Id"] == foreign
    api.remove_container(foreign, force=True)
    await live.destroy()


async def test_a_burst_of_memory_ends_by_name(bench: Bench) -> None:
    """The kernel holds the container's memory, whatever the sampling."""
    box = await bench.sandbox.create(spec(limits=Limits(memory_mb=64)))
    result = await box.exec(Command(argv=("python3", "-S", "-c", "b = b'x' * (200 << 20); print(len(b))")))
    assert (result.limit_exceeded, result.stdout) == ("memory", b"")
    assert (await shell(box, "echo on")).stdout == b"on\n"
    await box.destroy()


async def test_building_holds_up_no_other_box(bench: Bench) -> None:
    """While many images are built, a command in another box still ends at its time-out; a build has its own."""
    box = await bench.sandbox.create(spec())
    mark = f"{time.monotonic_ns()}"
    slow = [bench.built(f"FROM {IMAGE}\nRUN echo {mark}-{number} && sleep 30\n") for number in range(8)]
    slow = [replace(each, environment=replace(each.environment, build_timeout_s=2)) for each in slow]
    building = [asyncio.create_task(bench.sandbox.create(each)) for each in slow]
    await asyncio.sleep(0.5)
    result = await shell(box, "sleep 60", timeout_s=0.3)
    assert result.timed_out
    assert result.duration_s < 2
    with pytest.raises(SandboxError, match="not done after 2 s"):
        await building[0]
    for task in building:
        task.cancel()
    await asyncio.gather(*building, return_exceptions=True)
    await box.destroy()


async def test_a_box_that_is_cancelled_while_it_is_made_is_gone(bench: Bench) -> None:
    """Whatever the moment, no container is left of a box that nobody got."""
    for delay_s in (0.0, 0.01, 0.03, 0.1, 0.2):
        wanted = spec()
        making = asyncio.create_task(bench.sandbox.create(wanted))
        await asyncio.sleep(delay_s)
        making.cancel()
        with suppress(asyncio.CancelledError):
            await (await making).destroy()
        deadline_s = time.monotonic() + 10
        left: list[object] = [wanted]
        while left and time.monotonic() < deadline_s:
            await asyncio.sleep(0.5)
            left = client(bench.url).containers(all=True, filters={"name": wanted.box_id})
        assert left == []


_FORWARD = """
import socket, sys, threading

def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(64)
print("ready", flush=True)
while True:
    here, there = listener.accept()[0], socket.socket(socket.AF_UNIX)
    there.connect(sys.argv[1])
    threading.Thread(target=pump, args=(here, there), daemon=True).start()
    threading.Thread(target=pump, args=(there, here), daemon=True).start()
"""


async def test_an_engine_that_hangs_holds_up_no_teardown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes end without it, at once; the container is the janitor's."""
    monkeypatch.setattr("adapters.sandboxes.docker_box._REMOVE_S", 0.5)
    monkeypatch.setattr("adapters.sandboxes.docker_engine._PING_S", 0.5)
    monkeypatch.setattr("adapters.sandboxes.docker_exec._LAST_WORD_S", 0.5)
    engine, way = docker_url().removeprefix("unix://"), tmp_path / "engine.sock"
    argv = [sys.executable, "-c", _FORWARD, engine, str(way)]
    forwarder = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert forwarder.stdout is not None
    assert await forwarder.stdout.readline() == b"ready\n"
    sandbox = DockerSandbox(f"unix://{way}", DirectoryStore(tmp_path / "store"), None)
    wanted = spec(deadline_ms=1000)
    box = await sandbox.create(wanted)
    mark = f"9{time.monotonic_ns() % 10**8}.5"
    running = asyncio.create_task(shell(box, f"sleep {mark}", timeout_s=60))
    await asyncio.sleep(0.5)
    assert processes_with(mark)
    forwarder.send_signal(signal.SIGSTOP)
    started_s = time.monotonic()
    await box.destroy()
    assert time.monotonic() - started_s < 5
    assert processes_with(mark) == []
    assert "no Docker engine answers" in sandbox.refusals(TaskEnvironment())[0]
    assert (await running).exit_code is None
    forwarder.kill()
    await forwarder.communicate()
    assert wanted.box_id in await DockerSandbox(docker_url(), DirectoryStore(tmp_path / "store"), None).sweep(2000)


async def test_what_an_image_declares_is_no_way_around(bench: Bench) -> None:
    """A declared volume counts as disk, a declared healthcheck does not run, a declared entry point neither."""
    text = (
        f"FROM {IMAGE}\nVOLUME /data\nHEALTHCHECK --interval=100ms CMD touch /ill\n"
        f'ENTRYPOINT ["touch", "/entered"]\nSTOPSIGNAL SIGSTOP\n'
    )
    box = await bench.sandbox.create(replace(bench.built(text), limits=Limits(disk_mb=8)))
    many = await shell(box, "for i in $(seq 100); do head -c 1000000 /dev/zero > /data/f$i; done; sleep 20")
    assert many.limit_exceeded == "disk"
    assert (await shell(box, "rm -r /data/*; sleep 0.5; ls /ill /entered")).stdout == b""
    made_from = (await box.stats()).made_from
    assert made_from["image"].startswith("sha256:")
    assert made_from["created"].startswith("20")
    await box.destroy()


async def test_there_is_one_public_network_whoever_wants_it_first(bench: Bench) -> None:
    """Processes that make it at the same time share it, and what an earlier race left twice is one again."""
    engine = client(bench.url)
    apart = {"com.docker.network.bridge.enable_icc": "false"}
    for options in ({}, apart, apart):  # the oldest would let its boxes see one another
        engine.create_network("synth-boxes", driver="bridge", options=options, labels={LABEL: ""})
    found = await asyncio.gather(
        *(asyncio.to_thread(Engine(bench.url, MemoryStore()).network) for _ in range(6)), return_exceptions=True
    )
    (kept,) = (item["Id"] for item in engine.networks() if item["Name"] == "synth-boxes")
    assert found == [kept] * 6
    assert engine.inspect_network(kept)["Options"] == apart


async def test_boxes_with_the_public_network_do_not_see_one_another(bench: Bench) -> None:
    """Each has a network device, none reaches the other's port."""
    environment = TaskEnvironment(network_mode=NetworkMode.PUBLIC)
    one, two = [await bench.sandbox.create(spec(environment=environment)) for _ in range(2)]
    listen = "import socket; s = socket.create_server(('', 7000)); s.settimeout(6)\ntry:\n s.accept(); print('met')\n"
    listening = asyncio.create_task(
        one.exec(Command(argv=("python3", "-c", f"{listen}except OSError:\n print('alone')")))
    )
    address = next(iter(client(bench.url).inspect_network("synth-boxes")["Containers"].values()))
    addresses = [
        each["IPv4Address"].partition("/")[0]
        for each in client(bench.url).inspect_network("synth-boxes")["Containers"].values()
    ]
    assert address
    dial = (
        "import socket, sys\nfor host in sys.argv[1:]:\n try:\n  socket.create_connection((host, 7000), 2)\n"
        " except OSError as error:\n  print(type(error).__name__)"
    )
    dialled = await two.exec(Command(argv=("python3", "-c", dial, *addresses)))
    assert len(dialled.stdout.split()) == len(addresses), dialled.stdout
    assert (await listening).stdout == b"alone\n"
    await one.destroy()
    await two.destroy()


_FETCH = r"""
import os, socket, sys

for where in sys.argv[1:]:
    host, port = where.split(":")
    proxy = os.environ.get("http_proxy", "").removeprefix("http://")
    to = proxy.split(":") if proxy and host not in os.environ["no_proxy"].split(",") else (host, port)
    try:
        with socket.create_connection((to[0], int(to[1])), 3) as line:
            line.sendall(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
            print(b"".join(iter(lambda: line.recv(4096), b"")).replace(b"\r\n", b" "))
    except OSError as error:
        print(error)
"""


async def test_a_box_with_an_allowlist_reaches_its_hosts_and_nothing_else(bench: Bench) -> None:
    """Through the proxy that its programs find by themselves; around it there is no network. The record tells."""
    async with site() as (address, port, _):
        environment = TaskEnvironment(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=(address, "*.example"))
        box = await bench.sandbox.create(spec(environment=environment))
        urls = [f"{address}:{port}", "elsewhere.test:80", f"127.0.0.1:{port}"]
        found = await box.exec(Command(argv=("python3", "-c", _FETCH, *urls)))
        allowed, refused, own = found.stdout.decode().splitlines()
        assert "hello" in allowed, found
        assert " 403 " in refused
        assert "refused" in own.lower()
        around = await box.exec(Command(argv=("python3", "-c", _FETCH, urls[0]), env={"http_proxy": ""}))
        assert b"unreachable" in around.stdout
        links = await shell(box, "ls /sys/class/net")
        assert links.stdout.split() == [b"lo"]
        stats = await box.stats()
        assert stats.limits_enforced_by["network"] == "allowlist by proxy; refused: elsewhere.test (1)"
        await box.destroy()


async def test_a_box_with_the_public_network_does_not_reach_this_machine(bench: Bench) -> None:
    """Neither by the address of the bridge nor by another one of this machine; the record says what holds."""
    async with site() as (address, port, asked):
        box = await bench.sandbox.create(spec(environment=TaskEnvironment(network_mode=NetworkMode.PUBLIC)))
        (found,) = client(bench.url).networks(names=["synth-boxes"])
        gateway = found["IPAM"]["Config"][0]["Gateway"]
        looked = await box.exec(Command(argv=("python3", "-c", _FETCH, f"{address}:{port}", f"{gateway}:{port}")))
        assert looked.stdout.count(b"timed out") == 2, looked
        assert asked == []
        assert (await box.stats()).limits_enforced_by["network"] == "public, but not this machine (iptables)"
        await box.destroy()
