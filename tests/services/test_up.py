"""``synth up``: processes that start, find each other, come back when they die, and go when they are told to."""

import contextlib
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import httpx
import psutil
import pytest
from dagster._daemon import sensor as dagster_sensor_loop

from cli.readiness import free_port, moved_port
from cli.supervisor import Farewell, Identity, Service, end
from cli.up import Up, down, render_instance, status, up
from domain.errors import ConfigurationError
from domain.records.experiment import ExperimentKind, ExperimentState
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from resources.settings import Settings, environment_of, read_settings
from resources.wiring import connect
from tests.fakes.platform import write_task

_PID = re.compile(r"\(pid: (\d+)\)")
"""How Dagster 1.13 names the process of a run in its events."""


def wait_for(what: Callable[[], bool], timeout_s: float = 90.0, pause_s: float = 0.1) -> None:
    """Wait until something is true."""
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(pause_s)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Return settings of a home of its own; whatever runs there is ended."""
    made = read_settings({"SYNTH_HOME": str(tmp_path / "home"), "SYNTH_UI_PORT": "23400", "SYNTH_PROXY_PORT": "24400"})
    yield made
    down(made)
    if made.sockets != made.run:
        shutil.rmtree(made.sockets, ignore_errors=True)


def _state(settings: Settings, experiment: str) -> ExperimentState:
    with connect(settings).ledger.snapshot() as tx:
        return tx.experiments.get(experiment).state


def _submit(settings: Settings, directory: Path) -> str:
    platform = connect(settings)
    for name in ("a1", "b1"):
        write_task(directory, name)
    publish_task_set(platform, parse_reference("team/small@v1", field="test"), str(directory))
    return accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/small@v1",
            actor=Profile(name="actor", engine="nop"),
            plan=Plan(attempts=2, sandbox="memory"),
        ),
    ).experiment.experiment_id


@pytest.mark.timeout(400)
def test_up_runs_what_was_accepted_and_goes_when_told(settings: Settings, tmp_path: Path) -> None:
    """One start: an evaluation succeeds in forked runs, a killed model process and daemon come back, nothing stays."""
    said: list[str] = []
    running = up(settings, detach=True, say=said.append)
    assert running.ready
    assert httpx.get(f"{running.ui}/server_info", trust_env=False).status_code == 200
    assert int(running.ui.rpartition(":")[2]) < 32768
    assert up(settings, detach=True, say=said.append).supervisor == running.supervisor
    assert "already up" in said[-1]

    experiment = _submit(settings, tmp_path / "tasks")
    parents: dict[int, psutil.Process] = {}
    wait_for(lambda: _note_parents(running, parents) or _state(settings, experiment).is_terminal(), pause_s=0.02)
    assert _state(settings, experiment) is ExperimentState.SUCCEEDED
    _assert_forked(running, parents, _run_processes(running, experiment))

    for name in ("model", "daemon"):
        os.kill(running.services[name].pid, signal.SIGKILL)
    wait_for(lambda: _revived(settings, running, ("model", "daemon")))
    wait_for(lambda: _answers(settings.control_socket))

    found = status(settings)
    assert found is not None
    assert down(settings)
    assert status(settings) is None
    assert not any(identity.lives() for identity in found.services.values())
    assert not (settings.run / "up.json").exists()
    assert not down(settings)


def _note_parents(running: Up, parents: dict[int, psutil.Process]) -> bool:
    """Note the parent of every process below the code server; False, since nobody knows when that is enough."""
    for child in psutil.Process(running.services["code"].pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = child.parent()
            if parent is not None:
                parents[child.pid] = parent
    return False


def _run_processes(running: Up, experiment: str) -> set[int]:
    """Return the processes in which the runs of an experiment worked, by Dagster's own event log."""
    query = """query Runs($tags: [ExecutionTag!]) { runsOrError(filter: {tags: $tags}) { ... on Runs { results {
        eventConnection { events { ... on MessageEvent { message } } } } } } }"""
    variables = {"tags": [{"key": "experiment", "value": experiment}]}
    answer = httpx.post(
        f"{running.ui}/graphql", json={"query": query, "variables": variables}, trust_env=False, timeout=30
    )
    runs = answer.json()["data"]["runsOrError"]["results"]
    found = [
        {int(pid) for event in run["eventConnection"]["events"] for pid in _PID.findall(event.get("message", ""))}
        for run in runs
    ]
    assert len(found) == 2, "a unit and its report"
    assert all(len(pids) == 1 for pids in found), "one process for each run"
    return set[int]().union(*found)


