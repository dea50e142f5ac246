"""What lies between the API and the node: admission by state, rights, and which pod a request means."""

from typing import Any

from tests.kubernetes_double import pod_status as status
from tests.kubernetes_double.admission import admit_change
from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.deletion import Deletion
from tests.kubernetes_double.faults import Faults
from tests.kubernetes_double.kinds import ACCOUNTS, NAMESPACES, NODES, PODS, QUOTAS, Kind
from tests.kubernetes_double.kubelet import Kubelet
from tests.kubernetes_double.objects import containers, part, the_container
from tests.kubernetes_double.pod_security import check_security
from tests.kubernetes_double.quotas import check_quotas, is_over
from tests.kubernetes_double.run import Run
from tests.kubernetes_double.scheduler import Scheduler
from tests.kubernetes_double.store import Key, Store
from tests.kubernetes_double.volumes import check_volumes

Json = dict[str, Any]

USER = "tests"


class Cluster:
    """Objects, the controllers that act on them, and the node that runs pods.

    Args:
        store: the objects.
        kubelet: the node.
    """

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self.store = store
        self.kubelet = kubelet
        self.faults = Faults()
        self.denied: set[tuple[str, str]] = set()
        """Verb and plural of what the bearer of the token may not do."""
        self.delete = Deletion(store, kubelet).delete
        self._scheduler = Scheduler(store, kubelet.start)

    def furnish(self, node: Json) -> None:
        """Make what every cluster has."""
        self.store.add(NODES, node)
        for name in ("default", "kube-system"):
            self.create(NAMESPACES, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})

    def create(self, kind: Kind, thing: Json, *, is_dry: bool = False) -> Json:
        """Store a new object and set off what follows from it. Raises RefusalError."""
        namespace = thing["metadata"].get("namespace", "")
        if kind is PODS:
            self._admit(namespace, thing)
        elif kind.is_namespaced:
            self.store.get(("namespaces", "", namespace))
        if is_dry:
            return thing
        made = self.store.add(kind, thing)
        if kind is NAMESPACES:
            account = {"kind": "ServiceAccount", "apiVersion": "v1"}
            named = {"name": "default", "namespace": made["metadata"]["name"]}
            self.store.add(ACCOUNTS, {**account, "metadata": named})
        if kind is PODS:
            self._scheduler.take(made)
        return made

    def _admit(self, namespace: str, pod: Json) -> None:
        """Raise RefusalError when its namespace does not admit a pod."""
        check_security(self.store.get(("namespaces", "", namespace)), pod)
        check_volumes(pod)
        others = [each for each in self.store.find(PODS, namespace, lambda _: True) if not is_over(each)]
        key = ("pods", namespace, pod["metadata"]["name"])
        if not self.store.has(key):  # a name that is taken is told before a quota
            check_quotas(self.store.find(QUOTAS, namespace, lambda _: True), others, pod)
        pod["status"] = status.pending(pod)

    def replace(self, kind: Kind, key: Key, before: Json, thing: Json) -> Json:
        """Store the new content of an object. Raises RefusalError."""
        thing |= {"kind": kind.name, "apiVersion": kind.api_version}
        if (thing["metadata"].get("namespace", ""), thing["metadata"].get("name")) != key[1:]:
            raise RefusalError(400, "the name of the object does not match the name on the URL")
        if thing == before:
            return before
        admit_change(kind, before, thing)
        return self.store.replace(key, thing)

    def allow(self, verb: str, kind: Kind, namespace: str) -> None:
        """Raise RefusalError (403) for what the bearer of the token may not do."""
        if (verb, kind.plural) in self.denied:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            words = f'User "{USER}" cannot {verb} resource "{kind.plural}" in API group "{kind.group}" {where}'
            raise RefusalError(403, f"{kind.plural} is forbidden: {words}", details={"kind": kind.plural})

    def review(self, review: Json) -> Json:
        """Answer whether the bearer of the token may do something."""
        asked = part(review, "spec", "resourceAttributes")
        allowed = (asked.get("verb"), asked.get("resource")) not in self.denied
        return {**review, "status": {"allowed": allowed}}

    def running(self, namespace: str, name: str) -> tuple[Json, Run]:
        """Return a pod whose container runs. Raises RefusalError."""
        pod = self.store.get(("pods", namespace, name))
        run = self.kubelet.runs.get(pod["metadata"]["uid"])
        if is_over(pod):
            phase = pod["status"]["phase"]
            raise RefusalError(400, f"cannot exec into a container in a completed pod; current phase is {phase}")
        if run is None:
            raise RefusalError(400, f"pod {name} does not have a host assigned")
        self._check_node(run)
        if "running" not in part(status.its_status(pod), "state"):
            words = f'unable to upgrade connection: container not found ("{the_container(pod)["name"]}")'
            raise RefusalError(500, words)
        return pod, run

    @staticmethod
    def _check_node(run: Run) -> None:
        if run.is_lost:
            where = f"{status.NODE_IP}:10250"
            raise RefusalError(500, f"error dialing backend: dial tcp {where}: connect: no route to host")

    @staticmethod
    def check_container(pod: Json, name: str) -> None:
        """Raise RefusalError unless a pod has a container of that name."""
        if name and name not in [each["name"] for each in containers(pod)]:
            raise RefusalError(400, f"container {name} is not valid for pod {pod['metadata']['name']}")

    def check_runs(self, pod: Json, name: str) -> None:
        """Raise RefusalError unless the container of that name is the pod's own."""
        self.check_container(pod, name)
        if name and name != the_container(pod)["name"]:
            raise RefusalError(500, f'unable to upgrade connection: container not found ("{name}")')

    def logged(self, namespace: str, name: str, wanted: str = "") -> str:
        """Return the engine's id of a container of a pod, its own unless named. Raises RefusalError."""
        pod = self.store.get(("pods", namespace, name))
        self.check_container(pod, wanted)
        one = wanted or the_container(pod)["name"]
        run = self.kubelet.runs.get(pod["metadata"]["uid"])
        if run is None or one not in run.made:
            why = part(status.its_status(pod), "state", "waiting").get("reason", "ContainerCreating")
            raise RefusalError(400, f'container "{one}" in pod "{name}" is waiting to start: {why}')
        self._check_node(run)
        return run.made[one]
