"""The one node, as the API has it."""

import os
from typing import Any

from tests.kubernetes_double.kinds import VERSION
from tests.kubernetes_double.pod_status import NODE, NODE_IP
from tests.kubernetes_double.store import stamp

Json = dict[str, Any]

_PODS = 110


def node() -> Json:
    """Return the node of this machine: its CPUs and its memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    has = {"cpu": str(os.cpu_count()), "memory": f"{memory}Ki", "pods": str(_PODS), "ephemeral-storage": "100Gi"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "capacity": has,
            "allocatable": dict(has),
            "addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": NODE}],
            "conditions": [ready_condition()],
            "nodeInfo": {"kubeletVersion": VERSION, "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def ready_condition(status: str = "True") -> Json:
    """Return the condition that says whether the kubelet answers."""
    if status == "True":
        words = {"reason": "KubeletReady", "message": "kubelet is posting ready status"}
    else:
        words = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
    return {"type": "Ready", "status": status, "lastTransitionTime": stamp(), "lastHeartbeatTime": stamp(), **words}
