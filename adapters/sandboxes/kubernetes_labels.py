"""What a pod of ours says about itself, and whether the process that made it can still be at work.

A process id means something only inside one process namespace of one boot of one machine. Elsewhere the pod that the
owner ran in is asked for; where neither is known, the deadline is what is left.
"""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass

from adapters.sandboxes.kubernetes_cluster import Coordinator
from adapters.sandboxes.kubernetes_objects import Json, phase_of, uid_of
from adapters.sandboxes.labels import boot_id, started, this_process
from domain.ports import BoxSpec

OURS = "app.kubernetes.io/managed-by=synth"
NOTE = "synth/box"
"""Annotation with a :class:`Note` as JSON."""
_VALUE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_VALUE = 63
"""Source: Kubernetes, "Labels and Selectors", syntax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Whose box it is."""

    box_id: str
    experiment_id: str
    trial_id: str
    fence: int
    deadline_ms: int
    owner_pid: int
    owner_started: int
    boot: str
    namespace: str
    """Process namespace of ``owner_pid``."""
    owner_pod: str = ""
    owner_pod_uid: str = ""

    @classmethod
    def of(cls, spec: BoxSpec, coordinator: Coordinator | None) -> "Note":
        """Return the note of a box that this process makes."""
        pid, since = this_process()
        return cls(
            box_id=spec.box_id,
            experiment_id=spec.experiment_id,
            trial_id=spec.trial_id,
            fence=spec.fence,
            deadline_ms=spec.deadline_ms,
            owner_pid=pid,
            owner_started=since,
            boot=boot_id(),
            namespace=_namespace(),
            owner_pod=coordinator.name if coordinator else "",
            owner_pod_uid=coordinator.uid if coordinator else "",
        )

    @classmethod
    def read(cls, thing: Json) -> "Note | None":
        """Return the note of an object, None when it is none of ours."""
        try:
            return cls(**json.loads(thing["metadata"]["annotations"][NOTE]))
        except (KeyError, TypeError, ValueError):
            return None

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def is_near(self) -> bool:
        """Whether the owner's process id can be looked up from here."""
        return (self.boot, self.namespace) == (boot_id(), _namespace())

    def owner_ended_here(self) -> bool:
        """Say whether the owner was a process that we would see, and see no more."""
        return self.is_near and started(self.owner_pid) != self.owner_started

    def owner_ended_there(self, pod: Json | None) -> bool:
        """Say whether the pod that the owner ran in is over.

        Args:
            pod: what the API has under its name; None: nothing.
        """
        if self.is_near or not self.owner_pod_uid:
            return False
        if pod is None or uid_of(pod) != self.owner_pod_uid:
            return True
        return phase_of(pod) in {"Succeeded", "Failed"}


def object_name(box_id: str) -> str:
    """Return the name of a box's pod and policy: legible, unique, and no longer than a name of a host."""
    legible = re.sub(r"[^a-z0-9]+", "-", box_id.lower()).strip("-")[:40].strip("-")
    return f"synth-{legible}-{hashlib.sha256(box_id.encode()).hexdigest()[:8]}"


def owner_label() -> str:
    """Return what names this process among all that make boxes in a namespace."""
    pid, since = this_process()
    return hashlib.sha256(f"{boot_id()}/{_namespace()}/{pid}/{since}".encode()).hexdigest()[:16]


def labels_of(spec: BoxSpec) -> dict[str, str]:
    """Return the labels of a box's objects. The whole values stand in the note."""
    return {
        "app.kubernetes.io/managed-by": "synth",
        "synth/owner": owner_label(),
        "synth/box": object_name(spec.box_id),
        "synth/experiment": _value(spec.experiment_id),
        "synth/trial": _value(spec.trial_id),
        "synth/fence": str(spec.fence),
        "synth/role": "verifier" if spec.box_id.startswith("v-") else "actor",
    }


def _value(text: str) -> str:
    return _VALUE.sub("-", text)[:_LONGEST_VALUE].strip("._-")


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - the link's text is what counts
