"""A pod's volumes: directories of its own that outlive its containers, and what secrets and config maps put there.

Source: Kubernetes API v1, Volume; Docker Engine API v1.41, VolumeCreate.
"""

import base64
import io
import posixpath
import tarfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.engine import Engine
from tests.kubernetes_double.objects import containers, part, parts
from tests.kubernetes_double.quantities import amount

Json = dict[str, Any]
Find = Callable[[str, str], Json | None]
"""Returns the object of a plural and a name in the pod's namespace."""

_FILLED = {"secret": ("secrets", "secretName"), "configMap": ("configmaps", "name")}
_KNOWN = {"emptyDir", *_FILLED}
_MODE = 0o644


class MountError(Exception):
    """A volume that the node cannot set up yet, in the kubelet's words."""


def check_volumes(pod: Json) -> None:
    """Raise RefusalError (501) for what the double would have to leave out."""
    for volume in parts(pod, "spec", "volumes"):
        if not set(volume) & _KNOWN:
            kinds = ", ".join(sorted(set(volume) - {"name"}))
            raise RefusalError(501, f"the double has no volumes of kind {kinds}")
    for one in containers(pod):
        if any("subPath" in each or "subPathExpr" in each for each in parts(one, "volumeMounts")):
            raise RefusalError(501, "the double mounts whole volumes: no subPath")
        if "envFrom" in one or any("valueFrom" in each for each in parts(one, "env")):
            raise RefusalError(501, "the double gives plain variables: no valueFrom, no envFrom")
    if parts(pod, "spec", "initContainers") and any(map(is_memory, parts(pod, "spec", "volumes"))):
        raise RefusalError(501, "the double keeps no emptyDir of medium Memory from one container to the next")


def is_memory(volume: Json) -> bool:
    """Say whether a volume is a file system in memory."""
    return part(volume, "emptyDir").get("medium") == "Memory"


def mounts_of(pod: Json, one: Json, uid: str) -> Json:
    """Return what the engine is told of a container's mounts."""
    volumes = {each["name"]: each for each in parts(pod, "spec", "volumes")}
    mounts: list[Json] = []
    memory: dict[str, str] = {}
    for each in parts(one, "volumeMounts"):
        volume, is_fixed = volumes[each["name"]], bool(each.get("readOnly"))
        if is_memory(volume):
            memory[each["mountPath"]] = _options(pod, one, volume, is_fixed=is_fixed)
        else:
            is_fixed = is_fixed or "emptyDir" not in volume
            source = {"Type": "volume", "Source": _name(uid, volume), "VolumeOptions": {"NoCopy": True}}
            mounts.append({**source, "Target": each["mountPath"], "ReadOnly": is_fixed})
    return {"Mounts": mounts, "Tmpfs": memory}


def _options(pod: Json, one: Json, volume: Json, *, is_fixed: bool) -> str:
    """Return mount options; without a limit of its own, a volume is as large as its container's memory."""
    group = _group(pod)
    most = part(volume, "emptyDir").get("sizeLimit") or part(one, "resources", "limits").get("memory")
    options = ["ro" if is_fixed else "rw", "exec", "mode=2777" if group else "mode=777", f"gid={group}"]
    return ",".join([*options, f"size={int(amount(most))}"] if most else options)


async def set_up(engine: Engine, pod: Json, image: str, labels: Mapping[str, str], find: Find) -> None:
    """Make a pod's volumes and put their files there. Raises MountError, EngineError.

    Files go through a container that is never started: into the mounts of one whose root is read-only the engine
    writes nothing.
    """
    uid = pod["metadata"]["uid"]
    volumes = [each for each in parts(pod, "spec", "volumes") if not is_memory(each)]
    if not volumes:
        return
    archive = _archive(pod, volumes, find)
    for volume in volumes:
        await engine.ask("POST", "/volumes/create", {"Name": _name(uid, volume), "Labels": dict(labels)})
    mounts = [{"Type": "volume", "Source": _name(uid, volume), "Target": f"/{volume['name']}"} for volume in volumes]
    body = {"Image": image, "Cmd": ["-"], "Labels": dict(labels), "HostConfig": {"Mounts": mounts}}
    filler = (await engine.ask("POST", "/containers/create", body))["Id"]
    try:
        await engine.ask("PUT", f"/containers/{filler}/archive", archive, path="/")
    finally:
        await engine.ask("DELETE", f"/containers/{filler}", absent=(404,), force="1")


async def remove_volumes(engine: Engine, filters: str, chosen: Callable[[Json], bool] = lambda _: True) -> None:
    """Remove the chosen ones of the volumes that an engine's filter finds; what a container still has stays."""
    found: Json = await engine.ask("GET", "/volumes", filters=filters)
    for each in parts(found, "Volumes"):
        if chosen(each):
            await engine.ask("DELETE", f"/volumes/{each['Name']}", absent=(404, 409))


def _name(uid: str, volume: Json) -> str:
    return f"synth-double-{uid}-{volume['name']}"


def _group(pod: Json) -> int:
    return int(part(pod, "spec", "securityContext").get("fsGroup", 0))


def _archive(pod: Json, volumes: Sequence[Json], find: Find) -> bytes:
    """Return a tar with a directory for each volume. Raises MountError: what should fill it is not there."""
    group = _group(pod)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for volume in volumes:
            member = tarfile.TarInfo(volume["name"])
            member.type, member.gid, member.mode = tarfile.DIRTYPE, group, 0o2777 if group else 0o777
            archive.addfile(member)
            for path, (data, mode) in _files(volume, find).items():
                member = tarfile.TarInfo(posixpath.join(volume["name"], path))
                member.size, member.gid, member.mode = len(data), group, mode
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _files(volume: Json, find: Find) -> dict[str, tuple[bytes, int]]:
    """Return content and mode of the files that a secret or a config map puts into a volume. Raises MountError."""
    kind = next((kind for kind in _FILLED if kind in volume), None)
    if kind is None:
        return {}
    plural, field = _FILLED[kind]
    source, name = volume[kind], str(volume[kind].get(field))
    found = find(plural, name)
    failed = f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
    if found is None:
        if source.get("optional"):
            return {}
        raise MountError(f'{failed}{kind.lower()} "{name}" not found')
    content = {key: base64.b64decode(text) for key, text in part(found, "binaryData").items()}
    for key, text in part(found, "data").items():
        content[key] = base64.b64decode(text) if kind == "secret" else str(text).encode()
    usual = int(source.get("defaultMode") or _MODE)
    items = parts(source, "items") or [{"key": key, "path": key} for key in content]
    if absent := [each["key"] for each in items if each["key"] not in content]:
        raise MountError(f"{failed}references non-existent {kind.lower()} key: {absent[0]}")
    return {each["path"]: (content[each["key"]], int(each.get("mode") or usual)) for each in items}
