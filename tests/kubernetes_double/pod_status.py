"""A pod's status as its scheduler and its kubelet write it.

Source: Kubernetes, "Pod Lifecycle"; kubelet ``pkg/kubelet/status``.
"""

from typing import Any

from tests.kubernetes_double.objects import its_status, part, the_container
from tests.kubernetes_double.store import stamp

Json = dict[str, Any]

NODE = "double"
NODE_IP = "192.0.2.10"
_ORDER = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def pending(pod: Json) -> Json:
    """Return the status of a pod that was just made."""
    return {"phase": "Pending", "qosClass": _class_of(pod)}


def _class_of(pod: Json) -> str:
    """Return the quality of service. Source: "Pod Quality of Service Classes"."""
    limits, requests = (part(the_container(pod), "resources", kind) for kind in ("limits", "requests"))
    if not limits and not requests:
        return "BestEffort"
    same = all(name in limits and requests.get(name, limits[name]) == limits[name] for name in ("cpu", "memory"))
    return "Guaranteed" if same else "Burstable"


def set_condition(pod: Json, kind: str, *, holds: bool, reason: str = "", message: str = "") -> None:
    """Set one condition; the time changes only with what it says."""
    conditions: list[Json] = pod["status"].setdefault("conditions", [])
    said = {"type": kind, "status": "True" if holds else "False"}
    said |= {name: text for name, text in (("reason", reason), ("message", message)) if text}
    for number, each in enumerate(conditions):
        if each["type"] == kind:
            moved = stamp() if each["status"] != said["status"] else each["lastTransitionTime"]
            conditions[number] = {**said, "lastProbeTime": None, "lastTransitionTime": moved}
            return
    conditions.append({**said, "lastProbeTime": None, "lastTransitionTime": stamp()})
    conditions.sort(key=lambda each: _ORDER.index(each["type"]) if each["type"] in _ORDER else -1)


def set_ready(pod: Json, *, ready: bool, reason: str = "ContainersNotReady") -> None:
    """Set what is ready with the container."""
    name = the_container(pod)["name"]
    words = {} if ready else {"reason": reason}
    if not ready and reason == "ContainersNotReady":
        words["message"] = f"containers with unready status: [{name}]"
    set_condition(pod, "PodReadyToStartContainers", holds=ready)
    set_condition(pod, "Initialized", holds=True)
    set_condition(pod, "Ready", holds=ready, **words)
    set_condition(pod, "ContainersReady", holds=ready, **words)


def _container(pod: Json, state: Json, *, ready: bool = False) -> None:
    one, before = the_container(pod), its_status(pod)
    pod["status"]["containerStatuses"] = [
        {
            "name": one["name"],
            "state": state,
            "lastState": before.get("lastState", {}),
            "ready": ready,
            "started": ready,
            "restartCount": before.get("restartCount", 0),
            "image": one["image"],
            "imageID": before.get("imageID", ""),
            **({"containerID": before["containerID"]} if "containerID" in before else {}),
        }
    ]


def set_waiting(pod: Json, reason: str, message: str = "") -> None:
    """Say that the container does not run yet."""
    status = pod["status"]
    status.setdefault("startTime", stamp())
    status |= {"phase": "Pending" if status["phase"] != "Running" else "Running", "hostIP": NODE_IP}
    _container(pod, {"waiting": {"reason": reason, **({"message": message} if message else {})}})
    set_ready(pod, ready=False)


def set_running(pod: Json, container: str, image: str, address: str) -> None:
    """Say that the container runs."""
    pod["status"] |= {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    _container(pod, {"running": {"startedAt": stamp()}}, ready=True)
    its_status(pod).update({"containerID": f"docker://{container}", "imageID": image})
    set_ready(pod, ready=True)


def set_terminated(pod: Json, code: int, reason: str, started: str, *, is_over: bool) -> None:
    """Say how the container ended, and with it the pod unless it is started again."""
    before = its_status(pod)
    state = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": stamp()}
    state |= {"containerID": before["containerID"]} if "containerID" in before else {}
    _container(pod, {"terminated": state})
    if is_over and "reason" not in pod["status"]:
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        set_ready(pod, ready=False, reason="PodCompleted" if code == 0 else "PodFailed")


def set_restarting(pod: Json, pause_s: float) -> None:
    """Say that the container is started again after a pause."""
    one = its_status(pod)
    one["lastState"], one["restartCount"] = one["state"], one["restartCount"] + 1
    name = f"{one['name']} pod={pod['metadata']['name']}"
    set_waiting(pod, "CrashLoopBackOff", f"back-off {pause_s:g}s restarting failed container={name}")


def set_failed(pod: Json, reason: str, message: str) -> None:
    """Say that the pod as a whole failed."""
    pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}
    set_ready(pod, ready=False, reason="PodFailed")
