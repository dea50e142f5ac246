"""Events: what happened to an object, for whoever asks ``kubectl get events``.

Source: Kubernetes API v1, Event.
"""

import uuid
from typing import Any

from tests.kubernetes_double.kinds import EVENTS
from tests.kubernetes_double.pod_status import NODE
from tests.kubernetes_double.store import Store, stamp

Json = dict[str, Any]


def record(store: Store, thing: Json, kind: str, reason: str, message: str) -> None:
    """Store an event.

    Args:
        store: where.
        thing: that something happened to.
        kind: ``Normal`` or ``Warning``.
        reason: one word.
        message: the rest.
    """
    about, now = thing["metadata"], stamp()
    involved = {name: about[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    event = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": f"{about['name']}.{uuid.uuid4().hex[:16]}", "namespace": about["namespace"]},
        "involvedObject": {"kind": thing["kind"], "apiVersion": thing["apiVersion"], **involved},
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    store.add(EVENTS, event)
