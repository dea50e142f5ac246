"""All objects, their versions, and who is told of changes: what etcd and the watch cache are in a cluster.

Source: Kubernetes API concepts, "Resource versions", "Efficient detection of changes", "Retrieving large results sets".
"""

import asyncio
import base64
import binascii
import copy
import datetime as dt
import itertools
import json
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes_double.answers import RefusalError, expired, missing, taken
from tests.kubernetes_double.kinds import Kind
from tests.kubernetes_double.selectors import Test

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace (empty for what has none), name."""

_REMEMBERED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An object as it is now and as it was before; one of the two is missing when it came or went."""

    version: int
    key: Key
    now: Json | None
    before: Json | None


def stamp(after_s: float = 0.0) -> str:
    """Return a time as the API writes it."""
    when = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=after_s)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Objects by key; every method runs in the server's loop and never waits."""

    def __init__(self) -> None:
        self._things: dict[Key, Json] = {}
        self._versions = itertools.count(1000)
        self.version = next(self._versions)
        self._changes: deque[Change] = deque(maxlen=_REMEMBERED)
        self._oldest = self.version
        """The oldest version that a watch can go on from."""
        self._oldest_page = self.version
        self._listeners: list[Callable[[Change], None]] = []
        self.expiring = asyncio.Event()
        """Set, and replaced, when the watches of the moment are told that their version is too old."""

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call ``listener`` with each change from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Call it no more."""
        self._listeners.remove(listener)

    def get(self, key: Key) -> Json:
        """Return a copy of an object. Raises RefusalError (404)."""
        found = self._things.get(key)
        if found is None:
            raise missing(key[0], key[2])
        return copy.deepcopy(found)

    def has(self, key: Key) -> bool:
        """Say whether a name is taken."""
        return key in self._things

    def find(self, kind: Kind, namespace: str, test: Test) -> list[Json]:
        """Return copies of all objects of a kind that match, sorted; an empty namespace means all of them."""
        keys = sorted(key for key in self._things if key[0] == kind.plural and namespace in {"", key[1]})
        return [copy.deepcopy(self._things[key]) for key in keys if test(self._things[key])]

    def all(self) -> list[tuple[Key, Json]]:
        """Return every object, not to be changed."""
        return list(self._things.items())

    def add(self, kind: Kind, thing: Json) -> Json:
        """Store a new object. Raises RefusalError (409)."""
        about = thing["metadata"]
        key = (kind.plural, about.get("namespace", ""), about["name"])
        if key in self._things:
            raise taken(_full(kind), key[2])
        about |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        about.pop("deletionTimestamp", None)
        return self._change(key, thing)

    def change(self, key: Key, uid: str, edit: Callable[[Json], None]) -> Json | None:
        """Let ``edit`` change an object; None when the very one with ``uid`` is there no more."""
        found = self._things.get(key)
        if found is None or found["metadata"]["uid"] != uid:
            return None
        thing = copy.deepcopy(found)
        edit(thing)
        return copy.deepcopy(found) if thing == found else self._change(key, thing)

    def replace(self, key: Key, thing: Json) -> Json:
        """Store an object's new content. Raises RefusalError: it is not there, or has changed meanwhile."""
        before = self.get(key)["metadata"]
        about = thing["metadata"]
        if about.get("resourceVersion") not in {None, "", before["resourceVersion"]}:
            raise RefusalError(
                409,
                f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                details={"name": key[2], "kind": key[0]},
            )
        for name in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
            about.pop(name, None)
            if name in before:
                about[name] = before[name]
        return self._change(key, thing)

    def remove(self, key: Key, uid: str) -> Json | None:
        """Forget an object; None when the very one with ``uid`` is there no more."""
        found = self._things.get(key)
        if found is None or found["metadata"]["uid"] != uid:
            return None
        del self._things[key]
        self.version = next(self._versions)
        last = copy.deepcopy(found)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Change(version=self.version, key=key, now=None, before=last))
        return copy.deepcopy(last)

    def _change(self, key: Key, thing: Json) -> Json:
        self.version = next(self._versions)
        thing["metadata"]["resourceVersion"] = str(self.version)
        before = self._things.get(key)
        self._things[key] = copy.deepcopy(thing)
        self._tell(Change(version=self.version, key=key, now=self._things[key], before=before))
        return thing

    def _tell(self, change: Change) -> None:
        if len(self._changes) == _REMEMBERED:
            self._oldest = self._changes[0].version
        self._changes.append(change)
        for listener in list(self._listeners):
            listener(change)

    def since(self, version: int) -> list[Change]:
        """Return what happened after a version. Raises RefusalError (410)."""
        if version < self._oldest:
            raise expired(f"too old resource version: {version} ({self._oldest})")
        return [change for change in self._changes if change.version > version]

    def forget(self) -> None:
        """Lose all that was before now: watches end with 410, and none goes on from an earlier version."""
        self.version = next(self._versions)
        self._oldest = self._oldest_page = self.version
        self._changes.clear()
        self.expiring.set()
        self.expiring = asyncio.Event()

    def page(self, found: list[Json], limit: int, token: str) -> tuple[list[Json], Json]:
        """Return a part of a listing and its metadata. Raises RefusalError (410): the token is too old."""
        version, start = self.version, 0
        if token:
            try:
                version, start = json.loads(base64.urlsafe_b64decode(token))
            except (ValueError, TypeError, binascii.Error):
                raise RefusalError(400, "continue key is not valid") from None
            if version < self._oldest_page:
                raise expired("The provided continue parameter is too old to display a consistent list result.")
        about: Json = {"resourceVersion": str(version)}
        if limit and start + limit < len(found):
            about["continue"] = base64.urlsafe_b64encode(json.dumps([version, start + limit]).encode()).decode()
            about["remainingItemCount"] = len(found) - start - limit
        return found[start : start + limit if limit else None], about


def _full(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural
