"""The objects of one box: its network policy, which comes first, and its pod.

Nothing of the cluster reaches the box: no token of a service account, no list of services, no privilege beyond what an
image whose user is root needs to change owners and users. With a user of its own (``Cluster.user``) a box meets the
``restricted`` level of PodSecurity; without, it meets ``baseline``.

Source: Kubernetes API v1 and networking.k8s.io/v1; "Pod Security Standards".
"""

import datetime as dt
import ipaddress
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_labels import NOTE, Note, labels_of, object_name
from adapters.sandboxes.kubernetes_shell import INIT
from domain.ports import BoxSpec
from domain.records.task import NetworkMode, TaskEnvironment

Json = dict[str, Any]

_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"]
"""For root: change owners and users, end processes. All of them are within ``baseline``."""
_NO_NAMES: Json = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
_OWN_DIRECTORIES = [("logs", "/logs"), ("tests", "/tests"), ("solution", "/solution"), ("engine", "/opt/synth")]
"""Where trials put files, outside the working directory."""
_LEAST_MEMORY_MB = 32
_LEAST_CPU = 0.02
_DISK_SLACK = 1.25
_DISK_OURS_MB = 16
"""Our own look at the disk comes first and ends the command alone; the kubelet's ends the pod."""
_LAST_S = 253402300799
"""The last second of the year 9999, which is as far as dates go."""
_LONGEST_S = 2**31 - 1
"""Source: Kubernetes, validation of activeDeadlineSeconds."""


def image_of(environment: TaskEnvironment, cluster: Cluster) -> str:
    """Return the image that a box starts from."""
    return environment.docker_image or cluster.default_image


def pod(spec: BoxSpec, cluster: Cluster, now_ms: int) -> Json:
    """Return the pod of a box.

    Args:
        spec: what to create.
        cluster: where.
        now_ms: for the pod's own deadline; one that has passed already is left to the janitor.
    """
    left_s = math.ceil((spec.deadline_ms - now_ms) / 1000)
    deadline = {"activeDeadlineSeconds": min(left_s, _LONGEST_S)} if left_s > 0 else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(spec, cluster),
        "spec": {
            "restartPolicy": "Never",
            **deadline,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "box",
            **({} if _asks_names(spec, cluster) else _NO_NAMES),
            "securityContext": _pod_security(cluster),
            "containers": [_container(spec, cluster)],
            **_volumes(spec.environment, cluster),
            **_placement(spec.environment, cluster),
        },
    }


def _metadata(spec: BoxSpec, cluster: Cluster) -> Json:
    note = Note.of(spec, cluster.coordinator)
    deadline = dt.datetime.fromtimestamp(min(spec.deadline_ms / 1000, _LAST_S), tz=dt.UTC)
    metadata: Json = {
        "name": object_name(spec.box_id),
        "labels": labels_of(spec),
        "annotations": {NOTE: note.text(), "synth/deadline": deadline.isoformat(timespec="seconds")},
    }
    if cluster.coordinator is not None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": cluster.coordinator.name, "uid": cluster.coordinator.uid}
        metadata["ownerReferences"] = [{**owner, "controller": False, "blockOwnerDeletion": False}]
    return metadata


def _pod_security(cluster: Cluster) -> Json:
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if cluster.user is not None:
        security |= {"runAsNonRoot": True, "runAsUser": cluster.user, "runAsGroup": cluster.user}
        security |= {"fsGroup": cluster.user}
    return security


def _container(spec: BoxSpec, cluster: Cluster) -> Json:
    capabilities: Json = {"drop": ["ALL"]} if cluster.user is not None else {"drop": ["ALL"], "add": _CAPABILITIES}
    return {
        "name": "box",
        "image": image_of(spec.environment, cluster),
        "imagePullPolicy": "IfNotPresent",
        "command": list(INIT),
        "workingDir": "/",
        "resources": _resources(spec, cluster),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": capabilities},
        "volumeMounts": [
            {"name": name, "mountPath": path} for name, path in _own_directories(spec.environment, cluster)
        ],
    }


def _own_directories(environment: TaskEnvironment, cluster: Cluster) -> list[tuple[str, str]]:
    """Return names and paths of directories that a user who is not root could not make.

    The working directory of a task's own image is the image's: an empty one would hide what lies there.
    """
    if cluster.user is None:
        return []
    workdir = [] if environment.docker_image else [("workdir", environment.workdir)]
    return [*_OWN_DIRECTORIES, *workdir]


