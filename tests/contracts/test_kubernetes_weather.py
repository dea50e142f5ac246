"""Boxes on a cluster in bad weather: what the double is told to do wrong while real pods run."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

import pytest

from adapters.sandboxes import kubernetes_faults as faults
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.kubernetes_labels import object_name
from domain.errors import SandboxError
from domain.ports import Box, Limits
from tests.contracts.pods import double, named_cluster, runs_own_double
from tests.contracts.sandboxes import shell, spec
from tests.kubernetes_double.control import Control
from tests.kubernetes_double.kinds import PODS, POLICIES

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(name="sandbox")
async def _sandbox() -> AsyncGenerator[KubernetesSandbox]:
    if not runs_own_double():
        pytest.skip("a real cluster is not told to do wrong")
    yield KubernetesSandbox(named_cluster())
    double().control.unanswer()


@pytest.fixture(name="control")
def _control(sandbox: KubernetesSandbox) -> Control:
    del sandbox
    return double().control


def left() -> list[str]:
    """Return kind and name of pods and policies in the cluster."""

    async def names() -> list[str]:
        found = [thing for kind in (PODS, POLICIES) for thing in double().cluster.store.find(kind, "default", bool)]
        return [f"{thing['kind']}/{thing['metadata']['name']}" for thing in found]

    return double().wait(names())


async def works(box: Box) -> bool:
    """Say whether a box runs a command."""
    return (await shell(box, "echo on")).stdout == b"on\n"


async def test_a_box_is_made_through_refused_and_lost_answers(sandbox: KubernetesSandbox, control: Control) -> None:
    """429 and 500 are waited out; an answer that is lost after the pod was made is no reason to make it again."""
    control.answer("POST", "/networkpolicies", 429, retry_after_s=1)
    control.drop("POST", "/networkpolicies", done=True)
    control.answer("POST", "/pods", 500)
    control.drop("POST", "/pods")
    control.drop("POST", "/pods", done=True)
    wanted = spec()
    box = await sandbox.create(wanted)
    assert await works(box)
    with pytest.raises(faults.NameTakenError):
        await sandbox.create(wanted)
    control.drop("DELETE", "/pods", done=True)
    control.answer("DELETE", "/networkpolicies", 429, times=2)
    await box.destroy()
    assert object_name(wanted.box_id) not in " ".join(await asyncio.to_thread(left))


async def test_a_box_is_made_although_watches_expire(sandbox: KubernetesSandbox, control: Control) -> None:
    """Whatever is forgotten while a pod starts, it is listed again."""
    control.delay_pulls(0.3)
    try:
        making = asyncio.create_task(sandbox.create(spec()))
        while not making.done():
            await asyncio.to_thread(control.expire_watches)
            await asyncio.sleep(0.1)
    finally:
        control.delay_pulls(0)
    box = making.result()
    assert await works(box)
    await box.destroy()


async def _cut_short(box: Box, kind: type[SandboxError], work: Callable[[], None]) -> None:
    """Let something happen under a command and look at what becomes of it, and of the box."""
    running = asyncio.create_task(shell(box, "sleep 60", timeout_s=60))
    await asyncio.sleep(0.5)
    began_s = time.monotonic()
    await asyncio.to_thread(work)
    with pytest.raises(kind):
        await running
    assert time.monotonic() - began_s < 30
    with pytest.raises(SandboxError):
        await shell(box, "true")


async def test_an_eviction_under_a_command_has_its_name(sandbox: KubernetesSandbox, control: Control) -> None:
    """The node's want is not the trial's."""
    wanted = spec()
    box = await sandbox.create(wanted)
    await _cut_short(box, faults.EvictedError, lambda: control.evict(object_name(wanted.box_id)))
    await box.destroy()


async def test_a_lost_node_under_a_command_has_its_name(sandbox: KubernetesSandbox, control: Control) -> None:
    """The connection ends without a word, and the pod stays; the box is given up, and its pod goes with the node."""
    wanted = spec()
    box = await sandbox.create(wanted)
    try:
        await _cut_short(box, faults.NodeLostError, control.lose_node)
    finally:
        await asyncio.to_thread(control.find_node)
    await box.destroy()
    assert object_name(wanted.box_id) not in " ".join(await asyncio.to_thread(left))


async def test_a_pod_that_writes_too_much_ends_by_name(sandbox: KubernetesSandbox, control: Control) -> None:
    """What our own look at the directories does not see, the kubelet does."""
    control.housekeeping(0.5)
    try:
        wanted = spec(limits=Limits(disk_mb=8))
        box = await sandbox.create(wanted)
        result = await shell(
            box, "for i in 1 2 3 4 5 6; do head -c 7000000 /dev/zero >/opt/$i; done; sleep 30", timeout_s=30
        )
        assert (result.limit_exceeded, result.exit_code) == ("disk", 137)
        await box.destroy()
    finally:
        control.housekeeping(10.0)
