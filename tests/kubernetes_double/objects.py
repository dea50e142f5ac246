"""Parts of objects, any of which may be left out."""

from typing import Any, cast

Json = dict[str, Any]


def part(thing: Json, *path: str) -> Json:
    """Return the object at a path, empty where there is none; one that is there may be changed in place."""
    found: Any = thing
    for key in path:
        found = cast("Json", found).get(key) if isinstance(found, dict) else None
    return cast("Json", found) if isinstance(found, dict) else {}


def parts(thing: Json, *path: str) -> list[Json]:
    """Return the list at a path, empty where there is none."""
    found: Any = part(thing, *path[:-1]).get(path[-1])
    return cast("list[Json]", found) if isinstance(found, list) else []


def words(thing: Json, *path: str) -> list[str]:
    """Return the list of strings at a path."""
    return [str(each) for each in parts(thing, *path)]


def the_container(pod: Json) -> Json:
    """Return a pod's one container."""
    return parts(pod, "spec", "containers")[0]


def containers(pod: Json) -> list[Json]:
    """Return all containers of a pod, those that run before it first."""
    return [*parts(pod, "spec", "initContainers"), *parts(pod, "spec", "containers")]


def its_status(pod: Json) -> Json:
    """Return the status of a pod's one container, empty before there is one."""
    found = parts(pod, "status", "containerStatuses")
    return found[0] if found else {}
