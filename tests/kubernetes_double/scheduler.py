"""Which node takes a pod, or why none does.

Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations"; kube-scheduler's words.
"""

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tests.kubernetes_double.events import record
from tests.kubernetes_double.kinds import NODES, PODS
from tests.kubernetes_double.objects import part, parts, words
from tests.kubernetes_double.pod_status import NODE, set_condition
from tests.kubernetes_double.quantities import amount
from tests.kubernetes_double.quotas import asked_of_node, is_over
from tests.kubernetes_double.store import Change, Key, Store

Json = dict[str, Any]

_REPELLING = {"NoSchedule", "NoExecute"}


class Scheduler:
    """Binds pods to the node as soon as it takes them.

    Args:
        store: the pods.
        start: lets the node run a pod.
    """

    def __init__(self, store: Store, start: Callable[[Json], None]) -> None:
        self._store = store
        self._start = start
        self._waiting: dict[str, Key] = {}
        store.listen(self._again)

    def take(self, pod: Json) -> None:
        """Bind a new pod now or later."""
        about = pod["metadata"]
        self._waiting[about["uid"]] = ("pods", about["namespace"], about["name"])
        self._try(about["uid"])

    def _again(self, change: Change) -> None:
        """Try anew what waits when room may have come."""
        freed = change.key[0] == "pods" and (change.now is None or is_over(change.now))
        if self._waiting and (freed or change.key[0] == "nodes"):
            for uid in list(self._waiting):
                asyncio.get_running_loop().call_soon(self._try, uid)

    def _try(self, uid: str) -> None:
        key = self._waiting.get(uid)
        if key is None:
            return
        (node,) = self._store.find(NODES, "", lambda _: True)
        bound = self._store.find(PODS, "", lambda thing: "nodeName" in thing["spec"])
        pod = self._store.get(key) if self._store.has(key) else None
        if pod is None or pod["metadata"]["uid"] != uid:
            del self._waiting[uid]
        elif why := place(pod, node, bound):
            if self._store.change(key, uid, lambda seen: _set_waiting(seen, why)) != pod:
                record(self._store, pod, "Warning", "FailedScheduling", why)
        else:
            del self._waiting[uid]
            placed = self._store.change(key, uid, _bind)
            assert placed is not None
            words = f"Successfully assigned {key[1]}/{key[2]} to {NODE}"
            record(self._store, placed, "Normal", "Scheduled", words)
            self._start(placed)


def _set_waiting(pod: Json, why: str) -> None:
    set_condition(pod, "PodScheduled", holds=False, reason="Unschedulable", message=why)


def _bind(pod: Json) -> None:
    pod["spec"]["nodeName"] = NODE
    set_condition(pod, "PodScheduled", holds=True)


def place(pod: Json, node: Json, others: Sequence[Json]) -> str:
    """Return why a node does not take a pod, empty when it does.

    Args:
        pod: to be placed.
        node: the one node.
        others: pods bound to it.
    """
    reasons = _mismatch(pod, node) or _lacking(pod, node, others)
    if not reasons:
        return ""
    told = ", ".join(f"1 {reason}" for reason in reasons)
    hint = "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    return f"0/1 nodes are available: {told}. preemption: {hint}"


def _mismatch(pod: Json, node: Json) -> list[str]:
    spec, labels = part(pod, "spec"), part(node, "metadata", "labels")
    if part(node, "spec").get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in parts(node, "spec", "taints"):
        if taint["effect"] in _REPELLING and not any(_tolerates(each, taint) for each in parts(spec, "tolerations")):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    selected = all(labels.get(key) == value for key, value in part(spec, "nodeSelector").items())
    required = part(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = parts(required, "nodeSelectorTerms")
    if not selected or (terms and not any(_meets(term, labels) for term in terms)):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def _meets(term: Json, labels: Json) -> bool:
    for each in parts(term, "matchExpressions"):
        value, values = labels.get(each["key"]), words(each, "values")
        verdicts = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not verdicts.get(each["operator"], False):
            return False
    return True


def _lacking(pod: Json, node: Json, others: Sequence[Json]) -> list[str]:
    free = {name: amount(text) for name, text in part(node, "status", "allocatable").items()}
    for other in others:
        if not is_over(other):
            for name, much in asked_of_node(other).items():
                free[name] = free.get(name, Fraction(0)) - much
    wanted = asked_of_node(pod)
    lacking = sorted(name for name, much in wanted.items() if much > free.get(name, Fraction(0)) and much > 0)
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]
