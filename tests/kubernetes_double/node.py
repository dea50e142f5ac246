"""Scheduler and node: a pod becomes a container of the engine, and its status says what a kubelet would say.

A pod's containers would share a network; here each pod has one container, as every box has. ``emptyDir`` volumes are
tmpfs mounts. Network policies are stored and not enforced, but for a pod that may reach nothing at all.
"""

import asyncio
import os
from contextlib import suppress
from typing import Any

import psutil

from tests.kubernetes_double import admission
from tests.kubernetes_double.engine import LABEL, Engine
from tests.kubernetes_double.state import State, Thing, now, part, parts

_LOOK_S = 0.3
_BACK_OFF_S = 1.0
"""Until ErrImagePull becomes ImagePullBackOff; a kubelet takes ten seconds."""
_OOM_CODE = 137


class Node:
    """Runs the pods of one cluster."""

    def __init__(self, state: State, engine: Engine, environment: dict[str, str]) -> None:
        self._state, self._engine, self._environment = state, engine, environment
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.pull_delay_s = 0.0
        """How long every image takes to be there."""

    def container(self, pod: Thing) -> str:
        """Return the name of a pod's container."""
        return f"k8s-{pod['metadata']['uid']}"

    def take(self, pod: Thing) -> None:
        """Bring a new pod to its end."""
        uid = pod["metadata"]["uid"]
        self._tasks[uid] = asyncio.ensure_future(self._live(pod))

    async def end(self, pod: Thing, grace_s: int) -> None:
        """Stop a pod's container within its grace and forget the pod, and what it owned."""
        meta = pod["metadata"]
        if (task := self._tasks.pop(meta["uid"], None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if grace_s > 0:
            await self._engine.run("stop", "--time", str(grace_s), self.container(pod))
        await self._engine.remove([self.container(pod)])
        self._state.remove("pods", pod)
        for plural, thing in self._state.owned_by(meta["uid"]):
            if plural == "pods":
                await self.end(thing, 0)
            else:
                self._state.remove(plural, thing)

    async def evict(self, pod: Thing, message: str) -> None:
        """End a pod as a node under pressure does."""
        await self._fail(pod, "Evicted", message)

    async def lose(self, name: str) -> None:
        """Let a node fall silent: it is not ready, and its pods are failed as the controller fails them."""
        node = self._state.get("nodes", "", name)
        node["status"]["conditions"] = [condition("Ready", "Unknown", "NodeStatusUnknown")]
        self._state.changed("nodes", node)
        for pod in self._state.all("pods"):
            if pod["spec"].get("nodeName") == name:
                await self._fail(pod, "NodeLost", f"Node {name} which was running pod is unresponsive")

    async def close(self) -> None:
        """End everything."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        mine = [container for container, owner in await self._engine.ours() if owner == str(os.getpid())]
        await self._engine.remove(mine)

    async def remove_leftovers(self) -> None:
        """End the containers of doubles whose process is gone."""
        found = await self._engine.ours()
        living = {str(pid) for pid in psutil.pids()}
        await self._engine.remove([container for container, owner in found if owner not in living])

    async def _live(self, pod: Thing) -> None:
        await self._schedule(pod)
        deadline_s = pod["spec"].get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(None if deadline_s is None else float(deadline_s)):
                await self._pull(pod)
                if await self._start(pod):
                    await self._wait(pod)
        except TimeoutError:
            await self._fail(pod, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")

    async def _schedule(self, pod: Thing) -> None:
        told = ""
        while why := admission.unschedulable(self._state, pod):
            if why != told:
                told = why
                self._status(pod, "Pending", conditions=[condition("PodScheduled", "False", "Unschedulable", why)])
                self._event(pod, "Warning", "FailedScheduling", why)
            await asyncio.sleep(_LOOK_S)
        ready = [node for node in self._state.all("nodes") if admission.is_ready(node)]
        pod["spec"]["nodeName"] = ready[0]["metadata"]["name"]
        self._event(pod, "Normal", "Scheduled", f"Successfully assigned to {pod['spec']['nodeName']}")
        self._status(pod, "Pending", states=[{"waiting": {"reason": "ContainerCreating"}}])

    async def _pull(self, pod: Thing) -> None:
        image = pod["spec"]["containers"][0]["image"]
        if self.pull_delay_s:
            await asyncio.sleep(self.pull_delay_s)
        while not await self._engine.has_image(image):
            message = f'failed to pull and unpack image "{image}": not found'
            for reason in ("ErrImagePull", "ImagePullBackOff"):
                self._event(pod, "Warning", "Failed", message)
                self._status(pod, "Pending", states=[{"waiting": {"reason": reason, "message": message}}])
                await asyncio.sleep(_BACK_OFF_S)

    async def _start(self, pod: Thing) -> bool:
        code, _, err = await self._engine.run(*self._create(pod))
        if code == 0:
            code, _, err = await self._engine.run("start", self.container(pod))
        if code != 0:
            waiting = {"reason": "RunContainerError", "message": err.strip()[-500:]}
            self._status(pod, "Pending", states=[{"waiting": waiting}])
            self._event(pod, "Warning", "Failed", waiting["message"])
            return False
        about = await self._engine.inspect(self.container(pod))
        networks = part(about, "NetworkSettings", "Networks")
        pod["status"]["podIP"] = next((item["IPAddress"] for item in networks.values() if item["IPAddress"]), "")
        image = str(about.get("Image", ""))
        self._status(pod, "Running", states=[{"running": {"startedAt": now()}}], image=image)
        self._event(pod, "Normal", "Started", "Started container")
        return True

    def _create(self, pod: Thing) -> list[str]:
        """Return how the container is made."""
        spec, box = part(pod, "spec"), part(parts(pod, "spec", "containers")[0])
        whole, own = part(spec, "securityContext"), part(box, "securityContext")
        user = own.get("runAsUser", whole.get("runAsUser"))
        group = own.get("runAsGroup", whole.get("runAsGroup"))
        argv = ["create", "--name", self.container(pod), "--label", f"{LABEL}={os.getpid()}"]
        argv += ["--hostname", spec.get("hostname") or pod["metadata"]["name"], "--network", self._network(pod)]
        if own.get("allowPrivilegeEscalation") is False:
            argv += ["--security-opt", "no-new-privileges"]
        argv += [word for name in parts(own, "capabilities", "drop") for word in ("--cap-drop", name)]
        argv += [word for name in parts(own, "capabilities", "add") for word in ("--cap-add", name)]
        limits = part(box, "resources", "limits")
        if "memory" in limits:
            size = str(int(admission.amount(limits["memory"])))
            argv += ["--memory", size, "--memory-swap", size]
        if "cpu" in limits:
            argv += ["--cpus", f"{min(admission.amount(limits['cpu']), os.cpu_count() or 1):g}"]
        if user is not None:
            argv += ["--user", f"{user}:{user if group is None else group}"]
        environment = self._environment | {item["name"]: item.get("value", "") for item in parts(box, "env")}
        argv += [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        argv += self._volumes(spec, box)
        if box.get("workingDir"):
            argv += ["--workdir", box["workingDir"]]
        command: list[str] = parts(box, "command")
        if command:
            argv += ["--entrypoint", command[0]]
        return [*argv, box["image"], *command[1:], *parts(box, "args")]

    def _network(self, pod: Thing) -> str:
        """A pod that some policy lets reach nothing has no network; finer policies are not enforced."""
        labels = part(pod, "metadata", "labels")
        for policy in self._state.all("networkpolicies", pod["metadata"]["namespace"]):
            spec = part(policy, "spec")
            chosen = part(spec, "podSelector", "matchLabels")
            is_chosen = all(labels.get(key) == value for key, value in chosen.items())
            if is_chosen and "Egress" in parts(spec, "policyTypes") and not spec.get("egress"):
                return "none"
        return "bridge"

    @staticmethod
    def _volumes(spec: Thing, box: Thing) -> list[str]:
        kinds = {volume["name"]: volume for volume in parts(spec, "volumes")}
        argv: list[str] = []
        for mount in parts(box, "volumeMounts"):
            if "emptyDir" in kinds.get(mount["name"], {}):
                size = part(kinds[mount["name"]], "emptyDir").get("sizeLimit")
                bound = "" if size is None else f",size={int(admission.amount(size))}"
                argv += ["--tmpfs", f"{mount['mountPath']}:exec,mode=1777{bound}"]
        return argv

    async def _wait(self, pod: Thing) -> None:
        await self._engine.run("wait", self.container(pod))
        state = part(await self._engine.inspect(self.container(pod)), "State")
        code = int(state.get("ExitCode", 1))
        reason = "OOMKilled" if state.get("OOMKilled") else "Completed" if code == 0 else "Error"
        ended = {"exitCode": _OOM_CODE if reason == "OOMKilled" else code, "reason": reason, "finishedAt": now()}
        self._status(pod, "Succeeded" if code == 0 else "Failed", states=[{"terminated": ended}])

    async def _fail(self, pod: Thing, reason: str, message: str) -> None:
        task = self._tasks.get(pod["metadata"]["uid"])
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        with suppress(OSError):
            await self._engine.run("kill", self.container(pod))
        pod["status"] |= {"reason": reason, "message": message}
        self._status(pod, "Failed", states=[{"terminated": {"exitCode": _OOM_CODE, "reason": "Error"}}])
        self._event(pod, "Warning", reason, message)

    def _status(
        self,
        pod: Thing,
        phase: str,
        *,
        states: list[Thing] | None = None,
        conditions: list[Thing] | None = None,
        image: str = "",
    ) -> None:
        is_ready = phase == "Running"
        status: Thing = pod["status"]
        status["phase"] = phase
        status.setdefault("startTime", now())
        ready = condition("Ready", str(is_ready), "" if is_ready else "ContainersNotReady")
        status["conditions"] = conditions or [condition("PodScheduled", "True"), ready]
        if states is not None:
            status["containerStatuses"] = [
                {
                    "name": box["name"],
                    "image": box["image"],
                    "imageID": image,
                    "ready": is_ready,
                    "restartCount": 0,
                    "state": state,
                }
                for box, state in zip(pod["spec"]["containers"], states, strict=False)
            ]
        self._state.changed("pods", pod)

    def _event(self, pod: Thing, kind: str, reason: str, message: str) -> None:
        meta = pod["metadata"]
        self._state.add(
            "events",
            meta["namespace"],
            {
                "metadata": {"generateName": f"{meta['name']}."},
                "type": kind,
                "reason": reason,
                "message": message,
                "involvedObject": {"kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
                "lastTimestamp": now(),
                "count": 1,
            },
        )


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Thing:
    """Return a condition of a pod or node."""
    found: dict[str, Any] = {"type": kind, "status": status, "lastTransitionTime": now()}
    return found | {name: text for name, text in (("reason", reason), ("message", message)) if text}
