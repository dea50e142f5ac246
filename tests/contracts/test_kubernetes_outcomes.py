"""What a cluster does rarely, in the API's own words, and what becomes of a box then."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from adapters.sandboxes import kubernetes_faults as faults
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_commands import Bounds, PodCommands
from adapters.sandboxes.kubernetes_labels import OURS, Note, object_name
from adapters.sandboxes.kubernetes_manifest import pod, policy
from adapters.sandboxes.kubernetes_objects import Json, phase_of
from adapters.sandboxes.kubernetes_pods import make, sweep
from adapters.sandboxes.kubernetes_watch import Watch
from domain.ports import Command
from domain.records.task import TaskEnvironment
from tests.contracts.sandboxes import FAR_MS, spec
from tests.fakes.kubernetes_api import ScriptedApi, scripted_api

BOUNDS = Bounds(output_bytes=1000, processes=None, disk_kib=None, used_kib=0, written="")
RUNNING: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"name": "box", "state": {"running": {}}}]}


@asynccontextmanager
async def bench(directory: Path) -> AsyncGenerator[tuple[ScriptedApi, Api, Watch, Cluster]]:
    """Return a server, a connection and a watch in this event loop."""
    async with scripted_api(directory) as (server, kubeconfig):
        cluster = Cluster(kubeconfig=kubeconfig, schedule_s=0.5)
        api = await Api.open(cluster)
        watch = Watch(api, OURS)
        try:
            yield server, api, watch, cluster
        finally:
            await watch.stop()
            await api.close()


async def soon(met: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_429_is_waited_out_as_long_as_the_server_says(tmp_path: Path) -> None:
    """Retry-After holds; a server that never stops refusing is named after a while."""
    async with bench(tmp_path) as (server, api, _, _):
        for header in ({"Retry-After": "1"}, {}):
            server.answers.append(("GET", "pods", 429, "slow down", header))
        began_s = time.monotonic()
        assert await api.ask("GET", api.path("pods")) is not None
        assert time.monotonic() - began_s > 1.2
        server.answers += [("GET", "pods", 429, "slow down", {})] * 9
        with pytest.raises(faults.TooManyRequestsError, match="slow down"):
            await api.ask("GET", api.path("pods"), patience_s=0.5)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, "exceeded quota: boxes, requested: pods=1, used: pods=9, limited: pods=9", faults.QuotaExceededError),
        (403, 'violates PodSecurity "restricted:latest": runAsNonRoot != true', faults.PodSecurityError),
        (422, "spec.containers[0].image: Required value", faults.RequestRefusedError),
    ],
)
async def test_a_pod_that_is_not_admitted_leaves_no_policy(
    tmp_path: Path, status: int, message: str, kind: type[faults.PodError]
) -> None:
    """The refusal has its name, and the policy that came first is gone."""
    async with bench(tmp_path) as (server, api, watch, cluster):
        server.answers.append(("POST", "pods", status, message, {}))
        with pytest.raises(kind):
            await make(api, watch, cluster, spec())
        assert not server.things["networkpolicies"]


_NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no cpu"}


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        ({"phase": "Pending", "conditions": [_NO_NODE]}, faults.UnschedulableError, "no cpu"),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            faults.ImageUnavailableError,
            "ImagePullBackOff",
        ),
        ({"phase": "Failed", "reason": "NodeAffinity", "message": "no match"}, faults.NodeLostError, "no match"),
        ({"phase": "Pending"}, faults.NotStartedError, "did not run within"),
    ],
)
async def test_a_pod_that_does_not_come_to_run_is_removed(
    tmp_path: Path, status: dict[str, Any], kind: type[faults.PodError], words: str
) -> None:
    """Whatever keeps it, the box is refused by that name and nothing is left."""
    async with bench(tmp_path) as (server, api, watch, cluster):
        wanted = spec(environment=TaskEnvironment(build_timeout_s=1.0))
        making = asyncio.create_task(make(api, watch, cluster, wanted))
        await soon(lambda: server.things["pods"])
        server.set_status(object_name(wanted.box_id), status)
        with pytest.raises(kind, match=words):
            await making
        assert not server.things["pods"]
        assert not server.things["networkpolicies"]


async def test_a_name_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    """An object without our note is not ours to replace."""
    async with bench(tmp_path) as (server, api, watch, cluster):
        wanted = spec()
        foreign: dict[str, Any] = {"metadata": {"name": object_name(wanted.box_id), "uid": "f"}}
        server.things["pods"][object_name(wanted.box_id)] = foreign
        with pytest.raises(faults.NameTakenError, match="not ours"):
            await make(api, watch, cluster, wanted)
        assert list(server.things["pods"].values()) == [foreign]


@pytest.mark.parametrize(
    "last",
    [
        None,
        {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}},
        {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}},
    ],
)
async def test_a_watch_that_ends_is_taken_up_again(tmp_path: Path, last: dict[str, Any] | None) -> None:
    """An ordinary end goes on from its version; an expired version is listed again, and shows what went meanwhile."""
    async with bench(tmp_path) as (server, api, watch, cluster):
        running, gone = [pod(spec(), cluster, 0) for _ in range(2)]
        for each in (running, gone):
            await api.ask("POST", api.path("pods"), each)
        watch.start()
        await soon(lambda: server.watches and watch.pod(gone["metadata"]["name"]))
        n_listings = watch.n_listings
        if last is not None:
            del server.things["pods"][gone["metadata"]["name"]]
        server.end_watches(last)
        await soon(lambda: server.asked.count("WATCH pods") == 2 and server.watches)
        server.set_status(running["metadata"]["name"], RUNNING)
        assert await watch.until(running["metadata"]["name"], _is_running, 5.0)
        assert watch.n_listings == n_listings + (last is not None)
        assert (watch.pod(gone["metadata"]["name"]) is None) is (last is not None)


async def test_a_watch_whose_version_is_refused_lists_again(tmp_path: Path) -> None:
    """The status 410 means the same as the event."""
    async with bench(tmp_path) as (server, _, watch, _):
        server.answers.append(("WATCH", "pods", 410, "too old resource version", {}))
        watch.start()
        await soon(lambda: server.watches)
        assert watch.n_listings == 2


def _is_running(seen: Json | None) -> bool | None:
    return True if seen is not None and phase_of(seen) == "Running" else None


_DISK = "Container box exceeded its local ephemeral storage limit 26Mi. "


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "EvictedError"),
        ({"phase": "Failed", "reason": "Evicted", "message": _DISK}, "disk"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]},
            "memory",
        ),
        ({"phase": "Failed", "reason": "NodeLost", "message": "gone"}, "NodeLostError"),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "late"}, "DeadlinePassedError"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 255}}}]},
            "PodEndedError",
        ),
    ],
)
async def test_a_pod_that_ends_under_a_command_says_whose_doing_it_was(
    tmp_path: Path, status: dict[str, Any], outcome: str
) -> None:
    """Memory and disk are the command's own; all else is infrastructure, by name."""
    async with bench(tmp_path) as (server, api, watch, cluster):
        wanted = pod(spec(), cluster, 0)
        name = wanted["metadata"]["name"]
        await api.ask("POST", api.path("pods"), wanted)
        server.set_status(name, dict(RUNNING))
        watch.start()
        await soon(lambda: watch.pod(name))
        commands = PodCommands(api, watch, name, memory_bytes=1 << 20)
        running = asyncio.create_task(commands.run(Command(argv=("sleep", "60")), "/", BOUNDS))
        await asyncio.sleep(0.1)
        server.set_status(name, status)
        await server.hang_up(name)
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        said = type(ended).__name__ if isinstance(ended, BaseException) else ended.limit_exceeded
        assert said == outcome
        if outcome == "memory":
            assert commands.counters.peak_bytes == 1 << 20
        with pytest.raises(faults.PodError):
            await commands.run(Command(argv=("true",)), "/", BOUNDS)


