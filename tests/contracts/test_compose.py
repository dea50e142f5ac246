"""Boxes with services on a real engine: what they see of each other, what is taken from them, what is left of them."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.sandboxes.compose import project_of
from adapters.sandboxes.compose_model import bridge_name
from adapters.sandboxes.docker import DockerSandbox
from adapters.stores.directory import DirectoryStore
from domain.errors import SandboxError
from domain.lifecycle.collect import collect_outputs, run_hooks
from domain.ports import Box, BoxSpec, Command, HasServices
from domain.records.archive import pack_files, read_file
from domain.records.profile import Profile
from domain.records.task import Artifact, CollectHook, NetworkMode, Phase, Task, TaskEnvironment
from tests.compose_tool import compose_path
from tests.contracts.sandboxes import shell, spec
from tests.docker_engine import IMAGE, client, docker_url

pytestmark = pytest.mark.timeout(240)
_SERVER = (
    "import http.server, pathlib\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        with open('/data/seen', 'a') as seen: seen.write(self.path + '\\\\n')\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'from the service')\n"
    "    def log_message(self, *args): pass\n"
    "http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()\n"
)
_FILE = f"""
services:
  main:
    image: {IMAGE}
    depends_on: {{api: {{condition: service_healthy}}}}
    environment: {{GREETING: "a $$HOME for ${{WHO:-you}}"}}
    volumes: ["./notes:/notes:ro", "${{HOST_AGENT_LOGS_PATH}}:${{ENV_AGENT_LOGS_PATH}}"]
  api:
    image: {IMAGE}
    command: ["python3", "-c", "exec(open('/srv/server.py').read())"]
    volumes: ["./server.py:/srv/server.py:ro", "kept:/data"]
    healthcheck:
      test: ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
      interval: 0.2s
      retries: 50
volumes: {{kept: {{}}}}
"""
_FETCH = (
    'python3 -c "import urllib.request as u;'
    " print(u.urlopen('http://{host}:{port}/{path}', timeout=2).read().decode())\""
)


class Bench:
    """A sandbox with Compose on the tests' engine."""

    def __init__(self, directory: Path) -> None:
        """Open it."""
        self.url, self.compose = docker_url(), compose_path()
        self.api = client(self.url)
        self.store = DirectoryStore(directory / "store")
        self.sandbox = DockerSandbox(self.url, self.store, None, compose=self.compose)

    def spec(self, text: str = _FILE, network: NetworkMode = NetworkMode.NO_NETWORK, **files: bytes) -> BoxSpec:
        """Return the spec of a box from a compose file."""
        content = {
            "environment/docker-compose.yaml": text.encode(),
            "environment/server.py": _SERVER.encode(),
            "environment/notes/note": b"from the task\n",
            **{f"environment/{name}": data for name, data in files.items()},
        }
        environment = TaskEnvironment(compose=True, network_mode=network, build_timeout_s=60.0)
        return replace(spec(environment=environment), archive=self.store.put(pack_files(content)))

    def left(self, box_id: str) -> list[str]:
        """Return all that the engine has of a box."""
        chosen = {"label": f"com.docker.compose.project={project_of(box_id)}"}
        parts = [str(entry["Id"]) for entry in self.api.containers(all=True, filters=chosen)]
        parts += [str(entry["Name"]) for entry in self.api.networks(filters=chosen)]
        return parts + [str(entry["Name"]) for entry in self.api.volumes(filters=chosen)["Volumes"] or ()]


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def _service(box: Box, name: str) -> Box:
    assert isinstance(box, HasServices)
    return await box.service(name)


async def test_services_are_there_and_what_they_hold_is_collected(bench: Bench) -> None:
    """The agent finds a service by name once it is healthy; hooks run in it, its files are artifacts, it lives on."""
    wanted = bench.spec()
    box = await bench.sandbox.create(wanted)
    said = await shell(
        box, "cat /notes/note; echo $GREETING; ls -d /logs/agent; " + _FETCH.format(host="api", port=8000, path="x")
    )
    assert said.stdout.decode() == "from the task\na $HOME for you\n/logs/agent\nfrom the service\n", said.stderr
    await shell(box, "(setsid sleep 600 &); mkdir -p /app; echo mine > /app/answer")
    task = Task(
        name="t/t", digest="0" * 64, instruction="x", archive=bench.store.put(b""), environment=wanted.environment,
        agent=Phase(), verifier=Phase(),
        artifacts=(
            Artifact(source="/app/answer"),
            Artifact(source="/data/seen", service="api"),
            Artifact(source="/data/copy", service="api"),
            Artifact(source="/data/none", service="api"),
        ),
        collect=(CollectHook(command="cp /data/seen /data/copy; (sleep 600 &) ", service="api"),),
    )  # fmt: skip
    assert await run_hooks(box, task) == ""
    outputs, missing = await collect_outputs(box, task, Profile(name="p", engine="nop"))
    assert missing == ("/data/none",)
    assert read_file(outputs, "app/answer") == b"mine\n"
    assert b"/x" in (read_file(outputs, "data/seen") or b"")
    assert b"/x" in (read_file(outputs, "data/copy") or b"")
    again = await shell(box, _FETCH.format(host="api", port=8000, path="y"))
    assert again.stdout == b"from the service\n", "the service lives on"
    slow = await (await _service(box, "api")).exec(_command("sleep 60", 0.5))
    assert slow.timed_out
    assert (await shell(box, _FETCH.format(host="api", port=8000, path="z"))).exit_code == 0
    with pytest.raises(SandboxError, match="no service 'db'"):
        await _service(box, "db")
    stats = await box.stats()
    assert "service api" in stats.made_from
    await box.destroy()
    await box.destroy()
    assert bench.left(wanted.box_id) == []