def _volumes(environment: TaskEnvironment, cluster: Cluster) -> Json:
    names = [name for name, _ in _own_directories(environment, cluster)]
    return {"volumes": [{"name": name, "emptyDir": {}} for name in names]} if names else {}


def _resources(spec: BoxSpec, cluster: Cluster) -> Json:
    """Return requests and limits: what the task asks for by name is requested whole, the rest as a share."""
    environment, limits, share = spec.environment, spec.limits, cluster.request_share
    asked: dict[str, str] = {"cpu": _cpu(environment.cpus or _LEAST_CPU)}
    most: dict[str, str] = {} if environment.cpus is None else {"cpu": _cpu(environment.cpus)}
    if limits.memory_mb is not None:
        most["memory"] = f"{limits.memory_mb}Mi"
        part = limits.memory_mb if environment.memory_mb else limits.memory_mb * share
        asked["memory"] = f"{min(limits.memory_mb, max(_LEAST_MEMORY_MB, math.ceil(part)))}Mi"
    if limits.disk_mb is not None:
        whole = math.ceil(limits.disk_mb * _DISK_SLACK) + _DISK_OURS_MB
        most["ephemeral-storage"] = f"{whole}Mi"
        asked["ephemeral-storage"] = f"{whole if environment.storage_mb else math.ceil(whole * share)}Mi"
    if environment.gpus:
        asked[cluster.gpu_resource] = most[cluster.gpu_resource] = str(environment.gpus)
    return {"requests": asked, "limits": most}


def _cpu(cpus: float) -> str:
    return f"{math.ceil(cpus * 1000)}m"


def _placement(environment: TaskEnvironment, cluster: Cluster) -> Json:
    placement: Json = {}
    if cluster.node_selector:
        placement["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        placement["tolerations"] = [
            {"key": each.key, "operator": "Equal" if each.value else "Exists"}
            | ({"value": each.value} if each.value else {})
            | ({"effect": each.effect} if each.effect else {})
            for each in cluster.tolerations
        ]
    if cluster.pull_secrets:
        placement["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    if environment.gpu_types:
        wanted = {"key": cluster.gpu_label, "operator": "In", "values": list(environment.gpu_types)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        placement["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return placement


def policy(spec: BoxSpec, cluster: Cluster) -> Json:
    """Return the network policy of a box: nobody reaches it, and it reaches what its mode and the proxy need."""
    egress: list[Json] = []
    if spec.environment.network_mode is NetworkMode.PUBLIC:
        egress.append(_public(cluster))
    if spec.model_access:
        egress.append(_proxy(cluster))
    if _asks_names(spec, cluster):
        egress.append(_names())
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(spec, cluster),
        "spec": {
            "podSelector": {"matchLabels": {"synth/box": object_name(spec.box_id)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": egress,
        },
    }


def _asks_names(spec: BoxSpec, cluster: Cluster) -> bool:
    """Say whether a box needs the name service: for the public network, or for a proxy that is a service."""
    return spec.environment.network_mode is NetworkMode.PUBLIC or (spec.model_access and bool(cluster.proxy_pods))


def _public(cluster: Cluster) -> Json:
    four = [each for each in cluster.private_networks if ":" not in each]
    six = [each for each in cluster.private_networks if ":" in each]
    blocks: list[Mapping[str, Any]] = [
        {"cidr": "0.0.0.0/0", **({"except": four} if four else {})},
        {"cidr": "::/0", **({"except": six} if six else {})},
    ]
    return {"to": [{"ipBlock": block} for block in blocks]}


def _names() -> Json:
    """Allow the cluster's name service, wherever it runs."""
    everywhere = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    return {"to": [everywhere], "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}


def _proxy(cluster: Cluster) -> Json:
    host, port = proxy_address(cluster)
    if cluster.proxy_pods:
        selector = {"podSelector": {"matchLabels": dict(cluster.proxy_pods)}, "namespaceSelector": {}}
        return {"to": [selector], "ports": [{"protocol": "TCP", "port": port}]}
    address = ipaddress.ip_address(host)
    block = {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
    return {"to": [block], "ports": [{"protocol": "TCP", "port": port}]}


def proxy_address(cluster: Cluster) -> tuple[str, int]:
    """Return host and port of the model proxy as pods reach it."""
    parts = urlsplit(cluster.proxy_url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
