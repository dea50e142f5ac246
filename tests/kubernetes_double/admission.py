"""What the API server makes of a new object before it is stored: defaults, and the fields that must be right.

Source: Kubernetes API v1, defaults and validation of Pod; networking.k8s.io/v1, validation of NetworkPolicy.
"""

import base64
import ipaddress
import re
import secrets
from typing import Any

from tests.kubernetes_double.answers import RefusalError, invalid
from tests.kubernetes_double.kinds import Kind
from tests.kubernetes_double.objects import containers, part, parts, words
from tests.kubernetes_double.quantities import amount

Json = dict[str, Any]
Faults = list[tuple[str, str]]

_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
_LABEL = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")
_NAME_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LONGEST_S = 2**31 - 1


def admit(kind: Kind, namespace: str, thing: Json) -> None:
    """Give a new object its defaults and look at its fields. Raises RefusalError (400, 422)."""
    if thing.get("kind", kind.name) != kind.name:
        raise RefusalError(400, f"the object provided is unrecognized: {thing.get('kind')} is no {kind.name}")
    thing |= {"kind": kind.name, "apiVersion": kind.api_version}
    about: Json = thing.setdefault("metadata", {})
    if kind.is_namespaced:
        if about.get("namespace") not in {None, "", namespace}:
            raise RefusalError(400, "the namespace of the provided object does not match the namespace of the request")
        about["namespace"] = namespace
    if about.get("generateName") and not about.get("name"):
        about["name"] = about["generateName"] + secrets.token_hex(3)[:5]
    faults = _metadata_faults(about)
    if kind.plural == "pods":
        _default_pod(thing)
        faults += _pod_faults(thing["spec"])
    elif kind.plural == "networkpolicies":
        faults += _policy_faults(part(thing, "spec"))
    _encode(thing)
    if faults:
        raise invalid(kind.name, str(about.get("name", "")), faults)


def _encode(thing: Json) -> None:
    """Let the plain strings of a secret be data."""
    if plain := thing.pop("stringData", {}):
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
        thing["data"] = {**part(thing, "data"), **encoded}


def admit_change(kind: Kind, before: Json, thing: Json) -> None:
    """Look at the new content of an object. Raises RefusalError (422)."""
    name = str(thing["metadata"]["name"])
    faults = _metadata_faults(thing["metadata"])
    if kind.plural == "pods" and thing.get("spec") != before.get("spec"):
        raise invalid(kind.name, name, [("spec", "Forbidden: pod updates may not change fields of a running pod")])
    if kind.plural == "networkpolicies":
        faults += _policy_faults(part(thing, "spec"))
    if faults:
        raise invalid(kind.name, name, faults)


def _metadata_faults(about: Json) -> Faults:
    name = about.get("name")
    if not name:
        return [("metadata.name", "Required value: name or generateName is required")]
    faults: Faults = []
    if not _NAME.match(name):
        faults.append(("metadata.name", f'Invalid value: "{name}": {_NAME_WORDS}'))
    for key, value in part(about, "labels").items():
        if not isinstance(value, str):
            raise RefusalError(400, "json: cannot unmarshal into Go struct field ObjectMeta.metadata.labels")
        if not _LABEL.match(value):
            faults.append(("metadata.labels", f'Invalid value: "{value}": a valid label must match ({key})'))
    return faults


def _default_pod(pod: Json) -> None:
    spec: Json = pod.setdefault("spec", {})
    usual: Json = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "securityContext": {},
    }
    for name, value in usual.items():
        spec.setdefault(name, value)
    for one in containers(pod):
        image = str(one.get("image", ""))
        fresh = image.endswith(":latest") or ("@" not in image and ":" not in image.rpartition("/")[2])
        one.setdefault("imagePullPolicy", "Always" if fresh else "IfNotPresent")
        resources: Json = one.setdefault("resources", {})
        if limits := part(resources, "limits"):
            resources["requests"] = {**limits, **part(resources, "requests")}


