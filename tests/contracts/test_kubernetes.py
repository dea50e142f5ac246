"""What only a cluster can show: crowds, large copies, users, ends of pods, a dead owner, and what is refused."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.sandboxes import kubernetes_faults as faults
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.kubernetes_box import KubernetesBox
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_labels import object_name
from adapters.sandboxes.kubernetes_link import link_to
from domain.errors import SandboxError
from domain.ports import Box, BoxSpec, Command, Limits
from domain.records.task import NetworkMode, TaskEnvironment
from tests.contracts.pods import named_cluster
from tests.contracts.sandboxes import contents, files, shell, spec

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(name="sandbox")
def _sandbox() -> KubernetesSandbox:
    return KubernetesSandbox(named_cluster())


async def asked(method: str, kind: str, name: str) -> Any:
    """Return the cluster's answer about an object, None when there is none."""
    link = link_to(named_cluster())

    async def ask() -> Any:
        api, _ = await link.open()
        return await api.ask(method, api.path(kind, name), absent=(404,))

    return await link.loop.call(ask())


async def left_of(wanted: BoxSpec) -> list[str]:
    """Return the kinds of objects that are there under a box's name."""
    name = object_name(wanted.box_id)
    return [kind for kind in ("pods", "networkpolicies") if await asked("GET", kind, name) is not None]


async def test_much_comes_back_as_it_went_in(sandbox: KubernetesSandbox) -> None:
    """50 MB in one file and 10,000 small ones."""
    box = await sandbox.create(spec())
    blob = os.urandom(1 << 20) * 50
    many = {f"d{number % 100}/f{number}": str(number).encode() for number in range(10_000)}
    await box.upload(files({"blob": blob}), "/app/one")
    await box.upload(files(many), "/app/many")
    assert contents(await box.download("/app/one"))["blob"] == blob
    assert contents(await box.download("/app/many")) == many
    result = await box.exec(Command(argv=("sha256sum",), stdin=blob))
    assert len(result.stdout.split()[0]) == 64
    await box.destroy()


async def test_twenty_boxes_work_at_once(sandbox: KubernetesSandbox) -> None:
    """Twenty pods beside each other all answer for themselves."""

    async def one(number: int) -> str:
        box = await sandbox.create(spec())
        await shell(box, f"echo {number} > n; sleep 0.3")
        out = (await shell(box, "cat n")).stdout.decode().strip()
        await box.destroy()
        return out

    assert await asyncio.gather(*(one(number) for number in range(20))) == [str(number) for number in range(20)]


async def test_a_box_leaves_nothing(sandbox: KubernetesSandbox) -> None:
    """Pod and policy are there while the box is, and gone with it."""
    wanted = spec()
    box = await sandbox.create(wanted)
    assert await left_of(wanted) == ["pods", "networkpolicies"]
    await box.destroy()
    assert await left_of(wanted) == []


async def test_other_users_by_name_and_number(sandbox: KubernetesSandbox) -> None:
    """As root the box becomes anyone; a name that the image does not know is an error, not a result."""
    if named_cluster().user is not None:
        pytest.skip("these boxes have one user")
    box = await sandbox.create(spec())
    for user, uid in ((None, "0"), ("root", "0"), ("nobody", "65534"), ("1234", "1234")):
        result = await shell(box, 'id -u; id -G; echo "$HOME"', user=user)
        assert result.stdout.decode().split()[0] == uid, result.stderr
        kept = await shell(box, "touch /etc/passwd; sleep 9 & wait", user=user, timeout_s=1.0)
        assert kept.timed_out
    with pytest.raises(SandboxError, match="no such user"):
        await shell(box, "true", user="nobody-of-that-name")
    await box.destroy()


