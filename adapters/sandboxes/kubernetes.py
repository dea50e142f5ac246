"""Boxes as pods of a Kubernetes cluster: one pod for a box, one network policy beside it, on one namespace.

The agent's box and the verifier's are pods of their own. Images come from where the nodes pull them: a Dockerfile is
built and pushed before (``synth task-set build --push``).
"""

import asyncio
import time
from typing import Any

from adapters.sandboxes.kubernetes_api import Api, has_account
from adapters.sandboxes.kubernetes_box import KubernetesBox
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_labels import OURS, Note
from adapters.sandboxes.kubernetes_link import Link, link_to
from adapters.sandboxes.kubernetes_objects import section
from adapters.sandboxes.kubernetes_pods import make, sweep
from adapters.sandboxes.kubernetes_probe import check_proxy, enforcement
from domain.errors import SandboxError, SynthError, boundary
from domain.ports import Box, BoxSpec
from domain.records.task import NetworkMode, TaskEnvironment

_ANSWER_S = 15.0
_FRESH_S = 5.0
_ENFORCE = "pod-security.kubernetes.io/enforce"
"""Source: Kubernetes, "Pod Security Admission", namespace labels."""


class KubernetesSandbox:
    """Makes pods in one namespace of one cluster.

    Args:
        cluster: which, and how its operator wants boxes to be.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._silence = (0.0, "")

    @property
    def name(self) -> str:
        """``kubernetes``."""
        return "kubernetes"

    @property
    def _link(self) -> Link:
        return link_to(self._cluster)

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted."""
        here = "not in a kubernetes box"
        unbuilt = environment.dockerfile and environment.docker_image is None and not environment.host_runnable
        no_gpu = f"{here} before SYNTH_KUBERNETES_GPU names the cluster's resource"
        asked = {
            f"environment/docker-compose.yaml: {here}": environment.compose,
            f"environment/Dockerfile: {here}; build its image first: synth task-set build --push": unbuilt,
            f"environment.gpus: {no_gpu}": bool(environment.gpus) and not self._cluster.gpu_resource,
            f"environment.gpu_types: {no_gpu}": bool(environment.gpu_types) and not self._cluster.gpu_resource,
            f"environment.network_mode = 'allowlist': {here}": environment.network_mode is NetworkMode.ALLOWLIST,
            f"environment.workdir = {environment.workdir!r}: {here}": not environment.workdir.strip("/"),
        }
        refused = [words for words, present in asked.items() if present]
        if not refused and (silence := self._cluster_says()):
            refused.append(silence)
        return tuple(refused)

    def _cluster_says(self) -> str:
        """Return why the cluster takes no box at all, empty when it does; asked anew after some seconds."""
        if not self._cluster.kubeconfig and not has_account():
            return "no Kubernetes cluster is named: set SYNTH_KUBECONFIG"
        asked_s, words = self._silence
        if not asked_s or time.monotonic() - asked_s > _FRESH_S:
            try:
                words = self._link.loop.wait(self._ask(), _ANSWER_S)
            except SynthError as error:
                words = f"no Kubernetes cluster answers: {error}"
            except TimeoutError:
                words = f"no Kubernetes cluster answers within {_ANSWER_S:g} s"
            self._silence = time.monotonic(), words
        return words

    async def _ask(self) -> str:
        api, _ = await self._link.open()
        await api.ask("GET", "/version", patience_s=0)
        namespace = await api.ask(
            "GET", f"/api/v1/namespaces/{api.namespace}", absent=(403, 404), patience_s=0
        )  # whoever may not look at namespaces learns it when the first pod is refused
        labels = section(namespace or {}, "metadata", "labels")
        if labels.get(_ENFORCE) == "restricted" and self._cluster.user is None:
            return (
                f"namespace {api.namespace} enforces PodSecurity 'restricted', which root does not meet: "
                "set SYNTH_KUBERNETES_USER to a user id that is not 0, or use a namespace of level 'baseline'"
            )
        return ""

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box.

        Raises:
            SandboxError: of the class of ``kubernetes_faults`` that names what the cluster refuses or lacks.
        """
        refused = await asyncio.to_thread(self.refusals, spec.environment)
        if refused:
            raise SandboxError(
                f"box {spec.box_id}: {'; '.join(refused)}", hint="admission names this before anything runs"
            )
        if spec.model_access and not self._cluster.proxy_url:
            raise SandboxError(
                f"box {spec.box_id}: pods know no address of the model proxy", hint="set SYNTH_KUBERNETES_PROXY_URL"
            )
        with boundary(SandboxError, f"create box {spec.box_id}"):
            return await self._link.loop.call(self._make(spec), forsaken=KubernetesBox.destroy)

    async def _make(self, spec: BoxSpec) -> KubernetesBox:
        link = self._link
        api, watch = await link.open()
        box = KubernetesBox(link, api, watch, spec, await make(api, watch, self._cluster, spec))
        try:
            await box.furnish()
            if spec.model_access and not link.has_reached_proxy:
                await check_proxy(link, box.name)
                link.has_reached_proxy = True
        except BaseException:
            await asyncio.shield(box.destroy())
            raise
        if "policies" not in link.probes:
            link.probes["asked"] = asyncio.create_task(enforcement(link, spec))
        return box

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes of dead owners or past their deadline; returns their ids. Touches nothing else."""
        if await asyncio.to_thread(self._cluster_says):
            return ()
        return await self._link.loop.call(self._sweep(now_ms))

    async def _sweep(self, now_ms: int) -> tuple[str, ...]:
        api, _ = await self._link.open()
        owners: dict[str, Any] = {}

        async def is_over(note: Note) -> bool:
            if now_ms > note.deadline_ms or note.owner_ended_here():
                return True
            if not note.owner_pod or note.is_near:
                return False
            return note.owner_ended_there(await _pod(api, note.owner_pod, owners))

        return await sweep(api, is_over, OURS, now_ms)


async def _pod(api: Api, name: str, known: dict[str, Any]) -> Any:
    """Return a pod, asked for once in a sweep."""
    if name not in known:
        known[name] = await api.ask("GET", api.path("pods", name), absent=(404,))
    return known[name]
