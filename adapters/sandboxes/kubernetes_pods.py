"""A box's objects made and removed: policy before pod, pod before policy, and nothing left of a box that nobody got."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_faults import (
    AccessRefusedError,
    ApiUnreachableError,
    NameTakenError,
    NotStartedError,
    PodError,
    PodGoneError,
    UnschedulableError,
    start_fault,
    unschedulable,
)
from adapters.sandboxes.kubernetes_labels import Note
from adapters.sandboxes.kubernetes_manifest import pod, policy
from adapters.sandboxes.kubernetes_objects import Json, ending_since_ms, is_ending, name_of, section, states, uid_of
from adapters.sandboxes.kubernetes_watch import Watch
from domain.errors import SandboxError
from domain.ports import BoxSpec

IsOver = Callable[[Note], Awaitable[bool]]

GRACE_S = 1
_MARK = "synth/made-by"
"""Annotation that tells one request from another."""
_UNSEEN_S = 15.0
_GONE_S = 20.0
_STUCK_MS = 60_000
_ABSENT, _CONFLICT = 404, 409


async def make(api: Api, watch: Watch, cluster: Cluster, spec: BoxSpec) -> Json:
    """Make policy and pod of a box and return the pod once it runs.

    Raises:
        PodError: it does not come to run; both objects are removed again.
    """
    await _post(api, "networkpolicies", policy(spec, cluster), spec)
    try:
        made = await _post(api, "pods", pod(spec, cluster, int(time.time() * 1000)), spec)
        return await _running(watch, made, cluster.schedule_s, spec.environment.build_timeout_s)
    except NameTakenError:
        raise  # both belong to the box that has the name
    except BaseException:
        await asyncio.shield(_discard(api, watch, name_of(policy(spec, cluster))))
        raise


async def _post(api: Api, kind: str, body: dict[str, Any], spec: BoxSpec) -> Json:
    """Create an object; one of the same box from before the lease was lost makes room.

    A POST whose answer is lost is sent again and finds the name taken, by what it made itself: that bears its mark.
    """
    mark = body["metadata"]["annotations"][_MARK] = secrets.token_hex(8)
    for _ in range(2):
        made = await api.ask("POST", api.path(kind), body, absent=(_CONFLICT,))
        if made is not None:
            return made
        name = name_of(body)
        there = await api.ask("GET", api.path(kind, name), absent=(_ABSENT,))
        if there is None:
            continue
        if section(there, "metadata", "annotations").get(_MARK) == mark:
            return there
        note = Note.read(there)
        if note is None:
            raise NameTakenError(f"box {spec.box_id}: {kind} {name} is not ours", hint="use another namespace")
        if note.fence >= spec.fence:
            raise NameTakenError(f"box {spec.box_id} exists already", hint="a box id is used once")
        await api.ask("DELETE", api.path(kind, name), _deletion(there), absent=(_ABSENT, _CONFLICT))
        await _until_absent(api, kind, name)
    raise NameTakenError(f"box {spec.box_id}: its name is still taken", hint="try again")


def _deletion(thing: Json, grace_s: int = GRACE_S) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": grace_s,
        "preconditions": {"uid": uid_of(thing)},
    }


async def _until_absent(api: Api, kind: str, name: str) -> None:
    deadline_s = time.monotonic() + _GONE_S
    while await api.ask("GET", api.path(kind, name), absent=(_ABSENT,)) is not None:
        if time.monotonic() > deadline_s:
            raise NameTakenError(f"{kind} {name} does not go away", hint="look at its finalizers and its node")
        await asyncio.sleep(0.2)


async def _running(watch: Watch, made: Json, schedule_s: float, start_s: float) -> Json:
    """Return the pod once its container runs. Raises PodError."""
    started_s = time.monotonic()
    name, uid = name_of(made), uid_of(made)

    def met(seen: Json | None) -> Json | PodError | None:
        waited_s = time.monotonic() - started_s
        if seen is not None and uid_of(seen) == uid:
            return _start(seen, waited_s, schedule_s)
        if waited_s < _UNSEEN_S:
            return None
        return ApiUnreachableError(watch.trouble) if watch.trouble else PodGoneError(f"pod {name} was deleted")

    try:
        found: Any = await watch.until(name, met, schedule_s + start_s)
    except TimeoutError:
        raise NotStartedError(f"pod {name} did not run within {schedule_s + start_s:g} s") from None
    if isinstance(found, PodError):
        raise found
    return found


def _start(seen: Json, waited_s: float, schedule_s: float) -> Json | PodError | None:
    """Return a pod that runs, why it never will, or None while it may."""
    if (fault := start_fault(seen)) is not None:
        return fault
    if is_running(seen):
        return seen
    if (words := unschedulable(seen)) and waited_s > schedule_s:
        return UnschedulableError(f"pod {name_of(seen)}: {words}", hint=f"no node within {schedule_s:g} s")
    return None


def is_running(seen: Json) -> bool:
    """Say whether a pod's container runs and nobody has asked for its end."""
    return bool(states(seen, "running")) and not is_ending(seen)