async def test_a_namespace_of_level_restricted_is_refused_at_admission(tmp_path: Path) -> None:
    """With a user of its own a box is admitted there."""
    async with scripted_api(tmp_path) as (server, kubeconfig):
        server.namespace_labels["pod-security.kubernetes.io/enforce"] = "restricted"
        cluster = Cluster(kubeconfig=kubeconfig)
        (refusal,) = await asyncio.to_thread(KubernetesSandbox(cluster).refusals, TaskEnvironment())
        assert "SYNTH_KUBERNETES_USER" in refusal
        mine = KubernetesSandbox(replace(cluster, user=1000))
        assert await asyncio.to_thread(mine.refusals, TaskEnvironment()) == ()


async def test_a_sweep_takes_policies_and_secrets_along_and_nothing_else(tmp_path: Path) -> None:
    """What belongs to a box that is over goes; what belongs to one that lives, or to nobody, stays."""
    async with bench(tmp_path) as (server, api, _, cluster):
        over, live = spec(deadline_ms=1000), spec()
        for each in (over, live):
            await api.ask("POST", api.path("pods"), pod(each, cluster, 0))
            await api.ask("POST", api.path("networkpolicies"), policy(each, cluster))
        lonely = policy(spec(deadline_ms=1000), cluster)
        secret = {"metadata": {**policy(over, cluster)["metadata"]}}
        foreign: dict[str, Any] = {"metadata": {"name": "foreign", "labels": {"app.kubernetes.io/managed-by": "synth"}}}
        for kind, thing in (("networkpolicies", lonely), ("secrets", secret), ("secrets", foreign), ("pods", foreign)):
            await api.ask("POST", api.path(kind), thing)

        async def is_over(note: Note) -> bool:
            return note.deadline_ms < FAR_MS

        assert await sweep(api, is_over, OURS, 0) == (over.box_id,)
        assert set(server.things["pods"]) == {object_name(live.box_id), "foreign"}
        assert set(server.things["networkpolicies"]) == {object_name(live.box_id)}
        assert set(server.things["secrets"]) == {"foreign"}


