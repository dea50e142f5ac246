"""The node: runs each pod as a container, writes its status, ends it.

Source: Kubernetes, "Pod Lifecycle"; kubelet ``pkg/kubelet``.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kubernetes_double import pod_status as status
from tests.kubernetes_double.container import container_of
from tests.kubernetes_double.engine import Engine, EngineError, query_of
from tests.kubernetes_double.images import PullError, image_id
from tests.kubernetes_double.objects import part, parts, the_container
from tests.kubernetes_double.quantities import amount
from tests.kubernetes_double.run import Place, Run
from tests.kubernetes_double.store import Store, stamp
from tests.kubernetes_double.volumes import MountError, remove_volumes, set_up

Json = dict[str, Any]
Tell = Callable[[Json, str, str, str], None]
"""Records an event: about what, its type, reason, message."""

_RETRY_S = 2.0
_RESTART_S = 1.0
_SHORT_S = 1.0
_KILLED = 137
_CUT = 255
"""Exit code of a container that was not seen to end."""
_UID = "synth.kubernetes-double.pod"


class Kubelet:
    """Runs pods on one engine.

    Args:
        store: where pods are and their status goes.
        engine: runs the containers.
        place: network, labels and the API server's address.
        tell: records events.
    """

    def __init__(self, store: Store, engine: Engine, place: Place, tell: Tell) -> None:
        self._store = store
        self.engine = engine
        self.place = place
        self._tell = tell
        self.runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, pod: Json) -> None:
        """Take a pod that has been bound to this node."""
        about = pod["metadata"]
        run = Run(key=("pods", about["namespace"], about["name"]), uid=about["uid"])
        self.runs[run.uid] = run
        run.task = self._spawn(self._live(run, pod))
        if (seconds := pod["spec"].get("activeDeadlineSeconds")) is not None:
            self._spawn(self._deadline(run, float(seconds)))
        if most := part(the_container(pod), "resources", "limits").get("ephemeral-storage"):
            self._spawn(self._storage(run, pod, str(most)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def edit(self, run: Run, change: Callable[[Json], None]) -> None:
        """Change a pod's status, unless the pod is there no more or the node is lost."""
        if not run.is_lost:
            self._store.change(run.key, run.uid, change)

    def _say(self, run: Run, change: Callable[[Json], None]) -> None:
        """Change the status of a pod that goes on: one that is to end runs and waits no more."""
        if not run.ending.is_set():
            self.edit(run, change)

    def stop(self, run: Run, grace_s: float, why: tuple[str, str] = ("", "")) -> None:
        """Let a pod end within ``grace_s``: SIGTERM, then SIGKILL.

        Args:
            run: the pod.
            grace_s: how long it may take.
            why: reason and message of a pod that the node itself ends; the status says so before the container ends.
        """
        if not run.ending.is_set():
            if why[0]:
                self.edit(run, lambda seen: status.set_failed(seen, *why))
            run.grace_s = grace_s
            run.ending.set()
        elif grace_s == 0 and run.container:
            self._spawn(self._killed(run.container))

    def remove(self, run: Run, grace_s: float) -> None:
        """End a pod and then forget it, container and object."""
        self.stop(run, grace_s)
        self._spawn(self._removed(run))

    async def _removed(self, run: Run) -> None:
        if run.task is not None:
            await asyncio.wait({run.task})
        for container in run.made.values():
            await self.engine.ask("DELETE", f"/containers/{container}", absent=(404, 409), force="1", v="1")
        if run.has_volumes:
            await remove_volumes(self.engine, query_of({_UID: run.uid}))
        if not run.is_lost:
            self.runs.pop(run.uid, None)
            self._store.remove(run.key, run.uid)

    async def _killed(self, container: str) -> None:
        await self.engine.ask("POST", f"/containers/{container}/kill", absent=(404, 409))

    async def _live(self, run: Run, pod: Json) -> None:
        """Take a pod from its node to its end."""
        firsts, one = parts(pod, "spec", "initContainers"), the_container(pod)
        self._say(run, lambda seen: status.set_waiting(seen, "PodInitializing" if firsts else "ContainerCreating"))
        for each in firsts:
            if not await self._first(run, pod, each):
                return
        image = await self._ready(run, pod, one)
        restart = pod["spec"]["restartPolicy"]
        while image and not run.ending.is_set():
            started, code, reason = await self._once(run, pod, one, image)
            again = not run.ending.is_set() and (restart == "Always" or (restart == "OnFailure" and code != 0))
            self.edit(
                run, lambda seen, a=again, e=(code, reason, started): status.set_terminated(seen, *e, is_over=not a)
            )
            if not again:
                break
            self._say(run, lambda seen: status.set_restarting(seen, _RESTART_S))
            self._tell(pod, "Warning", "BackOff", f"Back-off restarting failed container in pod {run.key[2]}")
            await self._pause(run, _RESTART_S)

    async def _first(self, run: Run, pod: Json, one: Json) -> bool:
        """Run a container that comes before the pod's own; returns whether the next one may."""
        while image := await self._ready(run, pod, one):
            started, code, reason = await self._once(run, pod, one, image)
            end = status.ended(code, reason, started, run.made.get(one["name"], ""))
            self.edit(run, lambda seen, end=end: status.set_first(seen, one["name"], end))
            if code == 0 or run.ending.is_set():
                return not run.ending.is_set()
            if pod["spec"]["restartPolicy"] == "Never":
                self.edit(run, status.set_first_failed)
                return False
            self._wait_for(run, pod, one, "CrashLoopBackOff")
            await self._pause(run, _RESTART_S)
        return False

    def _wait_for(self, run: Run, pod: Json, one: Json, reason: str, message: str = "") -> None:
        """Say why a container does not run yet."""
        if one is the_container(pod):
            self._say(run, lambda seen: status.set_waiting(seen, reason, message))
        else:
            state = {"waiting": {"reason": reason, "message": message}}
            self._say(run, lambda seen: status.set_first(seen, one["name"], state))

    async def _ready(self, run: Run, pod: Json, one: Json) -> str:
        """Return the image's id once it and the volumes are here, empty when the pod is to end before that."""
        image = await self._image(run, pod, one)
        while not (run.has_volumes or run.ending.is_set()):
            try:
                await set_up(self.engine, pod, one["image"], self._labels(run), self._of_namespace(run))
                run.has_volumes = True
            except (MountError, EngineError) as error:
                self._tell(pod, "Warning", "FailedMount", str(error))
                await self._pause(run, _RETRY_S)
        return "" if run.ending.is_set() else image

    def _labels(self, run: Run) -> dict[str, str]:
        return {**self.place.labels, _UID: run.uid}

    def _of_namespace(self, run: Run) -> Callable[[str, str], Json | None]:
        def find(plural: str, name: str) -> Json | None:
            key = (plural, run.key[1], name)
            return self._store.get(key) if self._store.has(key) else None

        return find

    async def _deadline(self, run: Run, seconds: float) -> None:
        await self._pause(run, seconds)
        words = "Pod was active on the node longer than the specified deadline"
        self.stop(run, _SHORT_S, ("DeadlineExceeded", words))

    async def _storage(self, run: Run, pod: Json, most: str) -> None:
        """End a pod that has written more than its limit, which is looked at now and then."""
        name = the_container(pod)["name"]
        while not run.ending.is_set():
            await self._pause(run, self.place.housekeeping_s)
            if run.container and not run.ending.is_set():
                found = await self.engine.ask("GET", f"/containers/{run.container}/json", absent=(404,), size="1")
                if found and int(found.get("SizeRw") or 0) > amount(most):
                    words = f'Container {name} exceeded its local ephemeral storage limit "{most}". '
                    self._tell(pod, "Warning", "Evicted", words)
                    self.stop(run, 0, ("Evicted", words))

    async def watch_memory(self) -> None:
        """End a whole container when one of its processes is killed for want of memory, until cancelled.

        That is what kernels with ``memory.oom.group`` do, which kubelets set from 1.28 on.
        """
        filters = json.dumps(
            {"event": ["oom"], "label": [f"{name}={text}" for name, text in self.place.labels.items()]}
        )
        async for event in self.engine.lines("GET", "/events", filters=filters):
            for run in self.runs.values():
                if run.container == event["id"]:
                    run.end = (_KILLED, "OOMKilled")
                    await self._killed(run.container)

    def restart(self) -> None:
        """Start anew: every container is gone at once."""
        for run in self.runs.values():
            if run.container and not run.ending.is_set():
                run.end = (_CUT, "Error")
                self._spawn(self._killed(run.container))

    async def _pause(self, run: Run, seconds: float) -> None:
        """Wait, unless the pod is to end."""
        waiting = asyncio.ensure_future(run.ending.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()

    async def _image(self, run: Run, pod: Json, one: Json) -> str:
        """Return the image's id once it is here, empty when the pod is to end before that."""
        while not run.ending.is_set():
            await self._pause(run, self.place.pull_delay_s)
            try:
                found = await image_id(self.engine, one["image"], one["imagePullPolicy"])
            except PullError as error:
                await self._no_image(run, pod, one, error)
                continue
            self._tell(pod, "Normal", "Pulled", f'Container image "{one["image"]}" already present on machine')
            return found
        return ""

    async def _no_image(self, run: Run, pod: Json, one: Json, error: PullError) -> None:
        name, reason, message = one["image"], error.reason, error.message
        self._wait_for(run, pod, one, reason, message)
        self._tell(pod, "Warning", "Failed", f'Failed to pull image "{name}": {message}')
        await self._pause(run, _RETRY_S)
        if reason == "ErrImagePull":
            words = f'Back-off pulling image "{name}": {reason}: {message}'
            self._wait_for(run, pod, one, "ImagePullBackOff", words)
            self._tell(pod, "Normal", "BackOff", f'Back-off pulling image "{name}"')
            await self._pause(run, _RETRY_S * 2)

    async def _once(self, run: Run, pod: Json, one: Json, image: str) -> tuple[str, int, str]:
        """Run a container once; returns when it started, its exit code and the reason of its end."""
        started = stamp()
        try:
            await self._made(run, pod, one)
            await self.engine.ask("POST", f"/containers/{run.container}/start")
        except EngineError as error:
            self._tell(pod, "Warning", "Failed", f"Error: {error.message}")
            self._wait_for(run, pod, one, "RunContainerError", error.message)
            await run.ending.wait()
            return started, 128, "StartError"
        found: Json = await self.engine.ask("GET", f"/containers/{run.container}/json")
        address = found["NetworkSettings"]["Networks"][self.place.network]["IPAddress"]
        self._tell(pod, "Normal", "Started", f"Started container {one['name']}")
        if found["State"]["Running"]:
            self._say(run, lambda seen: status.set_running(seen, one["name"], run.container, image, address))
        code = await self._ended(run)
        if run.end is not None:
            (code, reason), run.end = run.end, None
            return started, code, reason
        found = await self.engine.ask("GET", f"/containers/{run.container}/json")
        is_oom = found["State"]["OOMKilled"] and code == _KILLED and not run.ending.is_set()
        return started, code, "OOMKilled" if is_oom else "Completed" if code == 0 else "Error"

    async def _made(self, run: Run, pod: Json, one: Json) -> None:
        if before := run.made.pop(one["name"], ""):
            await self.engine.ask("DELETE", f"/containers/{before}", absent=(404,), force="1", v="1")
        body = container_of(pod, one, self.place.network, self.place.service, self._labels(run))
        run.container = (await self.engine.ask("POST", "/containers/create", body))["Id"]
        run.made[one["name"]] = run.container

    async def _ended(self, run: Run) -> int:
        """Return the exit code of a container that was left alone or, when it is to end, stopped."""
        waiting = asyncio.ensure_future(self.engine.ask("POST", f"/containers/{run.container}/wait"))
        ending = asyncio.ensure_future(run.ending.wait())
        await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and not waiting.done():
            await self.engine.ask("POST", f"/containers/{run.container}/stop", absent=(404,), t=str(round(run.grace_s)))
        ending.cancel()
        return int((await waiting)["StatusCode"])

    async def close(self) -> None:
        """End every pod at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        listed = await self.engine.ask("GET", "/containers/json", all="1", filters=query_of(self.place.labels))
        await asyncio.gather(
            *(
                self.engine.ask("DELETE", f"/containers/{one['Id']}", absent=(404, 409), force="1", v="1")
                for one in listed
            )
        )
        await remove_volumes(self.engine, query_of(self.place.labels))
