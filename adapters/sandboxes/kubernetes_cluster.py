"""Which cluster boxes are made on, and what its operator says about it. Values only."""

from dataclasses import dataclass

DEFAULT_IMAGE = "debian:bookworm-slim"
"""For tasks that need only a shell and name no image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that boxes may stand on; an empty value tolerates each value of the key."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The pod that this process runs in; its boxes go when it is deleted."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster and a namespace of it."""

    kubeconfig: str = ""
    """Path; empty: the service account of the pod that we run in, without which there is no cluster."""
    context: str = ""
    """Of the kubeconfig; empty: its current one."""
    namespace: str = ""
    """Empty: the context's, else the service account's, else ``default``."""
    proxy_url: str = ""
    """Base URL of the model proxy as pods reach it; empty: boxes have no model access."""
    proxy_pods: tuple[tuple[str, str], ...] = ()
    """Labels of the proxy's pods where ``proxy_url`` names a service. A policy sees pods, never a service's address.

    Source: Kubernetes, NetworkPolicy, "behavior of ipBlock selectors".
    """
    private_networks: tuple[str, ...] = ("169.254.0.0/16",)
    """What the public network does not include: the metadata of a cloud, the cluster's own addresses."""
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    user: int | None = None
    """User id of every process of a box; None: the image's own user, who may be root."""
    gpu_resource: str = ""
    """``nvidia.com/gpu``; empty: tasks that ask for GPUs are refused."""
    gpu_label: str = "nvidia.com/gpu.product"
    """Label of nodes that says which GPU they have, for ``environment.gpu_types``."""
    request_share: float = 0.125
    """Requests of memory and disk as a share of the limits, for what the task does not ask for by name."""
    schedule_s: float = 300.0
    """How long a pod may wait for a node, in seconds."""
    default_image: str = DEFAULT_IMAGE
    coordinator: Coordinator | None = None
