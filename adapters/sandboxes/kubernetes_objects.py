"""Objects of the API as they come: JSON in which any part may be left out."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, cast

Json = Mapping[str, Any]


def section(thing: Json, *path: str) -> Json:
    """Return the object at a path, empty where there is none."""
    found: Json = thing
    for key in path:
        inner: Any = found.get(key)
        if not isinstance(inner, dict):
            return {}
        found = cast("Json", inner)
    return found


def items(thing: Json, *path: str) -> list[Json]:
    """Return the objects of the list at a path, none where there is no list."""
    found: Any = section(thing, *path[:-1]).get(path[-1])
    return cast("list[Json]", found) if isinstance(found, list) else []


def name_of(thing: Json) -> str:
    """Return an object's name."""
    return str(section(thing, "metadata")["name"])


def uid_of(thing: Json) -> str:
    """Return what tells an object from another one of the same name."""
    return str(section(thing, "metadata").get("uid") or "")


def is_ending(thing: Json) -> bool:
    """Say whether somebody has asked for an object's end."""
    return bool(section(thing, "metadata").get("deletionTimestamp"))


def ending_since_ms(thing: Json, otherwise_ms: int) -> int:
    """Return when an object is to be gone, in milliseconds since 1970; ``otherwise_ms`` when nobody wants that."""
    written = str(section(thing, "metadata").get("deletionTimestamp") or "")
    try:
        return int(dt.datetime.fromisoformat(written).timestamp() * 1000)
    except ValueError:
        return otherwise_ms


def phase_of(pod: Json) -> str:
    """Return a pod's phase."""
    return str(section(pod, "status").get("phase") or "")


def states(pod: Json, kind: str) -> list[Json]:
    """Return the states of one kind (``waiting``, ``running``, ``terminated``) of a pod's containers."""
    containers = [*items(pod, "status", "initContainerStatuses"), *items(pod, "status", "containerStatuses")]
    return [section(each, "state", kind) for each in containers if kind in section(each, "state")]
