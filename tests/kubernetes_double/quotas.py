"""What pods ask for, and quotas of namespaces on it.

Source: Kubernetes, "Resource Quotas"; ``apiserver/pkg/admission/plugin/resourcequota`` for the words.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tests.kubernetes_double.answers import forbidden
from tests.kubernetes_double.objects import containers, part, the_container
from tests.kubernetes_double.quantities import amount, written

Json = dict[str, Any]

_OVER = {"Succeeded", "Failed"}
_PLAIN = {"cpu", "memory", "ephemeral-storage"}
"""``cpu`` in a quota means ``requests.cpu``."""


def is_over(pod: Json) -> bool:
    """Say whether a pod has ended, so that it takes no room."""
    return part(pod, "status").get("phase") in _OVER


def asked_of_node(pod: Json) -> dict[str, Fraction]:
    """Return what a pod's node must have free."""
    return {"pods": Fraction(1), **_largest(pod, "requests")}


def _largest(pod: Json, kind: str) -> dict[str, Fraction]:
    """Return what the hungriest container of a pod asks for: they run one after the other."""
    found: dict[str, Fraction] = {}
    for one in containers(pod):
        for name, text in part(one, "resources", kind).items():
            found[name] = max(found.get(name, Fraction(0)), amount(text))
    return found


def _used(pod: Json) -> dict[str, Fraction]:
    """Return what a pod counts for under the names that quotas use."""
    found = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for kind in ("requests", "limits"):
        for name, much in _largest(pod, kind).items():
            found[f"{kind}.{name}"] = much
            if kind == "requests" and name in _PLAIN:
                found[name] = much
    return found


def check_quotas(quotas: Sequence[Json], others: Sequence[Json], pod: Json) -> None:
    """Raise RefusalError (403) when a pod does not fit what a quota leaves.

    Args:
        quotas: of its namespace.
        others: pods that are there already.
        pod: the new one.
    """
    new, name = _used(pod), str(part(pod, "metadata").get("name"))
    for quota in quotas:
        hard = {key: amount(text) for key, text in part(quota, "spec", "hard").items()}
        used = {key: sum((_used(each).get(key, Fraction(0)) for each in others), Fraction(0)) for key in hard}
        if silent := sorted(key for key in hard if key not in new):
            kinds = ",".join(silent)
            words = f"failed quota: {quota['metadata']['name']}: must specify {kinds} for: {the_container(pod)['name']}"
            raise forbidden("pods", name, words)
        if over := sorted(key for key in hard if used[key] + new[key] > hard[key]):
            asked, had, most = (",".join(f"{key}={written(each[key])}" for key in over) for each in (new, used, hard))
            words = f"exceeded quota: {quota['metadata']['name']}, requested: {asked}, used: {had}, limited: {most}"
            raise forbidden("pods", name, words)
