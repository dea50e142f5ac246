"""``synth up``: the model process and Dagster on one machine, supervised; ``synth down`` ends them.

Everything listens on loopback or on Unix sockets below SYNTH_HOME. ``SYNTH_HOME/run/up.json`` says what runs.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from cli.readiness import Probe, free_port, moved_port
from cli.supervisor import STOP_S, Farewell, Identity, Service, Supervisor, end
from domain.errors import ConfigurationError, ConflictError, SynthError

if TYPE_CHECKING:
    from resources.settings import Settings

READY_S = 120.0
"""How long starting may take on a busy machine; usually it is some ten seconds."""
_ROOT = Path(__file__).resolve().parents[1]
_TURN_S = 0.25
_UI_PORT = 3000
"""Where the search for a free port begins when the settings leave it open."""
_MIGRATION_TRIES = 3
_STOPPING = "stopping: what is under way is cut short, and goes on from what is kept at the next `synth up`"
_OTHER_RUNS = 2
"""Runs beside those of units: reports, and what shows the catalogue."""
Say = Callable[[str], None]
_left_running: "list[subprocess.Popen[bytes]]" = []
"""Supervisors that this process started and leaves alone: forgetting the handle of a living child is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """What runs."""

    supervisor: Identity
    ui: str
    """URL of the Dagster UI."""
    proxy: str
    """URL of the model proxy on TCP."""
    ready: bool = False
    services: dict[str, Identity] = field(default_factory=dict[str, Identity])


def up(settings: "Settings", *, detach: bool = False, say: Say = lambda _: None) -> Up:
    """Start what is not running and wait until it is ready.

    Args:
        settings: where.
        detach: return once everything is ready and leave it running. Otherwise this call is the supervisor, and it
            returns after SIGINT, SIGTERM or ``down``.
        say: called with one line for people as things happen.

    Raises:
        ConfigurationError: something of the set-up is wrong; nothing was started.
        SynthError: a process did not become ready; names its log.
    """
    settings.make_directories()
    running = status(settings)
    if running is not None:
        say(f"already up: {running.ui}")
        return _wait_until_ready(settings, None)
    _check(settings)
    if detach:
        log = settings.logs / "up.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        say(f"starting; logs in {settings.logs}")
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.up"],
                env=_environment(settings),
                cwd=settings.home,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _left_running.append(process)
        found = _wait_until_ready(settings, process)
        _say_moved(settings, found.ui, say)
        return found
    return _supervise(settings, say)


def down(settings: "Settings", *, say: Say = lambda _: None) -> bool:
    """End everything that ``up`` started, cleanly when its supervisor lives; says whether anything ran."""
    running = status(settings)
    if running is not None:
        say(_STOPPING)
        waiting = Farewell(services=running.services, say=say)
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.supervisor.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S + 10.0
        while running.supervisor.lives() and time.monotonic() < deadline_s:
            waiting()
            time.sleep(0.05)
    leftover = _read(settings)
    if leftover is not None:
        end([*leftover.services.values()], timeout_s=STOP_S)
        _file(settings).unlink(missing_ok=True)
    _forget_memory_boxes(settings)
    return running is not None or leftover is not None


def _forget_memory_boxes(settings: "Settings") -> None:
    """Give back the memory that boxes of this home took, when no box is left there; it is made again when needed."""
    directory = settings.memory_boxes
    if directory is not None and directory.is_dir() and directory.stat().st_uid == os.getuid():
        with contextlib.suppress(OSError):
            (directory / "boxes").rmdir()  # fails while there is a box, or none was ever made
            shutil.rmtree(directory)


def status(settings: "Settings") -> Up | None:
    """Return what runs; None when no supervisor lives, whatever a dead one has left."""
    found = _read(settings)
    return found if found is not None and found.supervisor.lives() else None


# --- the supervisor ------------------------------------------------------------------------------


