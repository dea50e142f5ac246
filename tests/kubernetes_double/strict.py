"""Fields that pods do not have: ``fieldValidation=Strict``, which is what ``kubectl`` asks for.

Source: Kubernetes API concepts, "Field validation"; API v1, PodSpec and Container.
"""

from typing import Any

from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.objects import part, parts

Json = dict[str, Any]

_OBJECT = frozenset("apiVersion data immutable kind metadata spec stringData status type".split())  # noqa: SIM905 - read as a list of words
_POD = frozenset(
    """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks
    ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets initContainers
    nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims
    resources restartPolicy runtimeClassName schedulerName schedulingGates securityContext serviceAccount
    serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes
    """.split()  # noqa: SIM905 - read as a list of words
)
_CONTAINER = frozenset(
    """
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
    resources restartPolicy securityContext startupProbe stdin stdinOnce terminationMessagePath
    terminationMessagePolicy tty volumeDevices volumeMounts workingDir
    """.split()  # noqa: SIM905 - read as a list of words
)
_POLICY = frozenset(("egress", "ingress", "podSelector", "policyTypes"))


def check_fields(plural: str, thing: Json) -> None:
    """Raise RefusalError (400) for fields that pods and policies do not have."""
    unknown: list[str] = []
    if plural in {"pods", "networkpolicies"}:
        known = _POD if plural == "pods" else _POLICY
        unknown = [name for name in thing if name not in _OBJECT]
        unknown += [f"spec.{name}" for name in part(thing, "spec") if name not in known]
    if plural == "pods":
        for kind in ("containers", "initContainers"):
            for number, one in enumerate(parts(thing, "spec", kind)):
                unknown += [f"spec.{kind}[{number}].{name}" for name in one if name not in _CONTAINER]
    if unknown:
        said = ", ".join(f'unknown field "{path}"' for path in sorted(unknown))
        raise RefusalError(400, f"strict decoding error: {said}")