def test_an_owner_is_looked_for_where_it_was() -> None:
    """A process of this machine by its id, another one's by its pod; an unknown one lives until the deadline."""
    note = Note.of(spec(), None)
    assert not note.owner_ended_here()
    assert replace(note, owner_started=1).owner_ended_here()
    elsewhere = replace(note, boot="another machine", owner_started=1)
    assert not elsewhere.owner_ended_here()
    assert not elsewhere.owner_ended_there(None)
    in_pod = replace(elsewhere, owner_pod="run", owner_pod_uid="u")
    same: dict[str, Any] = {"metadata": {"name": "run", "uid": "u"}, "status": {"phase": "Running"}}
    assert not in_pod.owner_ended_there(same)
    assert in_pod.owner_ended_there(None)
    assert in_pod.owner_ended_there({**same, "metadata": {"name": "run", "uid": "another"}})
    assert in_pod.owner_ended_there({**same, "status": {"phase": "Failed"}})
    assert Note(**asdict(in_pod)) == in_pod


async def test_a_pod_that_its_node_does_not_end_is_taken_out_of_the_api(tmp_path: Path) -> None:
    """Its end was asked for long ago, and only the node's word is missing."""
    async with bench(tmp_path) as (server, api, _, cluster):
        stuck, ending = spec(), spec()
        for each, since in ((stuck, "2026-01-01T00:00:00Z"), (ending, "2026-01-01T00:00:50Z")):
            await api.ask("POST", api.path("pods"), pod(each, cluster, 0))
            server.things["pods"][object_name(each.box_id)]["metadata"]["deletionTimestamp"] = since

        async def is_over(note: Note) -> bool:
            del note
            return False

        asked_ms = 1_767_225_600_000 + 70_000
        assert await sweep(api, is_over, OURS, asked_ms) == (stuck.box_id,)
        assert set(server.things["pods"]) == {object_name(ending.box_id)}