def _supervise(settings: "Settings", say: Say) -> Up:
    stop = threading.Event()
    with _only_one(settings), _signals(stop):
        leftover = _read(settings)
        if leftover is not None:
            end([*leftover.services.values()], timeout_s=STOP_S)
        ui_port = free_port(settings.ui_host, settings.ui_port or _UI_PORT)
        _say_moved(settings, str(ui_port), say)
        proxy_port = free_port("127.0.0.1", settings.proxy_port or 20790)
        settings = replace(settings, ui_port=ui_port, proxy_port=proxy_port)
        render_instance(settings)
        supervisor = Supervisor()
        state = _state(settings, supervisor, ready=False)
        try:
            state = _run(settings, supervisor, stop, say)
        finally:
            say(_STOPPING)
            supervisor.stop(say)
            _file(settings).unlink(missing_ok=True)
    return state


def _run(settings: "Settings", supervisor: Supervisor, stop: threading.Event, say: Say) -> Up:
    probe = Probe(settings=settings)
    state = _state(settings, supervisor, ready=False)
    for service in _services(settings):
        if service.name == "code":
            # Each process of Dagster, the code server too, makes its databases when it finds none: side by side they
            # stamp one database twice, which no later start can read.
            _prepare_dagster(settings)
        supervisor.start(service)
        state = _state(settings, supervisor, ready=False)
    deadline_s = time.monotonic() + READY_S
    while not stop.wait(_TURN_S):
        for service in supervisor.revive():
            say(f"{service.name} had died and was started again; see {service.log}")
            state = _state(settings, supervisor, ready=state.ready)
        if state.ready:
            continue
        missing = probe.missing()
        if not missing:
            say(f"ready: {state.ui}")
            state = _state(settings, supervisor, ready=True)
        elif time.monotonic() > deadline_s:
            raise SynthError(f"not ready after {READY_S:.0f} s: {missing}", hint=f"see the logs in {settings.logs}")
    return state


def _say_moved(settings: "Settings", ui: str, say: Say) -> None:
    moved = moved_port(settings.ui_port or _UI_PORT, ui)
    if moved:
        say(moved)


def _services(settings: "Settings") -> list[Service]:
    module = [sys.executable, "-m"]
    location = ["--location-name", "synth"]
    workspace = ["-w", str(settings.dagster / "workspace.yaml")]
    ui = ["-h", settings.ui_host, "-p", str(settings.ui_port)]
    commands: dict[str, tuple[list[str], tuple[Path, ...]]] = {
        "model": ([*module, "cli.model_process"], (settings.run / "proxy.port",)),
        "code": (
            [
                *module,
                "cli.code_server",
                "api",
                "grpc",
                "-m",
                "definitions",
                "-s",
                str(settings.code_socket),
                *location,
            ],
            (settings.code_socket,),
        ),
        "daemon": ([*module, "cli.dagster_daemon", "run", *workspace, "--log-level", "warning"], ()),
        "webserver": ([*module, "dagster_webserver", *workspace, *ui, "--uvicorn-log-level", "warning"], ()),
    }
    environment = _environment(settings)
    return [
        Service(
            name=name,
            argv=argv,
            environment=environment,
            directory=settings.dagster,
            log=settings.logs / f"{name}.log",
            stale=stale,
        )
        for name, (argv, stale) in commands.items()
    ]


def _environment(settings: "Settings") -> dict[str, str]:
    from resources.settings import environment_of

    inherited = dict(os.environ)  # noqa: TID251 - a process entry point hands its environment on
    paths = [str(_ROOT), *filter(None, [inherited.get("PYTHONPATH", "")])]
    return {
        **inherited,
        **environment_of(settings),
        "DAGSTER_HOME": str(settings.dagster),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }


def _check(settings: "Settings") -> None:
    """Find what is wrong before anything starts: the ledger, the benchmarks' document."""
    from resources.documents import read_benchmarks
    from resources.wiring import connect

    connect(settings)
    read_benchmarks(settings.benchmarks)


