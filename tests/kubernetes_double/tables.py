"""Listings as ``kubectl get`` asks for them: the server says which columns there are.

Source: Kubernetes API concepts, "Receiving resources as Tables"; ``pkg/printers/internalversion``.
"""

import datetime as dt
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.kubernetes_double.kinds import Kind
from tests.kubernetes_double.objects import its_status, parts

Json = dict[str, Any]
Shape = Callable[[list[Json], Json], Json]
"""Returns what is sent for some objects and the metadata of their listing."""

_COLUMNS = {
    "pods": ("Name", "Ready", "Status", "Restarts", "Age"),
    "nodes": ("Name", "Status", "Roles", "Age", "Version"),
    "events": ("Last Seen", "Type", "Reason", "Object", "Message"),
}


def shape_of(request: web.Request, kind: Kind, otherwise: Shape) -> Shape:
    """Return how objects are to be sent: as a table when the client takes one, else as they are."""
    if "as=Table" not in request.headers.get("Accept", ""):
        return otherwise
    columns = _COLUMNS.get(kind.plural, ("Name", "Age"))

    def table(things: list[Json], about: Json) -> Json:
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {name: about[name] for name in ("resourceVersion", "continue") if name in about},
            "columnDefinitions": [_column(name) for name in columns],
            "rows": [{"cells": _cells(kind, thing), "object": _partial(thing)} for thing in things],
        }

    return table


def _column(name: str) -> Json:
    form = "name" if name == "Name" else ""
    return {"name": name, "type": "string", "format": form, "description": name, "priority": 0}


def _partial(thing: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": thing["metadata"]}


def _cells(kind: Kind, thing: Json) -> list[str]:
    name, age = thing["metadata"]["name"], _age(thing["metadata"]["creationTimestamp"])
    if kind.plural == "events":
        about = thing["involvedObject"]
        what = f"{about['kind'].lower()}/{about['name']}"
        return [_age(thing["lastTimestamp"]), thing["type"], thing["reason"], what, thing["message"]]
    if kind.plural == "nodes":
        ready = any(
            each["type"] == "Ready" and each["status"] == "True" for each in parts(thing, "status", "conditions")
        )
        version = str(thing["status"]["nodeInfo"]["kubeletVersion"])
        return [name, "Ready" if ready else "NotReady", "<none>", age, version]
    if kind.plural != "pods":
        return [name, age]
    one = its_status(thing)
    return [name, f"{int(one.get('ready', False))}/1", pod_word(thing), str(one.get("restartCount", 0)), age]


def pod_word(pod: Json) -> str:
    """Return the one word for a pod that stands under STATUS."""
    word = pod["status"].get("reason") or pod["status"]["phase"]
    first = _first_word(pod)
    if first and not pod["status"].get("reason"):
        word = first
    for one in [] if first else parts(pod, "status", "containerStatuses"):
        for state in one["state"].values():
            word = pod["status"].get("reason") or state.get("reason") or word
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else word


def _first_word(pod: Json) -> str:
    """Return the word for a pod whose own container waits for others."""
    firsts = parts(pod, "status", "initContainerStatuses")
    for number, one in enumerate(firsts):
        if not one["ready"]:
            state = {**one["state"].get("waiting", {}), **one["state"].get("terminated", {})}
            reason = state.get("reason", "PodInitializing")
            return f"Init:{number}/{len(firsts)}" if reason == "PodInitializing" else f"Init:{reason}"
    return ""


def _age(written: str) -> str:
    seconds = int((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(written)).total_seconds())
    return f"{max(0, seconds)}s" if seconds < 120 else f"{seconds // 60}m"
