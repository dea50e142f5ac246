"""The leak drill: workers killed at random points, and what of theirs is left when the janitor has had its time.

Used by the test (few kills) and by ``tests/benchmarks/leaks.py`` (twenty for each kind of box). Pods are not in it: a
third kind of box is one more entry of ``leaking._VARIANTS`` and ``leaking.sandboxes``, and one more look in ``_left``.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from adapters.sandboxes.egress import socket_of
from domain.records.experiment import ExperimentKind, UnitState
from domain.records.model import BasePolicy
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch, request_cancel
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from sensors.janitor import sweep
from tests.benchmarks.processes import ROOT
from tests.docker_engine import client
from tests.fakes.scripted_model import BASE, model_process
from tests.services.leaking import SlowSampler, connected, write_tasks

_LABEL = "synth.box"
_GROUPS = Path("/sys/fs/cgroup")
_DISPATCH_S = 5.0
_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakPlan:
    """How hard the drill is."""

    box: str
    """``local`` or ``docker``."""
    docker_url: str = ""
    kills: int = 20
    at_once: int = 4
    tasks: int = 12
    concurrency: int = 3
    within_s: float = 7.0
    """After a worker has taken its unit: when it is killed, drawn evenly."""
    sweep_s: float = 20.0
    """As the sensor does. Source: sensors/janitor.py."""
    wait_s: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One kill: who, and what it had at that moment."""

    unit: str
    pid: int
    processes: tuple[tuple[int, float], ...]
    """(pid, start) of everything below it, and of everything in its containers."""
    had: dict[str, int]


@dataclass(slots=True, kw_only=True)
class Leaks:
    """What the drill found."""

    had: Counter[str] = field(default_factory=Counter[str])
    """Over all kills, at the moment of the kill."""
    left: Counter[str] = field(default_factory=Counter[str])
    """Over all kills, ``wait_s`` later; and what is on the machine that was not there before."""
    kills: int = 0
    finished: int = 0
    """Workers that were done before their kill."""
    others: dict[str, bool] = field(default_factory=dict[str, bool])
    """What is not ours, or is a living owner's: whether it is still there."""
    wall_s: float = 0.0
    of_the_engine: tuple[str, ...] = ("networks", "containers without a label")
    """Of what is left: what others that use the engine at the same time may have made."""
    cached_layers: int = 0
    """Of builds that were killed: the engine's own cache, from which the next build of that Dockerfile goes on."""


async def run_leaks(home: Path, plan: LeakPlan) -> Leaks:
    """Run the drill below ``home`` and count."""
    started_s = time.monotonic()
    platform = connected(home, plan.docker_url)
    _publish(platform, home, plan)
    (home / "model").mkdir()
    found = Leaks()
    before = _standing(plan)
    async with model_process(home / "model", platform.store, sampler=SlowSampler(), ledger=platform.ledger):
        bystanders = _Bystanders(plan)
        drill = _Drill(platform, home, plan, found)
        keeping = asyncio.create_task(drill.keep_house())
        try:
            waves = [min(plan.at_once, plan.kills - done) for done in range(0, plan.kills, plan.at_once)]
            looks = [asyncio.create_task(_looked(drill, kill)) for n in waves for kill in await drill.wave(n)]
            await asyncio.gather(*looks)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            found.others = bystanders.alive()
            bystanders.end()
    found.left.update(_standing(plan) - before)
    found.cached_layers = found.left.pop("layers without an image", 0)
    found.left["processes of any box"] += _of_boxes(home / "boxes")
    found.left = +found.left
    found.wall_s = time.monotonic() - started_s
    return found


def _publish(platform: Platform, home: Path, plan: LeakPlan) -> None:
    base = BasePolicy(
        name="tiny", digest=BASE.base, family="scripted", files=(), recipe_digest="", context_tokens=1, n_parameters=1
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)
    write_tasks(home / "tasks", plan.box, plan.tasks)
    publish_task_set(platform, parse_reference("team/leaky@v1", field="drill"), str(home / "tasks"))


async def _looked(drill: "_Drill", kill: Killed) -> None:
    await asyncio.sleep(drill.plan.wait_s)
    drill.found.left.update(await asyncio.to_thread(drill.left_of, kill))