def _pod_faults(spec: Json) -> Faults:
    faults: Faults = []
    if not parts(spec, "containers"):
        faults.append(("spec.containers", "Required value"))
    if len(parts(spec, "containers")) > 1 or any("restartPolicy" in each for each in parts(spec, "initContainers")):
        raise RefusalError(501, "the double runs pods of one container, and others before it, not beside it")
    if spec["restartPolicy"] not in {"Always", "OnFailure", "Never"}:
        said = f'Unsupported value: "{spec["restartPolicy"]}": supported values: "Always", "OnFailure", "Never"'
        faults.append(("spec.restartPolicy", said))
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= _LONGEST_S:
        said = f"Invalid value: {seconds}: must be between 1 and {_LONGEST_S}, inclusive"
        faults.append(("spec.activeDeadlineSeconds", said))
    volumes = {each.get("name") for each in parts(spec, "volumes")}
    seen: set[Any] = set()
    for kind in ("initContainers", "containers"):
        for number, one in enumerate(parts(spec, kind)):
            faults += _container_faults(one, f"spec.{kind}[{number}]", volumes)
            if one.get("name") in seen:
                faults.append((f"spec.{kind}[{number}].name", f'Duplicate value: "{one["name"]}"'))
            seen.add(one.get("name"))
    return faults


def _container_faults(one: Json, path: str, volumes: set[Any]) -> Faults:
    faults: Faults = [(f"{path}.{name}", "Required value") for name in ("name", "image") if not one.get(name)]
    for number, each in enumerate(parts(one, "volumeMounts")):
        if each.get("name") not in volumes:
            faults.append((f"{path}.volumeMounts[{number}].name", f'Not found: "{each.get("name")}"'))
    asked = {kind: part(one, "resources", kind) for kind in ("limits", "requests")}
    for kind, quantities in asked.items():
        for name, value in quantities.items():
            try:
                amount(value)
            except ValueError as error:
                raise RefusalError(400, f"unable to parse quantity's suffix in {path}.{kind}: {error}") from None
            most = asked["limits"].get(name)
            if kind == "requests" and most is not None and amount(value) > amount(most):
                said = f'Invalid value: "{value}": must be less than or equal to {name} limit of {most}'
                faults.append((f"{path}.resources.requests", said))
    return faults


def _policy_faults(spec: Json) -> Faults:
    faults: Faults = [] if "podSelector" in spec else [("spec.podSelector", "Required value")]
    for number, kind in enumerate(words(spec, "policyTypes")):
        if kind not in {"Ingress", "Egress"}:
            said = f'Unsupported value: "{kind}": supported values: "Egress", "Ingress"'
            faults.append((f"spec.policyTypes[{number}]", said))
    for way, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(parts(spec, way)):
            for place, peer in enumerate(parts(rule, peers)):
                path = f"spec.{way}[{number}].{peers}[{place}]"
                faults += _block_faults(peer.get("ipBlock"), f"{path}.ipBlock")
                if not peer or ("ipBlock" in peer and len(peer) > 1):
                    faults.append(
                        (path, "Forbidden: must specify a peer, and may not specify both ipBlock and another")
                    )
    return faults


def _block_faults(block: Json | None, path: str) -> Faults:
    if block is None:
        return []
    try:
        whole = ipaddress.ip_network(block.get("cidr", ""))
    except ValueError:
        said = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        return [(f"{path}.cidr", f'Invalid value: "{block.get("cidr")}": {said}')]
    faults: Faults = []
    for number, text in enumerate(words(block, "except")):
        try:
            part: Any = ipaddress.ip_network(text)
            is_inside = part.version == whole.version and part != whole and part.subnet_of(whole)
        except ValueError:
            is_inside = False
        if not is_inside:
            faults.append((f"{path}.except[{number}]", f'Invalid value: "{text}": must be a strict subset of `cidr`'))
    return faults