async def remove(api: Api, watch: Watch, name: str, timeout_s: float) -> None:
    """End and remove a box's pod, then its policy; what is gone is no matter.

    The policy stays while the pod does: without it the pod would be free to reach everything.

    Raises:
        TimeoutError: the pod is still there; the janitor takes it from here.
    """
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S}
    gone = await api.ask("DELETE", api.path("pods", name), options, absent=(_ABSENT, _CONFLICT))
    if gone is not None:
        await watch.until(name, _is_absent, timeout_s)
    await api.ask("DELETE", api.path("networkpolicies", name), absent=(_ABSENT, _CONFLICT))


def _is_absent(seen: Json | None) -> bool | None:
    return True if seen is None else None


async def _discard(api: Api, watch: Watch, name: str) -> None:
    try:
        await remove(api, watch, name, _GONE_S)
    except (SandboxError, TimeoutError):
        return  # the janitor knows it by its label


async def sweep(api: Api, is_over: IsOver, selector: str, now_ms: int) -> tuple[str, ...]:
    """End the boxes whose note ``is_over``, with policies and secrets; returns their ids.

    A pod that was to end and does not, since its node is lost, is taken out of the API without its node.

    Args:
        api: where.
        is_over: says of a note whether its box is to end; awaited.
        selector: label selector of what is looked at.
        now_ms: for pods that should be gone.
    """
    pods, _ = await api.pages("pods", selector)
    ended: dict[str, str] = {}
    living: set[str] = set()
    for thing in pods:
        note, name = Note.read(thing), name_of(thing)
        is_stuck = now_ms - ending_since_ms(thing, now_ms) > _STUCK_MS
        if note is not None and (is_stuck or await is_over(note)):
            options = _deletion(thing, 0 if is_stuck else GRACE_S)
            await api.ask("DELETE", api.path("pods", name), options, absent=(_ABSENT, _CONFLICT))
            ended[name] = note.box_id
        else:
            living.add(name)
    gone = await asyncio.gather(*(_until_absent(api, "pods", name) for name in ended), return_exceptions=True)
    living |= {name for name, error in zip(ended, gone, strict=True) if error is not None}
    for kind in ("networkpolicies", "secrets"):
        await _sweep_kind(api, kind, is_over, selector, living)
    return tuple(sorted(ended.values()))


async def _sweep_kind(
    api: Api, kind: str, is_over: Callable[[Note], Awaitable[bool]], selector: str, living: set[str]
) -> None:
    """End what belonged to boxes that are over."""
    try:
        things, _ = await api.pages(kind, selector)
    except AccessRefusedError:
        return  # whoever may not see them has made none
    for thing in things:
        note, name = Note.read(thing), name_of(thing)
        if note is not None and name not in living and await is_over(note):
            await api.ask("DELETE", api.path(kind, name), _deletion(thing), absent=(_ABSENT, _CONFLICT))
