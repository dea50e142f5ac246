"""PodSecurity admission, levels ``baseline`` and ``restricted``, as far as pods of the double can break them.

Source: Kubernetes, "Pod Security Standards"; ``pod-security-admission/policy`` for the words.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from tests.kubernetes_double.answers import forbidden
from tests.kubernetes_double.objects import containers, part, parts, words

Json = dict[str, Any]

ENFORCE = "pod-security.kubernetes.io/enforce"
_DEFAULT = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}

_SECCOMP = {"RuntimeDefault", "Localhost"}


def check_security(namespace: Json, pod: Json) -> None:
    """Raise RefusalError (403) when a namespace's level does not admit a pod."""
    level = part(namespace, "metadata", "labels").get(ENFORCE, "privileged")
    broken: list[str] = []
    if level in {"baseline", "restricted"}:
        broken += _baseline(pod)
    if level == "restricted":
        broken += _restricted(pod)
    if broken:
        words_said = f'violates PodSecurity "{level}:latest": {", ".join(broken)}'
        raise forbidden("pods", str(part(pod, "metadata").get("name")), words_said)


def _baseline(pod: Json) -> list[str]:
    spec = part(pod, "spec")
    broken: list[str] = []
    if shared := [kind for kind in ("hostNetwork", "hostPID", "hostIPC") if spec.get(kind)]:
        broken.append(f"host namespaces ({', '.join(f'{kind}=true' for kind in shared)})")
    if those := _those(pod, lambda one: one.get("privileged")):
        broken.append(f"privileged ({those} must not set securityContext.privileged=true)")
    if added := _added(pod, _DEFAULT):
        broken.append(f"non-default capabilities ({added})")
    if paths := [each["name"] for each in parts(spec, "volumes") if "hostPath" in each]:
        broken.append(f'hostPath volumes (volume "{paths[0]}")')
    return broken


def _restricted(pod: Json) -> list[str]:
    spec, whole = part(pod, "spec"), part(pod, "spec", "securityContext")
    broken: list[str] = []
    if those := _those(pod, lambda one: one.get("allowPrivilegeEscalation") is not False):
        must = f"{those} must set securityContext.allowPrivilegeEscalation=false"
        broken.append(f"allowPrivilegeEscalation != false ({must})")
    must = [f'{those} must set securityContext.capabilities.drop=["ALL"]'] if (those := _those(pod, _keeps)) else []
    if must := [*must, *([added] if (added := _added(pod, {"NET_BIND_SERVICE"})) else [])]:
        broken.append(f"unrestricted capabilities ({'; '.join(must)})")
    if odd := [each["name"] for each in parts(spec, "volumes") if not set(each) & _VOLUMES]:
        broken.append(f'restricted volume types (volume "{odd[0]}" uses restricted volume type)')
    if those := _those(pod, lambda one: {**whole, **one}.get("runAsNonRoot") is not True):
        broken.append(f"runAsNonRoot != true (pod or {those} must set securityContext.runAsNonRoot=true)")
    if whole.get("runAsUser") == 0:
        broken.append("runAsUser=0 (pod must not set runAsUser=0)")
    elif those := _those(pod, lambda one: one.get("runAsUser") == 0):
        broken.append(f"runAsUser=0 ({those} must not set runAsUser=0)")
    if those := _those(pod, lambda one: part({**whole, **one}, "seccompProfile").get("type") not in _SECCOMP):
        must = f'pod or {those} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        broken.append(f"seccompProfile ({must})")
    return broken


def _keeps(security: Json) -> bool:
    return "ALL" not in words(security, "capabilities", "drop")


def _those(pod: Json, breaks: Callable[[Json], object]) -> str:
    """Return the containers whose security context breaks a rule, as the API server names them."""
    names = [f'"{one["name"]}"' for one in containers(pod) if breaks(part(one, "securityContext"))]
    return f"container{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""


def _added(pod: Json, fine: AbstractSet[str]) -> str:
    """Return which containers add which capabilities beyond those that are fine."""
    wild = {name for one in containers(pod) for name in words(one, "securityContext", "capabilities", "add")} - fine
    those = _those(pod, lambda one: wild & set(words(one, "capabilities", "add")))
    said = ", ".join(f'"{each}"' for each in sorted(wild))
    return f"{those} must not include {said} in securityContext.capabilities.add" if wild else ""
