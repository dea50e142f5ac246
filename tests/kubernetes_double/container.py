"""A container of a pod as the Docker engine is asked to make it.

Source: Kubernetes API v1, PodSpec; Docker Engine API v1.41, ContainerCreate.
"""

import re
from collections.abc import Mapping
from typing import Any

from tests.kubernetes_double.objects import part, parts, words
from tests.kubernetes_double.quantities import amount
from tests.kubernetes_double.volumes import mounts_of

Json = dict[str, Any]

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_LEAST_MEMORY = 6 << 20
"""The engine takes no less."""


def container_of(pod: Json, one: Json, network: str, service: tuple[str, int], labels: Mapping[str, str]) -> Json:
    """Return the engine's description of a container of a pod.

    Args:
        pod: as the API has it.
        one: its container.
        network: that the container is attached to.
        service: address and port of the API server as pods reach it.
        labels: of the container.
    """
    spec = part(pod, "spec")
    settings = _settings(one, service)
    command = [_expanded(word, settings) for word in words(one, "command")]
    arguments = [_expanded(word, settings) for word in words(one, "args")]
    return {
        "Image": one["image"],
        **({"Entrypoint": command} if command else {}),
        **({"Cmd": arguments} if command or arguments else {}),
        "Env": [f"{name}={value}" for name, value in settings.items()],
        "WorkingDir": one.get("workingDir", ""),
        "Hostname": spec.get("hostname") or pod["metadata"]["name"][:63],
        "User": _user(spec, one),
        "Labels": dict(labels),
        "Tty": bool(one.get("tty")),
        "OpenStdin": bool(one.get("stdin")),
        "HostConfig": {
            "NetworkMode": network,
            **_security(spec, one),
            **_limits(one),
            **_names(spec),
            **mounts_of(pod, one, pod["metadata"]["uid"]),
        },
    }


def _settings(one: Json, service: tuple[str, int]) -> dict[str, str]:
    """Return a container's variables: what every one is told of the API server, then its own."""
    host, port = service
    settings = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
    }
    for each in parts(one, "env"):
        settings[each["name"]] = _expanded(each.get("value", ""), settings)
    return settings


def _expanded(text: str, settings: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: settings.get(found[1], found[0]), text)


def _merged(spec: Json, one: Json) -> Json:
    """Return the security context of a container, the pod's where it says nothing itself."""
    return {**part(spec, "securityContext"), **part(one, "securityContext")}


def _user(spec: Json, one: Json) -> str:
    security = _merged(spec, one)
    user, group = security.get("runAsUser"), security.get("runAsGroup")
    if user is None:
        return ""
    return str(user) if group is None else f"{user}:{group}"


def _security(spec: Json, one: Json) -> Json:
    security = _merged(spec, one)
    groups = words(security, "supplementalGroups")
    groups += [str(security["fsGroup"])] if "fsGroup" in security else []
    return {
        "CapDrop": words(security, "capabilities", "drop"),
        "CapAdd": words(security, "capabilities", "add"),
        "SecurityOpt": ["no-new-privileges"] if security.get("allowPrivilegeEscalation") is False else [],
        "GroupAdd": groups,
        "ReadonlyRootfs": bool(security.get("readOnlyRootFilesystem")),
    }


def _limits(one: Json) -> Json:
    limits = part(one, "resources", "limits")
    found: Json = {}
    if "memory" in limits:
        memory = max(_LEAST_MEMORY, int(amount(limits["memory"])))
        found |= {"Memory": memory, "MemorySwap": memory}
    if "cpu" in limits:
        found["NanoCpus"] = int(amount(limits["cpu"]) * 10**9)
    return found


def _names(spec: Json) -> Json:
    if spec.get("dnsPolicy") != "None":
        return {}
    told = part(spec, "dnsConfig")
    return {"Dns": words(told, "nameservers"), "DnsSearch": words(told, "searches") or ["."]}