def _assert_forked(running: Up, parents: dict[int, psutil.Process], runs: set[int]) -> None:
    """Each run's parent is the fork server below the code server, and that one had imported the graph before."""
    assert runs <= parents.keys(), "runs are started elsewhere than below the code server"
    servers = {parents[run].pid for run in runs}
    assert len(servers) == 1
    server = psutil.Process(servers.pop())
    assert server.ppid() == running.services["code"].pid
    assert "multiprocessing.forkserver" in " ".join(server.cmdline())
    mapped = {Path(entry.path).name for entry in server.memory_maps()}
    # Multiprocessing passes over a preload that fails; what the graph imports is mapped only when it did not.
    assert any(name.startswith("_pydantic_core") for name in mapped)
    assert server.num_threads() == 1, "forking a process with threads is not safe"


def _revived(settings: Settings, before: Up, names: tuple[str, ...]) -> bool:
    now = status(settings)
    return now is not None and all(
        now.services[name] != before.services[name] and now.services[name].lives() for name in names
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def test_a_broken_setup_is_named_before_anything_starts(settings: Settings) -> None:
    """A wrong list of benchmarks stops the start with file and field."""
    settings.make_directories()
    settings.benchmarks.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"benchmarks\.json"):
        up(settings, detach=True)
    assert status(settings) is None


def test_a_dead_supervisor_is_no_running_one(settings: Settings) -> None:
    """A note left by a killed supervisor names nobody, even when the number was given to another process."""
    settings.make_directories()
    note = '{"supervisor": {"pid": %d, "created": 1.0}, "ui": "", "proxy": "", "ready": true, "services": {}}'
    (settings.run / "up.json").write_text(note % os.getpid())
    assert status(settings) is None
    (settings.run / "up.json").write_text("torn")
    assert status(settings) is None


def test_ending_a_session_takes_its_children_along(tmp_path: Path) -> None:
    """Also those that do not listen; a process with a reused number is left alone."""
    script = "trap '' TERM; sleep 60 & echo $! > child; wait; wait"
    service = Service(
        name="stubborn", argv=["sh", "-c", script], environment={}, directory=tmp_path, log=tmp_path / "log"
    )
    service.start()
    wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip() != "")
    child = Identity.of(int((tmp_path / "child").read_text()))
    assert child is not None
    assert service.identity is not None
    assert service.process is not None
    end([replace(service.identity, created=1.0)], timeout_s=0.1)
    assert child.lives()
    end([service.identity], timeout_s=0.5)
    service.process.wait(timeout=5)
    assert not child.lives()


def test_stopping_says_whom_it_waits_for() -> None:
    """Not at once, then every few seconds; those that have ended are not named."""
    me = Identity.of(os.getpid())
    assert me is not None
    said: list[str] = []
    waiting = Farewell(services={"model": me, "daemon": replace(me, created=1.0)}, say=said.append)
    waiting()
    assert said == []
    waiting.said_s -= 4.0
    waiting()
    waiting()
    (line,) = said
    assert "waiting for model (calls or a step under way); killed after 10 s" in line


