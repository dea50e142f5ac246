"""What the API server refuses of a pod or policy, and what no node can take.

Source: Kubernetes PodSecurity ``restricted``, ResourceQuota and scheduler messages, as a 1.34 cluster words them.
"""

import re

from tests.kubernetes_double.state import Refused, State, Thing, part, parts

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_POD_FIELDS = frozenset(
    """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks
    hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets initContainers nodeName nodeSelector
    preemptionPolicy priority priorityClassName restartPolicy runtimeClassName schedulerName securityContext
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace terminationGracePeriodSeconds tolerations
    volumes
    """.split()  # noqa: SIM905 - two dozen names read better so
)


def amount(text: object) -> float:
    """Return a quantity as a number: cores, bytes, pieces."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _UNITS:
        raise Refused(400, "BadRequest", f"quantities must match the regular expression: {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def requests_of(pod: Thing) -> dict[str, float]:
    """Return what a pod asks a node for; limits stand in for requests that are not there."""
    total: dict[str, float] = {"pods": 1.0}
    for container in parts(pod, "spec", "containers"):
        asked = part(container, "resources", "limits") | part(container, "resources", "requests")
        for name, text in asked.items():
            total[name] = total.get(name, 0.0) + amount(text)
    return total


def check(state: State, plural: str, namespace: str, thing: Thing) -> None:
    """Refuse an object that a cluster would not store.

    Raises:
        Refused: 403 by quota or PodSecurity, 422 for a field.
    """
    meta = part(thing, "metadata")
    name = str(meta.get("name") or meta.get("generateName") or "")
    if not _NAME.match(name.rstrip("-") or "-"):
        raise Refused(422, "Invalid", f'{plural} "{name}" is invalid: metadata.name: Invalid value: "{name}"')
    if plural == "pods":
        _check_pod(name, thing)
        _check_security(state, namespace, name, thing)
        _check_quota(state, namespace, name, thing)
    if plural == "networkpolicies" and "podSelector" not in part(thing, "spec"):
        raise Refused(422, "Invalid", f'networkpolicies "{name}" is invalid: spec.podSelector: Required value')


def _check_pod(name: str, pod: Thing) -> None:
    spec = part(pod, "spec")
    if unknown := sorted(spec.keys() - _POD_FIELDS):
        raise Refused(400, "BadRequest", f'strict decoding error: unknown field "spec.{unknown[0]}"')
    containers = parts(spec, "containers")
    if not containers:
        raise Refused(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required value')
    for index, container in enumerate(containers):
        for field in ("name", "image"):
            if not container.get(field):
                where = f"spec.containers[{index}].{field}"
                raise Refused(422, "Invalid", f'Pod "{name}" is invalid: {where}: Required value')
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and int(deadline) < 1:
        raise Refused(422, "Invalid", f'Pod "{name}" is invalid: spec.activeDeadlineSeconds: Invalid value: {deadline}')


def _check_security(state: State, namespace: str, name: str, pod: Thing) -> None:
    labels = part(state.get("namespaces", "", namespace), "metadata", "labels")
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        return
    spec = part(pod, "spec")
    whole = part(spec, "securityContext")
    problems: list[str] = []
    for container in parts(spec, "containers"):
        own = part(container, "securityContext")
        said = f'container "{container["name"]}"'
        if own.get("allowPrivilegeEscalation") is not False:
            problems.append(f"allowPrivilegeEscalation != false ({said} must set allowPrivilegeEscalation=false)")
        added = set(parts(own, "capabilities", "add"))
        if "ALL" not in parts(own, "capabilities", "drop") or added - {"NET_BIND_SERVICE"}:
            problems.append(f'unrestricted capabilities ({said} must set capabilities.drop=["ALL"])')
        if not (own.get("runAsNonRoot") or whole.get("runAsNonRoot")):
            problems.append(f"runAsNonRoot != true (pod or {said} must set runAsNonRoot=true)")
        if not (own.get("seccompProfile") or whole.get("seccompProfile")):
            problems.append(f"seccompProfile (pod or {said} must set seccompProfile.type)")
    if problems:
        message = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(problems)}'
        raise Refused(403, "Forbidden", message)


def _check_quota(state: State, namespace: str, name: str, pod: Thing) -> None:
    asked = requests_of(pod)
    used: dict[str, float] = {}
    for other in state.all("pods", namespace):
        if part(other, "status").get("phase") not in {"Succeeded", "Failed"}:
            for resource, number in requests_of(other).items():
                used[resource] = used.get(resource, 0.0) + number
    for quota in state.all("resourcequotas", namespace):
        for key, text in part(quota, "spec", "hard").items():
            resource = key.removeprefix("requests.")
            if used.get(resource, 0.0) + asked.get(resource, 0.0) > amount(text):
                told = f"requested: {key}={asked.get(resource, 0.0):g}, used: {key}={used.get(resource, 0.0):g}"
                told = f"exceeded quota: {quota['metadata']['name']}, {told}, limited: {key}={text}"
                raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {told}')


def unschedulable(state: State, pod: Thing) -> str:
    """Say why no node takes a pod now; empty when one does."""
    selector = part(pod, "spec", "nodeSelector")
    reasons: dict[str, int] = {}
    nodes = state.all("nodes")
    for node in nodes:
        reason = _unfit(state, node, pod, selector)
        if not reason:
            return ""
        reasons[reason] = reasons.get(reason, 0) + 1
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{len(nodes)} nodes are available: {told}."


def _unfit(state: State, node: Thing, pod: Thing, selector: Thing) -> str:
    labels = part(node, "metadata", "labels")
    if not is_ready(node):
        return "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
    if any(labels.get(key) != value for key, value in selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    left = {name: amount(text) for name, text in node["status"]["allocatable"].items()}
    for other in state.all("pods"):
        if other["spec"].get("nodeName") and part(other, "status").get("phase") not in {"Succeeded", "Failed"}:
            for name, number in requests_of(other).items():
                left[name] = left.get(name, 0.0) - number
    for name, number in requests_of(pod).items():
        if number > left.get(name, 0.0) + 1e-9:
            return f"Insufficient {name}"
    return ""


def is_ready(node: Thing) -> bool:
    """Say whether a node is."""
    conditions = parts(node, "status", "conditions")
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
