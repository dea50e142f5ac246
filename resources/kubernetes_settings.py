"""The cluster of ``"sandbox": "kubernetes"``, read from the environment and written back for a child process."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from adapters.sandboxes.kubernetes_cluster import Cluster, Coordinator, Toleration
from domain.errors import ConfigurationError

_LARGEST_USER = 2**31 - 1


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster that an environment describes; .env.example lists the variables.

    Raises:
        ConfigurationError: naming the variable.
    """
    usual = Cluster()
    pod, uid = environment.get("SYNTH_POD_NAME", ""), environment.get("SYNTH_POD_UID", "")
    proxy_pods = _pairs(environment, "SYNTH_KUBERNETES_PROXY_PODS")
    networks = environment.get("SYNTH_KUBERNETES_PRIVATE_NETWORKS")
    return Cluster(
        kubeconfig=environment.get("SYNTH_KUBECONFIG") or environment.get("KUBECONFIG", ""),
        context=environment.get("SYNTH_KUBERNETES_CONTEXT", ""),
        namespace=environment.get("SYNTH_KUBERNETES_NAMESPACE", ""),
        proxy_url=_proxy_url(environment, is_service=bool(proxy_pods)),
        proxy_pods=proxy_pods,
        private_networks=usual.private_networks if networks is None else _networks(networks),
        node_selector=_pairs(environment, "SYNTH_KUBERNETES_NODE_SELECTOR"),
        tolerations=tuple(_toleration(text) for text in _words(environment, "SYNTH_KUBERNETES_TOLERATIONS")),
        pull_secrets=_words(environment, "SYNTH_KUBERNETES_PULL_SECRETS"),
        user=_user(environment),
        gpu_resource=environment.get("SYNTH_KUBERNETES_GPU", ""),
        gpu_label=environment.get("SYNTH_KUBERNETES_GPU_LABEL") or usual.gpu_label,
        request_share=_number(environment, "SYNTH_KUBERNETES_REQUEST_SHARE", usual.request_share, 0.0, 1.0),
        schedule_s=_number(environment, "SYNTH_KUBERNETES_SCHEDULE_S", usual.schedule_s, 1.0, 86400.0),
        default_image=environment.get("SYNTH_KUBERNETES_IMAGE") or usual.default_image,
        coordinator=Coordinator(name=pod, uid=uid) if pod and uid else None,
    )


def environment_of_cluster(cluster: Cluster) -> dict[str, str]:
    """Return the variables from which a child process reads the same cluster."""
    coordinator = cluster.coordinator
    return {
        "SYNTH_KUBECONFIG": cluster.kubeconfig,
        "SYNTH_KUBERNETES_CONTEXT": cluster.context,
        "SYNTH_KUBERNETES_NAMESPACE": cluster.namespace,
        "SYNTH_KUBERNETES_PROXY_URL": cluster.proxy_url,
        "SYNTH_KUBERNETES_PROXY_PODS": _joined(cluster.proxy_pods),
        "SYNTH_KUBERNETES_PRIVATE_NETWORKS": ",".join(cluster.private_networks),
        "SYNTH_KUBERNETES_NODE_SELECTOR": _joined(cluster.node_selector),
        "SYNTH_KUBERNETES_TOLERATIONS": ",".join(
            each.key + (f"={each.value}" if each.value else "") + (f":{each.effect}" if each.effect else "")
            for each in cluster.tolerations
        ),
        "SYNTH_KUBERNETES_PULL_SECRETS": ",".join(cluster.pull_secrets),
        "SYNTH_KUBERNETES_USER": "" if cluster.user is None else str(cluster.user),
        "SYNTH_KUBERNETES_GPU": cluster.gpu_resource,
        "SYNTH_KUBERNETES_GPU_LABEL": cluster.gpu_label,
        "SYNTH_KUBERNETES_REQUEST_SHARE": str(cluster.request_share),
        "SYNTH_KUBERNETES_SCHEDULE_S": str(cluster.schedule_s),
        "SYNTH_KUBERNETES_IMAGE": cluster.default_image,
        "SYNTH_POD_NAME": coordinator.name if coordinator else "",
        "SYNTH_POD_UID": coordinator.uid if coordinator else "",
    }


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in environment.get(name, "").split(",") if part.strip())


def _pairs(environment: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for part in _words(environment, name):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise ConfigurationError(f"{name}: {part!r} is no label", hint="write key=value,key=value")
        found.append((key, value))
    return tuple(found)


def _joined(pairs: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{key}={value}" for key, value in pairs)


def _toleration(text: str) -> Toleration:
    """Read a taint as ``kubectl taint`` writes it: ``key=value:Effect``, value and effect as wished."""
    rest, _, effect = text.partition(":")
    key, _, value = rest.partition("=")
    if not key or effect not in {"", "NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ConfigurationError(f"SYNTH_KUBERNETES_TOLERATIONS: {text!r} is no taint", hint="write key=value:Effect")
    return Toleration(key=key, value=value, effect=effect)


def _proxy_url(environment: Mapping[str, str], *, is_service: bool) -> str:
    """Return the proxy's address; a network policy can name an address or pods, never a host's name."""
    name = "SYNTH_KUBERNETES_PROXY_URL"
    url = environment.get(name, "").rstrip("/")
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigurationError(f"{name}: {url!r}: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigurationError(f"{name}: {url!r} is no address", hint="write http://ADDRESS:PORT")
    if not is_service and not _is_address(host):
        raise ConfigurationError(
            f"{name}: {host!r} is a name, which a network policy cannot allow",
            hint="write an IP address, or name the labels of the proxy's pods in SYNTH_KUBERNETES_PROXY_PODS",
        )
    return url


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _networks(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in found:
        try:
            ipaddress.ip_network(part)
        except ValueError as error:
            raise ConfigurationError(f"SYNTH_KUBERNETES_PRIVATE_NETWORKS: {error}") from None
    return found


def _user(environment: Mapping[str, str]) -> int | None:
    name = "SYNTH_KUBERNETES_USER"
    text = environment.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _LARGEST_USER:
        raise ConfigurationError(f"{name}: {text!r} is no user id of an ordinary user")
    return int(text)


def _number(environment: Mapping[str, str], name: str, usual: float, low: float, high: float) -> float:
    text = environment.get(name, "")
    if not text:
        return usual
    try:
        value = float(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigurationError(f"{name}: {text!r} is no number from {low:g} to {high:g}")
    return value
