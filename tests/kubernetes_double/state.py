"""The objects of the cluster: versions, selectors, watches, and versions that are forgotten.

Source: Kubernetes API concepts (resource versions, watches, 410 Gone, label and field selectors).
"""

import asyncio
import copy
import datetime as dt
import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, cast

Thing = dict[str, Any]

KINDS: dict[str, tuple[str, str, bool]] = {
    "pods": ("v1", "Pod", True),
    "events": ("v1", "Event", True),
    "secrets": ("v1", "Secret", True),
    "configmaps": ("v1", "ConfigMap", True),
    "serviceaccounts": ("v1", "ServiceAccount", True),
    "resourcequotas": ("v1", "ResourceQuota", True),
    "namespaces": ("v1", "Namespace", False),
    "nodes": ("v1", "Node", False),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy", True),
}
"""Plural -> group and version, kind, whether it lies in a namespace."""
_REMEMBERED = 1000


class Refused(Exception):  # noqa: N818 - an answer, not a fault of ours
    """An answer that is no success, as the API writes it."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.retry_after_s = code, reason, message, retry_after_s

    def status(self) -> Thing:
        """Return the Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


class State:
    """Everything that is stored. Lives in one event loop."""

    def __init__(self) -> None:
        self._things: defaultdict[str, dict[tuple[str, str], Thing]] = defaultdict(dict)
        self._versions = itertools.count(1)
        self._version = 0
        self._log: deque[tuple[int, str, Thing]] = deque(maxlen=_REMEMBERED)
        self._forgotten = 0
        """Versions up to here can no longer be watched from."""
        self._watches: list[tuple[str, asyncio.Queue[Thing | None]]] = []

    @property
    def version(self) -> str:
        """The newest resource version."""
        return str(self._version)

    def get(self, plural: str, namespace: str, name: str) -> Thing:
        """Return an object as it is stored. Raises Refused 404."""
        found = self._things[plural].get((namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return found

    def all(self, plural: str, namespace: str | None = None) -> list[Thing]:
        """Return the objects of a kind, of one namespace or of all."""
        return [thing for (where, _), thing in self._things[plural].items() if namespace in {None, where}]

    def add(self, plural: str, namespace: str, thing: Thing) -> Thing:
        """Store a new object. Raises Refused 409."""
        meta: Thing = thing.setdefault("metadata", {})
        name = meta.get("name") or f"{meta.get('generateName', '')}{uuid.uuid4().hex[:5]}"
        if (namespace, name) in self._things[plural]:
            raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
        api, kind, _ = KINDS[plural]
        meta |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if namespace:
            meta["namespace"] = namespace
        thing |= {"apiVersion": api, "kind": kind}
        self._things[plural][namespace, name] = thing
        self.tell(plural, "ADDED", thing)
        return thing

    def changed(self, plural: str, thing: Thing) -> None:
        """Tell that an object changed, unless it is gone."""
        meta = thing["metadata"]
        if self._things[plural].get((meta.get("namespace", ""), meta["name"])) is thing:
            self.tell(plural, "MODIFIED", thing)

    def remove(self, plural: str, thing: Thing) -> None:
        """Forget an object; what it owned goes, too."""
        meta = thing["metadata"]
        if self._things[plural].pop((meta.get("namespace", ""), meta["name"]), None) is thing:
            self.tell(plural, "DELETED", thing)

    def owned_by(self, uid: str) -> list[tuple[str, Thing]]:
        """Return (plural, object) of everything with this owner."""
        return [
            (plural, thing)
            for plural in KINDS
            for thing in self.all(plural)
            if any(owner["uid"] == uid for owner in parts(thing, "metadata", "ownerReferences"))
        ]

    def tell(self, plural: str, kind: str, thing: Thing) -> None:
        """Give the object a new version and send it to every watch of its kind."""
        self._version = next(self._versions)
        thing["metadata"]["resourceVersion"] = self.version
        event = {"type": kind, "object": copy.deepcopy(thing)}
        self._log.append((self._version, plural, event))
        if len(self._log) == _REMEMBERED:
            self._forgotten = max(self._forgotten, self._log[0][0] - 1)
        for watched, queue in self._watches:
            if watched == plural:
                queue.put_nowait(event)

    def watch(self, plural: str, since: str) -> "asyncio.Queue[Thing | None]":
        """Return the events from a version on. Raises Refused 410 when it is forgotten."""
        version = int(since) if since.isdigit() else self._version
        if version < self._forgotten:
            raise Refused(410, "Expired", f"too old resource version: {version} ({self._forgotten})")
        queue: asyncio.Queue[Thing | None] = asyncio.Queue()
        if since == "0" or not since:
            for thing in self.all(plural):
                queue.put_nowait({"type": "ADDED", "object": copy.deepcopy(thing)})
        else:
            for number, kind, event in self._log:
                if kind == plural and number > version:
                    queue.put_nowait(event)
        self._watches.append((plural, queue))
        return queue

    def unwatch(self, queue: "asyncio.Queue[Thing | None]") -> None:
        """Forget a watch."""
        self._watches = [entry for entry in self._watches if entry[1] is not queue]

    def expire(self, *, politely: bool) -> None:
        """Forget all versions so far: open watches end, with an ERROR event when asked for, and cannot be continued."""
        self._forgotten = self._version
        self._log.clear()
        for _, queue in self._watches:
            if politely:
                error = Refused(410, "Expired", "too old resource version").status()
                queue.put_nowait({"type": "ERROR", "object": error})
            queue.put_nowait(None)


def part(thing: Thing, *path: str) -> Thing:
    """Return an object inside an object, an empty one where there is none."""
    found: Any = thing
    for key in path:
        found = cast("Thing", found).get(key) or {}
    return cast("Thing", found)


def parts(thing: Thing, *path: str) -> list[Any]:
    """Return a list inside an object, an empty one where there is none."""
    return cast("list[Any]", part(thing, *path[:-1]).get(path[-1]) or [])


def now() -> str:
    """Return the time as the API writes it."""
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def selects(thing: Thing, labels: str, fields: str) -> bool:
    """Say whether an object matches a label and a field selector."""
    held = part(thing, "metadata", "labels")
    return all(_holds(held, clause) for clause in _clauses(labels)) and all(
        _field(thing, clause) for clause in fields.split(",") if clause
    )


def _clauses(selector: str) -> list[str]:
    """Split at commas that are not inside a set."""
    parts: list[str] = []
    depth, begin = 0, 0
    for index, letter in enumerate(f"{selector},"):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(selector[begin:index].strip())
            begin = index + 1
    return [part for part in parts if part]


def _holds(held: Mapping[str, str], clause: str) -> bool:
    if " notin " in clause or " in " in clause:
        key, word, values = clause.split(None, 2)
        wanted = {value.strip() for value in values.strip("()").split(",")}
        return (held.get(key) in wanted) is (word == "in")
    if "!=" in clause:
        key, _, value = clause.partition("!=")
        return held.get(key.strip()) != value.strip()
    if "=" in clause:
        key, _, value = clause.replace("==", "=").partition("=")
        return held.get(key.strip()) == value.strip()
    return (clause.lstrip("!") in held) is not clause.startswith("!")


def _field(thing: Thing, clause: str) -> bool:
    path, _, wanted = clause.replace("==", "=").partition("=")
    negated = path.endswith("!")
    keys = path.rstrip("!").split(".")
    value = part(thing, *keys[:-1]).get(keys[-1], "")
    return (str(value) == wanted) is not negated
