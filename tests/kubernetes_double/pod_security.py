"""PodSecurity admission, levels ``baseline`` and ``restricted``, as far as pods of the double can break them.

Source: Kubernetes, "Pod Security Standards"; ``pod-security-admission/policy`` for the words.
"""

from typing import Any

from tests.kubernetes_double.answers import forbidden
from tests.kubernetes_double.objects import part, parts, the_container, words

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
    spec, one = part(pod, "spec"), the_container(pod)
    name, security = one["name"], part(one, "securityContext")
    broken: list[str] = []
    if shared := [kind for kind in ("hostNetwork", "hostPID", "hostIPC") if spec.get(kind)]:
        broken.append(f"host namespaces ({', '.join(f'{kind}=true' for kind in shared)})")
    if security.get("privileged"):
        broken.append(f'privileged (container "{name}" must not set securityContext.privileged=true)')
    if wild := sorted(set(words(security, "capabilities", "add")) - _DEFAULT):
        said = ", ".join(f'"{each}"' for each in wild)
        broken.append(
            f'non-default capabilities (container "{name}" must not include {said} in securityContext.capabilities.add)'
        )
    if paths := [each["name"] for each in parts(spec, "volumes") if "hostPath" in each]:
        broken.append(f'hostPath volumes (volume "{paths[0]}")')
    return broken


def _restricted(pod: Json) -> list[str]:
    spec, one = part(pod, "spec"), the_container(pod)
    name, own, whole = one["name"], part(one, "securityContext"), part(spec, "securityContext")
    both = {**whole, **own}
    broken: list[str] = []
    if own.get("allowPrivilegeEscalation") is not False:
        must = f'container "{name}" must set securityContext.allowPrivilegeEscalation=false'
        broken.append(f"allowPrivilegeEscalation != false ({must})")
    if "ALL" not in words(own, "capabilities", "drop"):
        broken.append(
            f'unrestricted capabilities (container "{name}" must set securityContext.capabilities.drop=["ALL"])'
        )
    if wild := sorted(set(words(own, "capabilities", "add")) - {"NET_BIND_SERVICE"}):
        said = ", ".join(f'"{each}"' for each in wild)
        must = f'container "{name}" must not include {said} in securityContext.capabilities.add'
        broken.append(f"unrestricted capabilities ({must})")
    if odd := [each["name"] for each in parts(spec, "volumes") if not set(each) & _VOLUMES]:
        broken.append(f'restricted volume types (volume "{odd[0]}" uses restricted volume type)')
    if both.get("runAsNonRoot") is not True:
        must = f'pod or container "{name}" must set securityContext.runAsNonRoot=true'
        broken.append(f"runAsNonRoot != true ({must})")
    if both.get("runAsUser") == 0:
        broken.append("runAsUser=0 (pod must not set runAsUser=0)")
    if part(both, "seccompProfile").get("type") not in {"RuntimeDefault", "Localhost"}:
        must = (
            f'pod or container "{name}" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        )
        broken.append(f"seccompProfile ({must})")
    return broken
