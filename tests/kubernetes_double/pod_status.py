"""A pod's status as its scheduler and its kubelet write it.

Source: Kubernetes, "Pod Lifecycle"; kubelet ``pkg/kubelet/status``.
"""

from typing import Any

from tests.kubernetes_double.objects import its_status, part, parts, the_container
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
    missing = [each["name"] for each in parts(pod, "spec", "initContainers") if not _is_done(pod, each["name"])]
    said = f"containers with incomplete status: [{' '.join(missing)}]" if missing else ""
    set_condition(
        pod, "Initialized", holds=not missing, reason="ContainersNotInitialized" if missing else "", message=said
    )
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


def set_first(pod: Json, name: str, state: Json, **more: Any) -> None:
    """Say what a container does that comes before the pod's own."""
    known = {each["name"]: each for each in parts(pod, "status", "initContainerStatuses")}
    is_over, waiting = part(state, "terminated").get("exitCode") == 0, {"waiting": {"reason": "PodInitializing"}}
    for each in parts(pod, "spec", "initContainers"):
        fresh = {"state": waiting, "lastState": {}, "ready": False, "restartCount": 0, "imageID": ""}
        known.setdefault(each["name"], {"name": each["name"], "image": each["image"], **fresh})
    one = known[name]
    if "terminated" in one["state"] and "running" in state:
        one |= {"lastState": one["state"], "restartCount": one["restartCount"] + 1}
    one |= {"state": state, "ready": is_over, "started": "running" in state, **more}
    pod["status"]["initContainerStatuses"] = list(known.values())
    set_ready(pod, ready=False)


def _is_done(pod: Json, name: str) -> bool:
    found = [each for each in parts(pod, "status", "initContainerStatuses") if each["name"] == name]
    return bool(found) and bool(found[0]["ready"])


def set_first_failed(pod: Json) -> None:
    """Say that the pod's own container will never run."""
    pod["status"]["phase"] = "Failed"
    set_ready(pod, ready=False, reason="PodFailed")


def set_running(pod: Json, name: str, container: str, image: str, address: str) -> None:
    """Say that a container runs."""
    if name != the_container(pod)["name"]:
        pod["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
        running = {"running": {"startedAt": stamp()}}
        return set_first(pod, name, running, containerID=f"docker://{container}", imageID=image)
    pod["status"] |= {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    _container(pod, {"running": {"startedAt": stamp()}}, ready=True)
    its_status(pod).update({"containerID": f"docker://{container}", "imageID": image})
    return set_ready(pod, ready=True)


def ended(code: int, reason: str, started: str, container: str) -> Json:
    """Return the state of a container that has ended."""
    state = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": stamp()}
    return {"terminated": {**state, **({"containerID": f"docker://{container}"} if container else {})}}


def set_terminated(pod: Json, code: int, reason: str, started: str, *, is_over: bool) -> None:
    """Say how the container ended, and with it the pod unless it is started again."""
    before = its_status(pod)
    container = str(before.get("containerID", "")).removeprefix("docker://")
    _container(pod, ended(code, reason, started, container))
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