def render_instance(settings: "Settings") -> None:
    """Write what Dagster's processes are told: the instance's configuration, and where the code server is."""
    settings.dagster.mkdir(parents=True, exist_ok=True)
    template = Template((files("deploy") / "dagster.yaml").read_text(encoding="utf-8"))
    rendered = template.substitute(
        max_units=settings.max_concurrent_runs, max_runs=settings.max_concurrent_runs + _OTHER_RUNS
    )
    (settings.dagster / "dagster.yaml").write_text(rendered, encoding="utf-8")
    server = {"socket": str(settings.code_socket), "location_name": "synth"}
    workspace = json.dumps({"load_from": [{"grpc_server": server}]}, indent=2)
    (settings.dagster / "workspace.yaml").write_text(workspace, encoding="utf-8")


def _prepare_dagster(settings: "Settings") -> None:
    """Create or migrate Dagster's databases, once for each version of it."""
    from importlib.metadata import version

    mark = settings.dagster / "prepared"
    if mark.exists() and mark.read_text(encoding="utf-8") == version("dagster"):
        return
    for left in reversed(range(_MIGRATION_TRIES)):
        done = subprocess.run(
            [sys.executable, "-m", "dagster", "instance", "migrate"],
            env=_environment(settings),
            cwd=settings.dagster,
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            break
        # On a busy machine SQLite may say that its file is locked; the migration is safe to run again.
        if left == 0:
            said = [line for line in done.stderr.decode(errors="replace").splitlines() if "Error" in line]
            raise ConfigurationError(
                f"Dagster cannot use {settings.dagster}: {said[-1] if said else done.returncode}",
                hint="see `dagster instance info`",
            )
    mark.write_text(version("dagster"), encoding="utf-8")


@contextlib.contextmanager
def _only_one(settings: "Settings") -> Generator[None]:
    """Hold the lock of this home; the kernel frees it whatever becomes of this process."""
    with (settings.run / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another `synth up` is starting in {settings.home}", hint="wait for it") from None
        yield


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Generator[None]:
    """Stop on SIGINT, SIGTERM and SIGHUP; children get the defaults, since handlers do not outlive exec."""

    def handle(_number: int, _frame: object) -> None:
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what runs, on disk --------------------------------------------------------------------------


def _file(settings: "Settings") -> Path:
    return settings.run / "up.json"


def _state(settings: "Settings", supervisor: Supervisor, *, ready: bool) -> Up:
    """Write and return what runs now."""
    me = Identity.of(os.getpid())
    if me is None:
        raise SynthError("this process cannot see itself in /proc")
    services = {service.name: service.identity for service in supervisor.services if service.identity is not None}
    state = Up(
        supervisor=me,
        ui=f"http://{settings.ui_host}:{settings.ui_port}",
        proxy=f"http://127.0.0.1:{settings.proxy_port}",
        ready=ready,
        services=services,
    )
    draft = _file(settings).with_suffix(".draft")
    draft.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    draft.replace(_file(settings))
    return state


def _read(settings: "Settings") -> Up | None:
    """Return what a supervisor has noted; None when there is nothing, or nothing readable."""
    try:
        value = json.loads(_file(settings).read_text(encoding="utf-8"))
        return Up(
            supervisor=Identity(**value["supervisor"]),
            ui=value["ui"],
            proxy=value["proxy"],
            ready=value["ready"],
            services={name: Identity(**item) for name, item in value["services"].items()},
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _wait_until_ready(settings: "Settings", process: "subprocess.Popen[bytes] | None") -> Up:
    deadline_s = time.monotonic() + READY_S + STOP_S
    while time.monotonic() < deadline_s:
        found = status(settings)
        if found is not None and found.ready:
            return found
        if (process is not None and process.poll() is not None) or (process is None and found is None):
            break
        time.sleep(0.1)
    log = settings.logs / "up.log"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    raise SynthError(
        "`synth up` did not become ready: " + " | ".join(lines[-3:]), hint=f"see the logs in {settings.logs}"
    )


def main() -> int:
    """Supervise in the foreground with the settings of the environment; returns the exit code."""
    from cli.connection import settings

    def say(line: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    try:
        up(settings(), say=say)
    except SynthError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