@pytest.mark.parametrize("value", ["", "\n", "a\n\nb\n", "ü – 文 \udc80\udcff", "\x01\x7f'\"$(`\\", "x" * 100_000])
async def test_every_value_arrives_as_it_is(sandbox: KubernetesSandbox, value: str) -> None:
    """Arguments, variables and input are bytes, whatever the pod's shell makes of bytes in a script."""
    box = await sandbox.create(spec())
    raw = value.encode(errors="surrogateescape")
    script = 'printf "%s|" "$1"; printenv V; cat'
    result = await box.exec(Command(argv=("sh", "-c", script, "sh", value), env={"V": value}, stdin=raw))
    assert result.stdout == raw + b"|" + raw + b"\n" + raw
    await box.destroy()


async def test_an_agent_that_kills_everything_costs_itself_the_command(sandbox: KubernetesSandbox) -> None:
    """The supervisor is killed with the rest; the box goes on."""
    box = await sandbox.create(spec())
    result = await shell(box, "echo kept > f; kill -9 -1; sleep 9")
    assert result.exit_code == 137
    assert (await shell(box, "cat f")).stdout == b"kept\n"
    await box.destroy()


async def test_a_burst_of_memory_ends_by_name(sandbox: KubernetesSandbox) -> None:
    """Whether the kernel ends the process or the whole pod, the record says memory."""
    box = await sandbox.create(spec(limits=Limits(memory_mb=64)))
    result = await box.exec(Command(argv=("tail", "/dev/zero")))
    assert (result.limit_exceeded, result.exit_code) == ("memory", 137)
    await box.destroy()


async def test_an_unknown_image_is_an_error_and_leaves_nothing(sandbox: KubernetesSandbox) -> None:
    """A pull that fails is named; an image of no possible name is told from it."""
    environment = TaskEnvironment(docker_image="nobody.invalid/none:1", network_mode=NetworkMode.NO_NETWORK)
    wanted = spec(environment=environment)
    with pytest.raises(faults.ImageUnavailableError, match=r"nobody\.invalid/none:1|Pull"):
        await sandbox.create(wanted)
    assert await left_of(wanted) == []


async def test_a_pod_that_somebody_deletes_is_told(sandbox: KubernetesSandbox) -> None:
    """The command under way and each later one say that the pod is gone."""
    wanted = spec()
    box = await sandbox.create(wanted)
    running = asyncio.create_task(shell(box, "sleep 60", timeout_s=60))
    await asyncio.sleep(0.5)
    await asked("DELETE", "pods", object_name(wanted.box_id))
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await shell(box, "true")
    await box.destroy()


async def test_a_later_fence_replaces_what_an_earlier_one_left(sandbox: KubernetesSandbox) -> None:
    """The same box of a lost lease makes room; one of the same lease does not."""
    wanted = spec()
    first = await sandbox.create(wanted)
    second = await sandbox.create(replace(wanted, fence=wanted.fence + 1))
    assert (await shell(second, "echo on")).stdout == b"on\n"
    with pytest.raises(faults.NameTakenError):
        await sandbox.create(wanted)
    await second.destroy()
    await first.destroy()


async def test_a_box_that_is_cancelled_while_it_is_made_is_gone(sandbox: KubernetesSandbox) -> None:
    """Whatever the moment, nothing is left of a box that nobody got."""
    for delay_s in (0.0, 0.02, 0.1, 0.4, 0.8):
        wanted = spec()
        making = asyncio.create_task(sandbox.create(wanted))
        await asyncio.sleep(delay_s)
        making.cancel()
        with suppress(asyncio.CancelledError):
            await (await making).destroy()
        assert await left_of(wanted) == [], delay_s


_OWNER = """
import asyncio, sys
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.kubernetes_cluster import Cluster
from domain.ports import BoxSpec, Command, Limits
from domain.records.task import NetworkMode, TaskEnvironment

async def main():
    sandbox = KubernetesSandbox(Cluster(kubeconfig=sys.argv[1], namespace=sys.argv[2], request_share=0.05))
    environment = TaskEnvironment(network_mode=NetworkMode.NO_NETWORK)
    box = await sandbox.create(BoxSpec(box_id=sys.argv[3], experiment_id="e", trial_id="t", fence=1,
                                       deadline_ms=10**15, environment=environment, limits=Limits()))
    print("ready", flush=True)
    await box.exec(Command(argv=("sleep", "600"), timeout_s=600))

asyncio.run(main())
"""


