"""The example workload from its own images, in containers and in pods, with the project's own tests as judge."""

import shutil
from pathlib import Path

import pytest

from adapters.benchmarks.pinned_images import pin_images
from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.docker_engine import Engine
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.stores.directory import DirectoryStore
from domain.ports import Sandbox
from domain.records.canonical import digest_bytes
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Overrides, Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch
from domain.service.evaluate import evaluation
from domain.service.publish import publish_task_set
from domain.service.units import Stage, run_unit
from tests.contracts.pods import named_cluster, runs_own_double
from tests.docker_engine import docker_url
from tests.fakes.platform import make_platform

pytestmark = pytest.mark.timeout(600)
WORKLOAD = Path("examples/workload")
TASKS = sorted(path.name for path in WORKLOAD.iterdir() if path.is_dir())
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
_BUILD_S = 400.0


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


async def means(home: Path, sandbox: Sandbox, tasks: Path) -> dict[str, float | None]:
    """Return what the tasks' own solutions and doing nothing score."""
    platform = make_platform(home, sandboxes={sandbox.name: sandbox})
    publish_task_set(platform, parse_reference("team/workload@v1", field="test"), str(tasks))
    found: dict[str, float | None] = {}
    plan = Plan(concurrency=2, sandbox=sandbox.name, overrides=Overrides(memory_mb=256, cpus=0.5))
    for name in ("oracle", "nop"):
        profile = Profile(name=name, engine=name)
        asked = Submission(kind=ExperimentKind.EVALUATION, task_set="team/workload@v1", actor=profile, plan=plan)
        accepted = accept(platform, asked).experiment
        for launch in dispatch(platform).launches:
            await run_unit(platform, launch.unit, "worker", STAGES, silent)
        found[name] = evaluation(platform, accepted.experiment_id).mean.value
    return found


def copies(directory: Path, names: list[str]) -> Path:
    """Return a directory with some tasks of the workload, for boxes of their own images alone."""
    for name in names:
        shutil.copytree(WORKLOAD / name, directory / name)
        toml = directory / name / "task.toml"
        toml.write_text(toml.read_text().replace("host_runnable = true", "host_runnable = false"))
    return directory


async def test_the_workload_runs_in_containers_of_its_images(tmp_path: Path) -> None:
    """Each Dockerfile is built where it runs."""
    home = tmp_path / "home"
    sandbox = DockerSandbox(docker_url(), DirectoryStore(home / "store"), None)
    assert await means(home, sandbox, copies(tmp_path / "tasks", TASKS)) == {"oracle": 1.0, "nop": 0.0}


async def test_the_workload_runs_in_pods_of_images_built_before(tmp_path: Path) -> None:
    """A cluster builds nothing: the images come from where they were built. A cluster of its own has not got them."""
    cluster = named_cluster()
    if not runs_own_double():
        pytest.skip("a named cluster needs a registry: synth task-set build --push")
    engine = Engine(docker_url(), DirectoryStore(tmp_path / "store"))

    def publish(context: bytes, _name: str) -> str:
        tag = f"synth-task:{digest_bytes(context)[:32]}"
        engine.build(tag, lambda: context, _BUILD_S)
        return tag

    pin_images(copies(tmp_path / "sources", TASKS[:2]), tmp_path / "tasks", "unused", publish, silent)
    sandbox = KubernetesSandbox(cluster)
    assert await means(tmp_path / "home", sandbox, tmp_path / "tasks") == {"oracle": 1.0, "nop": 0.0}
