"""Deletion: within a grace, of the very object that is meant, and of what belonged to it.

Source: Kubernetes, "Garbage Collection", "Pod Lifecycle" (termination of pods); API v1, DeleteOptions.
"""

import asyncio
from typing import Any

from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.events import record
from tests.kubernetes_double.kubelet import Kubelet
from tests.kubernetes_double.objects import part, parts, the_container
from tests.kubernetes_double.quotas import is_over
from tests.kubernetes_double.store import Change, Key, Store, stamp

Json = dict[str, Any]

_UNOWNED_S = 0.5
"""An owner that is not there is looked for again after that time."""


class Deletion:
    """Deletes objects of a store.

    Args:
        store: the objects.
        kubelet: ends pods.
    """

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self._store = store
        self._kubelet = kubelet
        store.listen(self._collect)

    def delete(self, key: Key, options: Json) -> Json:
        """Delete an object, a pod on the node within its grace; returns its last state. Raises RefusalError."""
        found = self._store.get(key)
        _check(key, found["metadata"], part(options, "preconditions"))
        if "All" in options.get("dryRun", []):
            return found
        if key[0] == "pods":
            return self._pod(key, found, options)
        if key[0] == "namespaces":
            for each, thing in self._store.all():
                if each[1] == key[2] and each[0] != "pods":
                    self._store.remove(each, thing["metadata"]["uid"])
                elif each[1] == key[2]:
                    self.delete(each, {"gracePeriodSeconds": 0})
        return self._store.remove(key, found["metadata"]["uid"]) or found

    def _pod(self, key: Key, pod: Json, options: Json) -> Json:
        """Delete a pod: at once when nothing runs or nobody wants to wait, else when the node has ended it."""
        uid, asked = pod["metadata"]["uid"], options.get("gracePeriodSeconds")
        grace_s = pod["spec"]["terminationGracePeriodSeconds"] if asked is None else int(asked)
        run = self._kubelet.runs.get(uid)
        if run is None or grace_s == 0 or is_over(pod):
            gone = self._store.remove(key, uid) or pod
            if run is not None and not run.is_lost:
                self._kubelet.remove(run, 0)
            return gone
        left_s = pod["metadata"].get("deletionGracePeriodSeconds", grace_s)

        def mark(seen: Json) -> None:
            about: Json = seen["metadata"]
            about.setdefault("deletionTimestamp", stamp(grace_s))
            about["deletionGracePeriodSeconds"] = min(grace_s, left_s)

        marked = self._store.change(key, uid, mark) or pod
        if "deletionTimestamp" not in pod["metadata"] and not run.is_lost:
            record(self._store, marked, "Normal", "Killing", f"Stopping container {the_container(pod)['name']}")
            self._kubelet.remove(run, grace_s)
        return marked

    def _collect(self, change: Change) -> None:
        """Delete what belonged to an object that went; look again after a new one whose owner is not there."""
        if change.now is None:
            self._sweep()
        elif change.before is None and parts(change.now, "metadata", "ownerReferences"):
            asyncio.get_running_loop().call_later(_UNOWNED_S, self._sweep)

    def _sweep(self) -> None:
        living = {thing["metadata"]["uid"] for _, thing in self._store.all()}
        for key, thing in self._store.all():
            owners = [str(owner.get("uid")) for owner in parts(thing, "metadata", "ownerReferences")]
            if owners and not living & set(owners) and "deletionTimestamp" not in thing["metadata"]:
                self.delete(key, {})
                return self._sweep()
        return None


def _check(key: Key, about: Json, wanted: Json) -> None:
    """Raise RefusalError (409) unless an object is the one that is meant."""
    for name, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(name) not in {None, about[name]}:
            raise RefusalError(
                409,
                f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the {word} in the precondition '
                f"({wanted[name]}) does not match the {word} in record ({about[name]}). "
                "The object might have been deleted and then recreated",
                details={"name": key[2], "kind": key[0]},
            )