async def test_a_sweep_ends_the_boxes_of_a_killed_owner_and_no_others(sandbox: KubernetesSandbox) -> None:
    """The note says whose a pod is; those of the living stay, policies go with their pods."""
    await sandbox.sweep(0)  # what earlier, killed tests may have left
    live = await sandbox.create(spec())
    cluster = named_cluster()
    orphan = replace(spec(), box_id=f"orphan-{os.getpid()}-{time.monotonic_ns()}")
    argv = [sys.executable, "-c", _OWNER, cluster.kubeconfig, cluster.namespace, orphan.box_id]
    owner = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    assert await sandbox.sweep(0) == ()
    owner.kill()
    await owner.communicate()
    assert orphan.box_id in await sandbox.sweep(0)
    assert await left_of(orphan) == []
    assert await sandbox.sweep(0) == ()
    assert (await shell(live, "true")).exit_code == 0
    await live.destroy()


async def test_a_proxy_that_pods_do_not_reach_is_told_before_the_first_trial() -> None:
    """The address is tried from the first pod with model access; no pod is left."""
    sandbox = KubernetesSandbox(replace(named_cluster(), proxy_url="http://192.0.2.1:9"))
    wanted = spec(model_access=True)
    with pytest.raises(faults.ProxyUnreachableError, match="SYNTH_KUBERNETES_PROXY_URL"):
        await sandbox.create(wanted)
    assert await left_of(wanted) == []
    with pytest.raises(SandboxError, match="know no address"):
        await KubernetesSandbox(named_cluster()).create(spec(model_access=True))


async def test_a_cluster_that_does_not_answer_refuses_by_name(tmp_path: Path) -> None:
    """Admission says so, and a sweep is no error; without any cluster nothing is asked."""
    (refusal,) = KubernetesSandbox(Cluster()).refusals(TaskEnvironment())
    assert "SYNTH_KUBECONFIG" in refusal
    missing = KubernetesSandbox(Cluster(kubeconfig=str(tmp_path / "none")))
    assert "SYNTH_KUBECONFIG" in missing.refusals(TaskEnvironment())[0]
    (tmp_path / "config").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: t}}]}"
    )
    silent = KubernetesSandbox(Cluster(kubeconfig=str(tmp_path / "config")))
    (refusal,) = silent.refusals(TaskEnvironment())
    assert "no Kubernetes cluster answers" in refusal
    assert await silent.sweep(0) == ()
    with pytest.raises(SandboxError):
        await silent.create(spec())


def test_what_a_pod_cannot_be_is_refused_by_name(sandbox: KubernetesSandbox) -> None:
    """A Dockerfile without its image, compose, and GPUs that no setting names."""
    refused = " ".join(sandbox.refusals(TaskEnvironment(dockerfile=True, compose=True, gpus=1, gpu_types=("a",))))
    assert all(word in refused for word in ("synth task-set build --push", "compose", "SYNTH_KUBERNETES_GPU"))
    built = TaskEnvironment(dockerfile=True, docker_image="debian:bookworm-slim")
    assert sandbox.refusals(built) == ()
    with_gpus = KubernetesSandbox(replace(named_cluster(), gpu_resource="nvidia.com/gpu"))
    assert with_gpus.refusals(TaskEnvironment(gpus=1, gpu_types=("a",))) == ()


async def test_the_record_says_whether_policies_hold(sandbox: KubernetesSandbox) -> None:
    """Two pods have tried it, once for this process; neither is left."""
    box: Box = await sandbox.create(spec())
    assert isinstance(box, KubernetesBox)
    said = (await box.stats()).limits_enforced_by["network"]
    assert said.startswith("no-network, network policy ")
    assert said == (await box.stats()).limits_enforced_by["network"]
    await box.destroy()