def _command(line: str, timeout_s: float) -> Command:
    return Command(argv=("/bin/sh", "-c", line), cwd="/", timeout_s=timeout_s)


async def test_services_reach_neither_this_machine_nor_another_box(bench: Bench) -> None:
    """Without network: no listener of this machine at any of its addresses, no name of the world, no box next door."""
    first, second = bench.spec(), bench.spec()
    second = replace(second, box_id=f"{first.box_id}-b")
    box, beside = await asyncio.gather(bench.sandbox.create(first), bench.sandbox.create(second))
    other = bench.api.inspect_container(await _main_of(bench, second.box_id))["NetworkSettings"]["Networks"]
    address = next(iter(other.values()))["IPAddress"]
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - the box must not reach it at any address
        port = server.getsockname()[1]
        gateway = next(iter(other.values()))["Gateway"] or address.rpartition(".")[0] + ".1"
        probes = [f"{gateway} {port}", f"{address} 8000", "1.1.1.1 53", f"127.0.0.1 {port}", "pypi.org 443"]
        code = (
            "import socket,sys\n"
            "for line in sys.argv[1:]:\n"
            "    host, port = line.split()\n"
            "    try: socket.create_connection((host, int(port)), 0.4); print('reached', line)\n"
            "    except OSError: pass\n"
        )
        mine = bench.api.inspect_container(await _main_of(bench, first.box_id))["NetworkSettings"]["Networks"]
        bridge = next(iter(mine.values()))["IPAddress"].rpartition(".")[0] + ".1"
        quoted = " ".join(f"'{probe}'" for probe in [*probes, f"{bridge} {port}"])
        for place in (box, await _service(box, "api")):
            found = await shell(place, f"cat > /tmp/p.py <<'END'\n{code}END\npython3 /tmp/p.py {quoted}")
            assert found.stdout.strip() == b"", found
    await box.destroy()
    await beside.destroy()


async def _main_of(bench: Bench, box_id: str) -> str:
    chosen = [f"com.docker.compose.project={project_of(box_id)}", "com.docker.compose.service=main"]
    (found,) = bench.api.containers(filters={"label": chosen})
    return str(found["Id"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("privileged: true", "services.main.privileged"),
        ("ports: ['80:80']", "services.main.ports"),
        ("volumes: ['/:/host:ro']", "is not in the task's directory"),
        ("network_mode: host", "services.main.network_mode"),
        ("command: echo ${SYNTH_SECRET}", "nobody sets SYNTH_SECRET"),
        ("env_file: /etc/passwd", "env_file.0: /etc/passwd is not a file of the task"),
        ("extends: {file: /etc/passwd, service: x}", "services.main.extends"),
        ("build: {context: ., ssh: [default]}", "services.main.build.ssh"),
        ("memory: 3", "memory"),
    ],
)
async def test_a_file_that_asks_too_much_makes_no_box(bench: Bench, lines: str, words: str) -> None:
    """The fault is permanent, names the field, and leaves nothing; no variable of ours is seen by a file."""
    os.environ["SYNTH_SECRET"] = "secret-of-the-host"  # noqa: TID251 - that a file must not see
    wanted = bench.spec(f"services:\n  main:\n    image: {IMAGE}\n    {lines}\n")
    with pytest.raises(SandboxError, match=words) as raised:
        await bench.sandbox.create(wanted)
    assert raised.value.is_permanent
    assert "secret-of-the-host" not in str(raised.value)
    assert bench.left(wanted.box_id) == []


async def test_no_link_leads_a_mount_to_this_machine(bench: Bench) -> None:
    """A link in the task's files that points out of them is refused before anything is mounted."""
    wanted = bench.spec(f"services:\n  main:\n    image: {IMAGE}\n    volumes: ['./out/etc:/host:ro']\n")
    assert wanted.archive is not None
    out = io.BytesIO(bench.store.get(wanted.archive))
    with tarfile.open(fileobj=out, mode="a") as tar:
        link = tarfile.TarInfo("environment/out")
        link.type, link.linkname = tarfile.SYMTYPE, "/"
        tar.addfile(link)
    wanted = replace(wanted, archive=bench.store.put(out.getvalue()))
    with pytest.raises(SandboxError, match="out") as raised:
        await bench.sandbox.create(wanted)
    assert raised.value.is_permanent
    assert bench.left(wanted.box_id) == []


async def test_a_service_that_never_gets_healthy_is_named(bench: Bench) -> None:
    """The box is not made, the service and its last words are told, and nothing is left."""
    text = _FILE.replace(
        "exec(open('/srv/server.py').read())", "import time; print('no port for me', flush=True); time.sleep(99)"
    )
    text = text.replace("retries: 50", "retries: 2")
    wanted = bench.spec(text)
    with pytest.raises(SandboxError, match=r"api: unhealthy: no port for me"):
        await bench.sandbox.create(wanted)
    assert bench.left(wanted.box_id) == []
    assert bridge_name(wanted.box_id, "default") not in await _rules()


async def test_services_are_built_and_limited(bench: Bench) -> None:
    """A service's own Dockerfile is built with its arguments; memory, processes and disk of services are bounded."""
    text = f"""
services:
  main:
    build: {{context: ., args: {{WHAT: built}}}}
    depends_on: [api]
  api:
    image: {IMAGE}
    command: sleep 600
    mem_limit: 50m
"""
    wanted = bench.spec(text, Dockerfile=f"FROM {IMAGE}\nARG WHAT\nRUN echo $WHAT > /what\n".encode())
    wanted = replace(wanted, limits=replace(wanted.limits, disk_mb=30, memory_mb=200))
    box = await bench.sandbox.create(wanted)
    assert (await shell(box, "cat /what")).stdout == b"built\n"
    containers = {
        entry["Labels"]["com.docker.compose.service"]: bench.api.inspect_container(entry["Id"])["HostConfig"]
        for entry in bench.api.containers(filters={"label": f"com.docker.compose.project={project_of(wanted.box_id)}"})
    }
    assert [containers[name]["Memory"] >> 20 for name in ("main", "api")] == [200, 50]
    assert all(
        host["PidsLimit"] and not host["Privileged"] and "MKNOD" in str(host["CapDrop"]) for host in containers.values()
    )
    filled = await (await _service(box, "api")).exec(_command("head -c 60M /dev/zero > /big; sleep 5", 20.0))
    assert filled.limit_exceeded == "disk"
    await box.destroy()


async def test_services_of_a_dead_owner_are_swept(bench: Bench, tmp_path: Path) -> None:
    """After SIGKILL of the owner, containers, networks, volumes and files go; another project stays."""
    program = textwrap.dedent(f"""
        import asyncio, sys, time
        from pathlib import Path
        from tests.contracts.test_compose import Bench
        async def main():
            bench = Bench(Path({str(tmp_path / "owner")!r}))
            wanted = bench.spec()
            await bench.sandbox.create(wanted)
            print(wanted.box_id, flush=True)
            time.sleep(600)
        asyncio.run(main())
    """)
    others = bench.api.create_volume(f"not-ours-{os.getpid()}", labels={"com.docker.compose.project": "somebody"})
    environment = {**os.environ, "SYNTH_TEST_DOCKER": bench.url}  # noqa: TID251 - the owner is a process like this one
    with subprocess.Popen(  # noqa: ASYNC220 - its end is the test
        (sys.executable, "-c", program), stdout=subprocess.PIPE, env=environment
    ) as owner:
        assert owner.stdout is not None
        box_id = owner.stdout.readline().decode().strip()
        assert len(bench.left(box_id)) == 4, "two containers, a network, a volume"
        assert box_id not in await bench.sandbox.sweep(int(time.time() * 1000))
        os.kill(owner.pid, signal.SIGKILL)
    assert box_id in await bench.sandbox.sweep(int(time.time() * 1000))
    assert bench.left(box_id) == []
    assert bench.api.inspect_volume(others["Name"])
    bench.api.remove_volume(others["Name"])
    assert bridge_name(box_id, "default") not in await _rules()


async def _rules() -> str:
    asked = ("iptables", "-S", "INPUT")
    return (await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, check=True)).stdout


def test_without_compose_services_are_refused(tmp_path: Path) -> None:
    """Admission says what is missing."""
    sandbox = DockerSandbox(docker_url(), DirectoryStore(tmp_path), None, compose=str(tmp_path / "none"))
    (said,) = sandbox.refusals(TaskEnvironment(compose=True))
    assert "SYNTH_DOCKER_COMPOSE" in said
