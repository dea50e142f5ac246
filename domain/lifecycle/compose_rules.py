"""What a task's compose file may ask for. Everything else is refused by its place in the file, before anything runs.

Compose gives a service whatever its file says, up to this machine's root; a task set comes from anywhere. So fields are
allowed one by one. The rules read a file as people write it and as ``compose config`` prints it.

Source: compose-spec, ``spec.md`` and its schema; Harbor 0.26 lint rules ``compose-*``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

MAIN = "main"
"""The service that is the agent's box. Source: Harbor 0.26 ``environments/docker``."""
VARIABLES = frozenset({
    "MAIN_IMAGE_NAME", "PREBUILT_IMAGE_NAME", "CONTEXT_DIR", "CPUS", "MEMORY", "HOST_VERIFIER_LOGS_PATH",
    "HOST_AGENT_LOGS_PATH", "HOST_ARTIFACTS_PATH", "ENV_VERIFIER_LOGS_PATH", "ENV_AGENT_LOGS_PATH",
    "ENV_ARTIFACTS_PATH",
})  # fmt: skip
"""What a file may interpolate. Source: Harbor 0.26 ``environments/docker``."""
_TOP = frozenset({"version", "name", "services", "networks", "volumes"})
_SERVICE = frozenset({
    "image", "build", "command", "entrypoint", "environment", "env_file", "depends_on", "healthcheck", "working_dir",
    "user", "hostname", "expose", "networks", "network_mode", "volumes", "tmpfs", "labels", "annotations", "init",
    "stop_signal", "stop_grace_period", "mem_limit", "mem_reservation", "memswap_limit", "cpus", "cpu_shares",
    "pids_limit", "shm_size", "ulimits", "cap_drop", "read_only", "extra_hosts", "restart", "deploy", "platform",
    "pull_policy", "tty", "stdin_open", "group_add",
})  # fmt: skip
_BUILD = frozenset({"context", "dockerfile", "args", "target"})
_NETWORK = frozenset({"driver", "internal", "name", "labels", "attachable"})
_VOLUME = frozenset({"driver", "name", "labels"})
_MEMBERSHIP = frozenset({"aliases", "priority", "gw_priority"})
_MOUNT = frozenset({"type", "source", "target", "read_only", "volume", "tmpfs", "bind", "consistency"})
_DEPLOY = frozenset({"resources", "replicas"})
_REMOTE = re.compile(r"^[a-z+]+://|^git@|^github\.com/|\.git(#|$)")
_REFERENCE = re.compile(r"\$(?:\$|\{(?P<braced>[A-Za-z_]\w*)(?P<fallback>:?[-+])?|(?P<bare>[A-Za-z_]\w*))")
_SETTING = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=", re.MULTILINE)
_MOST_SERVICES = 16
"""Each has the box's own limits, so their number bounds what a box takes of this machine."""
_CONTEXT = re.compile(r"^\$(CONTEXT_DIR|\{CONTEXT_DIR\})/?")
Node = Mapping[str, object]


def unknown_variables(text: str, settings: str = "") -> Iterator[str]:
    """Name what a file interpolates and nobody sets: it would silently become empty.

    Args:
        text: the file as written.
        settings: the ``.env`` file beside it, which sets variables as well.
    """
    known = VARIABLES | set(_SETTING.findall(settings))
    for found in _REFERENCE.finditer(text):
        name = found["braced"] or found["bare"]
        if name and name not in known and found["fallback"] is None:
            yield f"${{{name}}}: nobody sets it; write a value, or ${{{name}:-default}}"


def refusals(document: object, *, root: str = "") -> Iterator[str]:
    """Name every field that a box of services cannot have, and every one that has the wrong form.

    Args:
        document: the file's content.
        root: absolute path of the file's directory on this machine; with it, absolute paths below it are its own.
    """
    if not isinstance(document, Mapping):
        yield "not a mapping"
        return
    top = cast("Node", document)
    yield from _others(top, _TOP, "")
    services = _mapping(top.get("services"))
    if len(services) > _MOST_SERVICES:
        yield f"services: {len(services)}, a box has {_MOST_SERVICES} at most"
    if MAIN not in services:
        yield f"services.{MAIN}: missing; it is the agent's box"
    for name, service in services.items():
        where = f"services.{name}"
        if not isinstance(service, Mapping):
            yield f"{where}: not a mapping"
            continue
        yield from _service(cast("Node", service), where, root)
    for kind, known, driver in (("networks", _NETWORK, "bridge"), ("volumes", _VOLUME, "local")):
        for name, entry in _mapping(top.get(kind)).items():
            yield from _shared(entry, known, driver, f"{kind}.{name}")


