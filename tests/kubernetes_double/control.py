"""What a test lets go wrong in the cluster: answers, watches, pulls, pods, the node.

Every method may be called from any thread; it returns when the thing is done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kubernetes_double.cluster import Cluster
from tests.kubernetes_double.events import record
from tests.kubernetes_double.faults import Order
from tests.kubernetes_double.node import ready_condition
from tests.kubernetes_double.pod_status import NODE, set_condition
from tests.kubernetes_double.run import Run
from tests.kubernetes_double.store import stamp

Json = dict[str, Any]
Wait = Callable[[Coroutine[Any, Any, Any]], Any]

_NODE_KEY = ("nodes", "", NODE)
_TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


class Control:
    """Changes a running cluster.

    Args:
        cluster: which.
        wait: runs a coroutine in the cluster's loop and returns what it gives.
    """

    def __init__(self, cluster: Cluster, wait: Wait) -> None:
        self._cluster = cluster
        self._wait = wait

    def answer(
        self, method: str, path: str, code: int, *, times: int = 1, retry_after_s: float = 0.0, message: str = ""
    ) -> None:
        """Answer the next requests with a failure.

        Args:
            method: HTTP method, ``*`` for any.
            path: regular expression, found in the path with its query.
            code: HTTP status: 429, 409, 500, ...
            times: how many requests.
            retry_after_s: with 429, what the server asks for.
            message: of the Status.
        """
        order = Order(method=method, path=path, code=code, times=times, retry_after_s=retry_after_s, message=message)
        self._do(lambda: self._cluster.faults.orders.append(order))

    def drop(self, method: str, path: str, *, times: int = 1, done: bool = False) -> None:
        """Drop the connection of the next requests, whose answer is lost when they were ``done``, else all of them."""
        order = Order(method=method, path=path, code=int(done), times=times)
        self._do(lambda: self._cluster.faults.orders.append(order))

    def unanswer(self) -> None:
        """Take back every order and every denial."""
        self._do(self._cluster.faults.orders.clear)
        self._do(self._cluster.denied.clear)

    def asked(self) -> list[str]:
        """Return method and path of each request so far."""
        return list(self._cluster.faults.asked)

    def deny(self, verb: str, plural: str) -> None:
        """Take a right away from the bearer of the token."""
        self._do(lambda: self._cluster.denied.add((verb, plural)))

    def expire_watches(self) -> None:
        """End every watch with 410, and forget all versions before now."""
        self._do(self._cluster.store.forget)

    def delay_pulls(self, seconds: float) -> None:
        """Let each image take its time, until that is set back to 0."""
        self._do(lambda: setattr(self._cluster.kubelet.place, "pull_delay_s", seconds))

    def housekeeping(self, seconds: float) -> None:
        """Let the node look so often at what new pods have written."""
        self._do(lambda: setattr(self._cluster.kubelet.place, "housekeeping_s", seconds))

    def evict(
        self, name: str, message: str = "The node was low on resource: memory. ", *, namespace: str = "default"
    ) -> None:
        """End a pod as a kubelet does whose node runs short."""
        self._do(lambda: self._evict(self._run(name, namespace), message))

    def lose_node(self) -> None:
        """Let the node fall silent, and the pods on it be given up: they are Terminating until it is back."""
        self._do(self._lose)

    def find_node(self) -> None:
        """Let the node answer again; it ends the pods that were given up."""
        self._do(self._find)

    def restart_node(self) -> None:
        """Let the node start anew: its containers are gone, and pods that are not restarted are in Error."""
        self._do(self._cluster.kubelet.restart)

    def change_node(self, change: Json) -> None:
        """Set parts of the node's ``spec`` and ``status.allocatable``: taints, unschedulable, what it has."""

        def edit(node: Json) -> None:
            node["spec"] |= change.get("spec", {})
            node["status"]["allocatable"] |= change.get("allocatable", {})

        self._do(lambda: self._edit_node(edit))

    def _do(self, change: Callable[[], object]) -> None:
        async def work() -> None:
            change()
            await asyncio.sleep(0)

        self._wait(work())

    def _run(self, name: str, namespace: str) -> Run:
        return self._cluster.kubelet.runs[self._cluster.store.get(("pods", namespace, name))["metadata"]["uid"]]

    def _evict(self, run: Run, message: str) -> None:
        kubelet = self._cluster.kubelet
        kubelet.edit(
            run,
            lambda pod: set_condition(
                pod, "DisruptionTarget", holds=True, reason="TerminationByKubelet", message=message
            ),
        )
        kubelet.stop(run, 0, ("Evicted", message))
        record(self._cluster.store, self._cluster.store.get(run.key), "Warning", "Evicted", message)

    def _edit_node(self, edit: Callable[[Json], None]) -> None:
        uid = self._cluster.store.get(_NODE_KEY)["metadata"]["uid"]
        self._cluster.store.change(_NODE_KEY, uid, edit)

    def _lose(self) -> None:
        def silent(node: Json) -> None:
            node["status"]["conditions"] = [ready_condition("Unknown")]
            node["spec"]["taints"] = [*node["spec"].get("taints", []), {**_TAINT, "timeAdded": stamp()}]

        self._edit_node(silent)
        for run in self._cluster.kubelet.runs.values():
            self._cluster.store.change(run.key, run.uid, _given_up)
            run.is_lost = True
            run.hang_up()

    def _find(self) -> None:
        def answering(node: Json) -> None:
            node["status"]["conditions"] = [ready_condition()]
            node["spec"]["taints"] = [each for each in node["spec"].get("taints", []) if each["key"] != _TAINT["key"]]

        self._edit_node(answering)
        for run in list(self._cluster.kubelet.runs.values()):
            if run.is_lost:
                run.is_lost = False
                self._cluster.kubelet.remove(run, 0)


def _given_up(pod: Json) -> None:
    words = "Taint manager: deleting due to NoExecute taint"
    set_condition(pod, "Ready", holds=False, reason="NodeNotReady")
    set_condition(pod, "DisruptionTarget", holds=True, reason="DeletionByTaintManager", message=words)
    pod["metadata"].setdefault("deletionTimestamp", stamp(30))
    pod["metadata"].setdefault("deletionGracePeriodSeconds", 30)
