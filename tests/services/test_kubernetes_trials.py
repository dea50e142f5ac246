"""Trials in pods, from acceptance to the report: the solution, nothing, and an agent that reaches the model proxy."""

import json
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.mini import MiniEngine
from adapters.model_client import HttpModelService
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.verifiers.script import ScriptVerifier
from domain.records.experiment import ExperimentKind
from domain.records.model import BasePolicy
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch
from domain.service.evaluate import evaluation
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.units import Stage, UnitResult, run_unit
from tests.contracts.pods import image_with_python, named_cluster
from tests.fakes.platform import make_platform, write_task
from tests.fakes.scripted_model import BASE, model_process

pytestmark = pytest.mark.timeout(240)

_TEST = """if [ "$(cat /app/out 2>/dev/null)" = written ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
_STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


def _silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


def _platform(home: Path, sandbox: KubernetesSandbox, image: str) -> Platform:
    """Return a platform with one published task; without an image it is one that any box may run."""
    platform = make_platform(home / "home", sandboxes={"kubernetes": sandbox})
    task = write_task(home / "tasks", "write", test=_TEST, solution="echo written > /app/out\n")
    (task / "environment" / "Dockerfile").unlink()
    text = (task / "task.toml").read_text() + '[environment]\nnetwork_mode = "no-network"\n'
    if image:
        text = text.replace("host_runnable = true\n", "") + f'docker_image = "{image}"\n'
    (task / "task.toml").write_text(text)
    publish_task_set(platform, parse_reference("team/words@v1", field="test"), str(home / "tasks"))
    return platform


def _image(cluster: Cluster) -> str:
    """Return the image that the task names; an ordinary user could not make the working directory in a bare one."""
    return cluster.default_image if cluster.user is None else ""


async def _evaluated(platform: Platform, actor: Profile) -> tuple[float | None, UnitResult]:
    """Run an evaluation to its end; returns its mean and the result of its one unit."""
    plan = Plan(attempts=2, concurrency=1 if actor.model else 2, sandbox="kubernetes")
    wanted = Submission(kind=ExperimentKind.EVALUATION, task_set="team/words@v1", actor=actor, plan=plan)
    accepted = accept(platform, wanted)
    (launch,) = dispatch(platform).launches
    result = await run_unit(platform, launch.unit, "worker", _STAGES, _silent)
    return evaluation(platform, accepted.experiment.experiment_id).mean.value, result


async def test_a_task_with_an_image_tells_oracle_from_nop(tmp_path: Path) -> None:
    """Agent and verifier each get a pod of the task's image; only the work goes from one to the other."""
    cluster = named_cluster()
    sandbox = KubernetesSandbox(cluster)
    platform = _platform(tmp_path, sandbox, _image(cluster))
    for engine, mean in (("oracle", 1.0), ("nop", 0.0)):
        found, result = await _evaluated(platform, Profile(name=engine, engine=engine))
        assert found == mean, str(result.assessments)
        for trial in result.trials.trials:
            assert (trial.sandbox, trial.limits_enforced_by["memory"]) == ("kubernetes", "kubelet")
            assert "network policy" in trial.limits_enforced_by["network"]
            assert trial.made_from["image"]


@asynccontextmanager
async def _with_model(
    platform: Platform, cluster: Cluster, directory: Path, script: Sequence[str]
) -> AsyncGenerator[Platform]:
    """Serve a scripted model where pods reach it, for a platform whose boxes know the address."""
    base = BasePolicy(
        name="tiny", digest=BASE.base, family="scripted", files=(), recipe_digest="", context_tokens=1, n_parameters=1
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)
    async with model_process(directory, platform.store, script, ledger=platform.ledger, host="0.0.0.0") as process:  # noqa: S104 - pods are elsewhere
        port = process.url.rpartition(":")[2]
        sandbox = KubernetesSandbox(replace(cluster, proxy_url=f"http://{_address()}:{port}"))
        yield replace(
            platform,
            engines={**platform.engines, "mini": MiniEngine()},
            sandboxes={"kubernetes": sandbox},
            verifiers={"kubernetes": ScriptVerifier(sandbox, platform.store, platform.clock)},
            model=HttpModelService(process.endpoints.control_socket, platform.store, platform.clock),
        )


def _address() -> str:
    """Return this machine's own address, which its containers and nodes reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))  # no packet is sent
        return str(asking.getsockname()[0])


async def test_an_agent_in_a_pod_reaches_the_model(tmp_path: Path) -> None:
    """The proxy's address is a setting; every call of the model is in the evidence."""
    cluster = replace(named_cluster(), default_image=image_with_python())
    platform = _platform(tmp_path, KubernetesSandbox(cluster), _image(cluster))
    turn = f"<call>bash {json.dumps({'command': 'echo written > /app/out'})}</call>"
    async with _with_model(platform, cluster, tmp_path, [turn, "done", turn, "done"]) as served:
        mean, result = await _evaluated(served, Profile(name="mini", engine="mini", model="base:tiny"))
        assert mean == 1.0, [trial.detail for trial in result.trials.trials]
        assert [trial.usage.n_calls for trial in result.trials.trials] == [2, 2]