def test_a_service_that_keeps_dying_is_started_later_and_later(tmp_path: Path) -> None:
    """Its files of a living process are removed before each start."""
    stale = tmp_path / "ready"
    service = Service(
        name="brief",
        argv=["true"],
        environment={"PATH": os.defpath},
        directory=tmp_path,
        log=tmp_path / "log",
        stale=(stale,),
    )
    service.start()
    waits: list[float] = []
    for _ in range(2):
        stale.touch()
        assert service.process is not None
        service.process.wait()
        assert not service.revive()
        waits.append(service.wait_s)
        wait_for(service.revive)
        assert not stale.exists()
    assert service.process is not None
    service.process.wait()
    assert (service.n_starts, waits) == (3, [1.0, 2.0])


def test_dagster_still_has_what_up_adjusts() -> None:
    """The sensor loop's turn is a constant of Dagster; without it the dispatcher would be slower, not wrong."""
    assert dagster_sensor_loop.MIN_INTERVAL_LOOP_TIME == 5


def test_a_report_waits_for_no_unit(settings: Settings) -> None:
    """Units in all their places leave one for the run that ends an experiment, beside one that shows a task set."""
    render_instance(settings)
    with dg.DagsterInstance.from_config(str(settings.dagster)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    limits = {(item["key"], item.get("value")): item["limit"] for item in queue.tag_concurrency_limits or []}
    assert limits["unit", None] == settings.max_concurrent_runs
    assert queue.max_concurrent_runs > settings.max_concurrent_runs + limits["kind", "task_set"]


def test_a_taken_port_is_passed_over() -> None:
    """The UI moves on to the next port; ports of client sockets are never used."""
    with socket.socket() as held:
        first = free_port("127.0.0.1", 23900)
        held.bind(("127.0.0.1", first))
        held.listen()
        assert free_port("127.0.0.1", first) == first + 1
        assert moved_port(first, f"http://127.0.0.1:{first}") == ""
        said = moved_port(first, f"http://127.0.0.1:{first + 1}")
        assert f"port {first} is taken" in said
        assert f"at port {first + 1}" in said
    with pytest.raises(ConfigurationError, match="no free port"):
        free_port("127.0.0.1", 32768)


@pytest.mark.parametrize(
    ("name", "text"),
    [("SYNTH_UI_PORT", "40000"), ("SYNTH_PROXY_PORT", "-1"), ("SYNTH_MAX_CONCURRENT_RUNS", "two")],
)
def test_a_wrong_setting_names_its_variable(name: str, text: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match=name):
        read_settings({name: text})


@pytest.mark.parametrize("name", ["SYNTH_HOME", "SYNTH_BOXES"])
def test_a_directory_that_cannot_be_made_names_its_variable(tmp_path: Path, name: str) -> None:
    """The message says which setting, which path and why."""
    wrong = read_settings({"SYNTH_HOME": str(tmp_path), name: "/proc/none"})
    with pytest.raises(ConfigurationError, match=f"^{name}: /proc/none"):
        wrong.make_directories()


def test_settings_survive_the_environment(tmp_path: Path) -> None:
    """A child process reads what its parent has."""
    made = read_settings({"SYNTH_HOME": str(tmp_path), "SYNTH_MODEL_THREADS": "2"})
    assert read_settings(environment_of(made)) == made


def test_sockets_of_a_deep_home_lie_elsewhere(tmp_path: Path) -> None:
    """A Unix socket's path has 107 bytes; the directory is this user's alone."""
    deep = read_settings({"SYNTH_HOME": str(tmp_path / ("d" * 90))})
    assert len(os.fsencode(deep.proxy_socket)) < 107
    deep.make_directories()
    assert deep.sockets.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(deep.sockets)


def test_the_end_gives_back_the_memory_of_boxes(settings: Settings) -> None:
    """What boxes in memory left goes; a directory with a box in it stays for the janitor."""
    directory = settings.memory_boxes
    if directory is None:
        pytest.skip("this machine has no memory to keep boxes in")
    live = directory / "boxes" / "t1-actor"
    live.mkdir(parents=True)
    (directory / "skeleton-2").mkdir()
    assert not down(settings)
    assert live.exists()
    live.rmdir()
    assert not down(settings)
    assert not directory.exists()