def _service(service: Node, where: str, root: str) -> Iterator[str]:
    yield from _others(service, _SERVICE, where)
    yield from _build(service.get("build"), f"{where}.build", root)
    if service.get("network_mode") not in (None, "", "none"):
        yield f"{where}.network_mode: only none; services share the networks of the file"
    for name, entry in _mapping(service.get("networks")).items():
        yield from _others(_mapping(entry), _MEMBERSHIP, f"{where}.networks.{name}")
    for number, mount in enumerate(_sequence(service.get("volumes"))):
        yield from _mount(mount, f"{where}.volumes.{number}", root)
    for number, entry in enumerate(_sequence(service.get("env_file"))):
        path = _mapping(cast("object", entry)).get("path", "") if isinstance(entry, Mapping) else entry
        if not _is_inside(str(path), root):
            yield f"{where}.env_file.{number}: {path} is not a file of the task"
    if "host-gateway" in str(service.get("extra_hosts")):
        yield f"{where}.extra_hosts: host-gateway is this machine"
    deploy = _mapping(service.get("deploy"))
    yield from _others(deploy, _DEPLOY, f"{where}.deploy")
    if deploy.get("replicas") not in (None, 1):
        yield f"{where}.deploy.replicas: only 1"
    reservations = _mapping(_mapping(deploy.get("resources")).get("reservations"))
    yield from _others(reservations, frozenset({"cpus", "memory"}), f"{where}.deploy.resources.reservations")


def _build(build: object, where: str, root: str) -> Iterator[str]:
    if build is None:
        return
    given: Node = cast("Node", build) if isinstance(build, Mapping) else {"context": build}
    yield from _others(given, _BUILD, where)
    context = str(given.get("context") or ".")
    if _REMOTE.search(context) or not _is_inside(context, root):
        yield f"{where}.context: {context} is not a directory of the task"
    elif not _is_inside(str(given.get("dockerfile") or "Dockerfile"), ""):
        yield f"{where}.dockerfile: {given.get('dockerfile')} is not a file of the build's context"


def _mount(mount: object, where: str, root: str) -> Iterator[str]:
    """A bind mount shows a file of the task, read-only: a writable one could be turned into a way to the host."""
    if isinstance(mount, Mapping):
        entry = cast("Node", mount)
        kind, source, read_only = entry.get("type"), entry.get("source"), entry.get("read_only") is True
        yield from _others(entry, _MOUNT, where)
        yield from _others(_mapping(entry.get("volume")), frozenset({"nocopy"}), f"{where}.volume")
        yield from _others(_mapping(entry.get("bind")), frozenset({"create_host_path"}), f"{where}.bind")
    else:
        parts = str(mount).split(":")
        source = parts[0] if len(parts) > 1 else None
        read_only = parts[-1] in {"ro", "ro,z", "ro,Z", "z,ro", "Z,ro"}
        kind = "bind" if source is not None and source[:1] in {".", "/", "~", "$"} else "volume"
    if kind not in ("bind", "volume", "tmpfs"):
        yield f"{where}.type: {kind} is not volume, tmpfs or bind"
    if kind == "bind":
        path = str(source or "")
        if path.startswith(("${HOST_", "$HOST_")):  # Harbor's own, for logs: boxes have those directories already
            return
        if not _is_inside(path, root):
            yield f"{where}: {path} is not in the task's directory"
        elif not read_only:
            yield f"{where}: bind mounts of {path} must be read-only"


def _shared(entry: object, known: frozenset[str], driver: str, where: str) -> Iterator[str]:
    given = _mapping(entry)
    yield from _others(given, known, where)
    if given.get("driver") not in (None, "", driver):
        yield f"{where}.driver: only {driver}"


def _others(given: Node, known: frozenset[str], where: str) -> Iterator[str]:
    """Name fields that are not known and say something: false, null and empty ask for nothing."""
    for name, value in given.items():
        if str(name) not in known and not str(name).startswith("x-") and value not in (None, False, "", [], {}):
            yield f"{where}.{name}".lstrip(".") + ": not in a box"


def _is_inside(path: str, root: str) -> bool:
    """Say whether a path stays in the task's directory, as far as its words go."""
    path = _CONTEXT.sub("", path)
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :].lstrip("/")
    return not path.startswith(("/", "~", "$", "\\")) and ".." not in path.split("/") and "\0" not in path


def _mapping(value: object) -> Node:
    return cast("Node", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return [value]
    return cast("Sequence[object]", value) if isinstance(value, Sequence) else []