class _Drill:
    """Starts workers, kills them, and does what dispatcher and janitor do meanwhile."""

    def __init__(self, platform: Platform, home: Path, plan: LeakPlan, found: Leaks) -> None:
        self.platform, self.home, self.plan, self.found = platform, home, plan, found
        self._dice = random.Random(plan.seed)  # noqa: S311 - a drill, no secret

    async def keep_house(self) -> None:
        """Dispatch and sweep as the sensors do; no unit is launched again: nothing but the janitor cleans up."""
        next_sweep_s = time.monotonic() + self._dice.uniform(0, self.plan.sweep_s)
        while True:
            await asyncio.to_thread(dispatch, self.platform)
            if time.monotonic() > next_sweep_s:
                await sweep(self.platform)
                next_sweep_s = time.monotonic() + self.plan.sweep_s
            await asyncio.sleep(min(_DISPATCH_S, self.plan.sweep_s))

    async def wave(self, n: int) -> list[Killed]:
        """Run ``n`` workers and kill each at its moment."""
        moments = [self._dice.uniform(0, self.plan.within_s) for _ in range(n)]
        found = await asyncio.gather(*(asyncio.to_thread(self._killed, after_s) for after_s in moments))
        return [kill for kill in found if kill is not None]

    def _killed(self, after_s: float) -> Killed | None:
        """Run one evaluation and kill its worker; every other one is cancelled by its operator, too."""
        plan = self.plan
        submission = Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/leaky@v1",
            actor=Profile(name="mini", engine="mini", model="base:tiny"),
            plan=Plan(sandbox=plan.box, concurrency=plan.concurrency),
        )
        experiment = accept(self.platform, submission).experiment.experiment_id
        unit = unit_key(experiment, 0)
        command = [sys.executable, "-m", "tests.services.leaking", str(self.home), unit, unit, plan.docker_url]
        with (self.home / f"{unit}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        deadline_s = time.monotonic() + _START_S
        while self._state(unit) is not UnitState.RUNNING and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(after_s)
        if process.poll() is not None:
            self.found.finished += 1
            return None
        process.send_signal(signal.SIGSTOP)  # so that what it has is what the kill leaves
        kill = self._noted(unit, process.pid)
        process.kill()
        process.wait()
        self.found.kills += 1
        self.found.had.update(kill.had)
        if self.found.kills % 2:
            request_cancel(self.platform, experiment)
        return kill

    def _state(self, unit: str) -> UnitState:
        with self.platform.ledger.snapshot() as tx:
            return tx.units.get(unit).state

    def _noted(self, unit: str, pid: int) -> Killed:
        below = psutil.Process(pid).children(recursive=True)
        for container in _containers(self.plan.docker_url, pid):
            below += _inside(self.plan.docker_url, container)
        found: set[tuple[int, float]] = set()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                found.add((process.pid, process.create_time()))
        kill = Killed(unit=unit, pid=pid, processes=tuple(found), had={})
        kill.had.update(self.left_of(kill))
        return kill

    def left_of(self, kill: Killed) -> dict[str, int]:
        """Count what there is of a worker."""
        return {
            "processes": sum(_lives(pid, started) for pid, started in kill.processes),
            "directories": _directories(self.home / "boxes" / "boxes", kill.pid),
            "control groups": _groups(f"synth-{kill.pid}-"),
            "containers": len(_containers(self.plan.docker_url, kill.pid)),
            "tokens": self._tokens(kill.unit),
        }

    def _tokens(self, unit: str) -> int:
        """Count the tokens of a unit that the model process would answer."""
        with sqlite3.connect(f"file:{self.home / 'ledger.db'}?mode=ro", uri=True) as database:
            hashes = [row[0] for row in database.execute("select secret_sha256 from tokens where unit = ?", (unit,))]
        database.close()
        now_ms = self.platform.clock.now_ms()
        with self.platform.ledger.snapshot() as tx:
            return sum(tx.tokens.scope(found, now_ms) is not None for found in hashes)


def _lives(pid: int, started: float) -> bool:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
    return False


def _groups(prefix: str) -> int:
    """Count control groups by the beginning of their name, in every hierarchy."""
    return sum(name.startswith(prefix) for _, names, _ in os.walk(_GROUPS) for name in names)


def _directories(boxes: Path, pid: int) -> int:
    """Count the box directories of a process, and those that nobody has put a label on."""
    n = 0
    for directory in boxes.iterdir() if boxes.is_dir() else ():
        try:
            n += json.loads((directory / "label.json").read_text())["owner_pid"] == pid
        except (OSError, ValueError):
            n += directory.is_dir() and time.time() - directory.stat().st_mtime > 1
    return n


def _containers(url: str, pid: int) -> list[str]:
    if not url:
        return []
    found: list[dict[str, Any]] = client(url).containers(all=True, filters={"label": _LABEL})
    labels = {item["Id"]: json.loads(item["Labels"][_LABEL] or "{}") for item in found}
    return [name for name, label in labels.items() if label.get("owner_pid") == pid]


def _inside(url: str, container: str) -> list[psutil.Process]:
    with suppress(Exception):  # it may not run yet, or not any more
        rows: dict[str, Any] = client(url).top(container, ps_args="-o pid")
        return [psutil.Process(int(row[0])) for row in rows["Processes"]]
    return []


def _of_boxes(scratch: Path) -> int:
    """Count processes that name the boxes' directory or have something of it mounted, whoever started them."""
    n, name = 0, os.fsencode(scratch)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            named = name in (process / "cmdline").read_bytes() or name in (process / "mountinfo").read_bytes()
            n += named and int(process.name) != os.getpid()
    return n


def _standing(plan: LeakPlan) -> Counter[str]:
    """Count what no label ties to a worker: sockets nobody listens on, networks, containers and layers of builds."""
    found: Counter[str] = Counter()
    listening = Path("/proc/net/unix").read_text()
    found["sockets"] = sum(str(path) not in listening for path in socket_of("any").parent.glob("*.sock"))
    if plan.docker_url:
        engine = client(plan.docker_url)
        names = Counter(str(item["Name"]) for item in engine.networks())
        found["networks"] = names.total() - (names["synth-boxes"] > 0)  # one of them is for all boxes
        found["containers without a label"] = sum(
            _LABEL not in (item["Labels"] or {}) for item in engine.containers(all=True)
        )
        found["layers without an image"] = sum(
            not [tag for tag in item["RepoTags"] or () if not tag.startswith("<none>")]
            for item in engine.images(filters={"dangling": True})
        )
    return found


class _Bystanders:
    """What the janitor must not touch, with names like ours: a process, a container, a network."""

    def __init__(self, plan: LeakPlan) -> None:
        self._url = plan.docker_url
        self._process = subprocess.Popen(["bash", "-c", "exec -a bwrap sleep 3600"])
        self._container = self._network = ""
        if self._url:
            name = f"synth-foreign-{self._process.pid}"
            engine = client(self._url)
            made = engine.create_container("debian:bookworm-slim", ["sleep", "3600"], name=name, labels={"synth": "x"})
            self._container = str(made["Id"])
            engine.start(self._container)
            self._network = str(engine.create_network(name)["Id"])

    def alive(self) -> dict[str, bool]:
        """Say of each whether it is still there."""
        found = {"process": self._process.poll() is None}
        if self._url:
            engine = client(self._url)
            found["container"] = bool(engine.inspect_container(self._container)["State"]["Running"])
            found["network"] = any(item["Id"] == self._network for item in engine.networks())
        return found

    def end(self) -> None:
        """Remove them."""
        self._process.kill()
        self._process.wait()
        if self._url:
            client(self._url).remove_container(self._container, force=True)
            client(self._url).remove_network(self._network)


def summary(found: Leaks) -> dict[str, object]:
    """Return the figures, for people."""
    return {
        "kills": found.kills,
        "finished_before_their_kill": found.finished,
        "had": dict(found.had),
        "left": dict(found.left),
        "cached_layers_of_killed_builds": found.cached_layers,
        "others_untouched": found.others,
        "wall_s": round(found.wall_s, 1),
    }
