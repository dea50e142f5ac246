"""The kinds of objects that the double has, and discovery of them as ``kubectl`` reads it.

Source: Kubernetes API concepts, "Discovery API"; kubectl ``QueryParamVerifierV3`` for the documents of OpenAPI.
"""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

VERSION = "v1.34.0"
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of objects."""

    name: str
    """As it stands in an object's ``kind``."""
    plural: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True
    short: tuple[str, ...] = ()
    verbs: tuple[str, ...] = _VERBS

    @property
    def api_version(self) -> str:
        """As it stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        """As discovery names one of them."""
        return self.name.lower()


PODS = Kind(name="Pod", plural="pods", short=("po",))
NAMESPACES = Kind(name="Namespace", plural="namespaces", is_namespaced=False, short=("ns",))
NODES = Kind(name="Node", plural="nodes", is_namespaced=False, short=("no",))
EVENTS = Kind(name="Event", plural="events", short=("ev",))
ACCOUNTS = Kind(name="ServiceAccount", plural="serviceaccounts", short=("sa",))
QUOTAS = Kind(name="ResourceQuota", plural="resourcequotas", short=("quota",))
POLICIES = Kind(name="NetworkPolicy", plural="networkpolicies", group="networking.k8s.io", short=("netpol",))
REVIEWS = Kind(
    name="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    group="authorization.k8s.io",
    is_namespaced=False,
    verbs=("create",),
)
KINDS = (
    PODS,
    NAMESPACES,
    NODES,
    EVENTS,
    ACCOUNTS,
    QUOTAS,
    Kind(name="Secret", plural="secrets"),
    Kind(name="ConfigMap", plural="configmaps", short=("cm",)),
    POLICIES,
    REVIEWS,
)
_SUBRESOURCES = {
    "pods": (("exec", "PodExecOptions", ("create", "get")), ("log", "Pod", ("get",)), ("status", "Pod", ("get",)))
}


def find(group: str, version: str, plural: str) -> Kind | None:
    """Return a kind by its place in a path."""
    wanted = (group, version, plural)
    return next((kind for kind in KINDS if (kind.group, kind.version, kind.plural) == wanted), None)


def _groups() -> list[str]:
    return sorted({kind.group for kind in KINDS if kind.group})


def api_versions() -> Json:
    """Answer ``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_groups() -> Json:
    """Answer ``/apis``."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups()]}


def _group(name: str) -> Json:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def resources(group: str, version: str) -> Json | None:
    """Answer ``/api/v1`` and ``/apis/GROUP/VERSION``; None for a group that is not there."""
    found = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    listed: list[Json] = []
    for kind in found:
        listed.append(
            {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.is_namespaced,
                "kind": kind.name,
                "verbs": list(kind.verbs),
                **({"shortNames": list(kind.short)} if kind.short else {}),
            }
        )
        for part, name, verbs in _SUBRESOURCES.get(kind.plural, ()):
            row = {"name": f"{kind.plural}/{part}", "singularName": "", "namespaced": True}
            listed.append({**row, "kind": name, "verbs": list(verbs)})
    if not found:
        return None
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def version_info() -> Json:
    """Answer ``/version``."""
    major, minor = VERSION.lstrip("v").split(".")[:2]
    return {"major": major, "minor": minor, "gitVersion": VERSION, "platform": "linux/amd64"}


def openapi_index() -> Json:
    """Answer ``/openapi/v3``."""
    paths = ["api/v1", *(f"apis/{name}/v1" for name in _groups())]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi(group: str, version: str) -> Json:
    """Answer ``/openapi/v3/...`` with what tells that the server validates fields itself, and no schemas."""
    paths: Json = {}
    asked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    for kind in KINDS:
        if (kind.group, kind.version) == (group, version):
            named = {"group": kind.group, "version": kind.version, "kind": kind.name}
            patch = {"x-kubernetes-group-version-kind": named, "parameters": asked, "responses": {}}
            paths[f"/{kind.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION}, "paths": paths}
