"""From what a compose file asks to what a box gives: services labelled, limited, and in networks of the box's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from adapters.sandboxes.compose_tool import ComposeError
from adapters.sandboxes.isolation import INNER, TOOLS
from domain.lifecycle.compose_rules import MAIN, refusals
from domain.ports import BoxSpec
from domain.records.canonical import digest_bytes
from domain.records.task import NetworkMode

_WHERE = "see domain/lifecycle/compose_rules.py for what a box gives"
_MB = 1 << 20
_NO_NAMES = ["127.0.0.1"]
"""Where the engine asks for names that are no service's: the container itself, which says no at once."""
_KEPT = (
    "command", "entrypoint", "environment", "depends_on", "healthcheck", "working_dir", "user", "hostname", "expose",
    "tmpfs", "stop_signal", "shm_size", "ulimits", "read_only", "extra_hosts", "tty", "stdin_open", "group_add",
    "cpu_shares", "network_mode",
)  # fmt: skip
"""What a service has as its file says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a sandbox gives to the containers of a box."""

    label: str
    """Name of the label that marks what is ours."""
    text: str
    """Its value."""
    dropped: tuple[str, ...]
    """Capabilities that no container has."""
    extra_processes: int
    """Of a container, that are not the task's."""
    proxy_socket: Path | None


def without_logs(model: Mapping[str, Any], logs: Path) -> dict[str, Any]:
    """Return a model without the mounts of Harbor's directories for logs: boxes have their own places for them."""
    services = {
        name: {**service, "volumes": [mount for mount in _mounts(service) if not _is_below(mount, logs)]}
        for name, service in _section(model, "services").items()
    }
    return {**model, "services": services}


def _is_below(mount: Mapping[str, Any], directory: Path) -> bool:
    return str(mount.get("source", "")).startswith(f"{directory}/")


def check_written(file: Path) -> None:
    """Refuse a file before Compose reads it: reading alone would open what ``env_file`` and ``include`` name.

    Raises:
        ComposeError: naming the fields.
    """
    try:
        document = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ComposeError(f"{file.name}: no YAML: {' '.join(str(error).split())}") from error
    if problems := list(refusals(document)):
        raise ComposeError(f"{file.name}: {'; '.join(problems)}", hint=_WHERE)


def check_model(model: Mapping[str, Any], root: Path) -> None:
    """Refuse what no box gives, now that short forms and links are written out.

    Raises:
        ComposeError: naming the fields.
    """
    problems = list(refusals(model, root=str(root)))
    for name, service in model.get("services", {}).items():
        for mount in _mounts(service):
            source = str(mount.get("source", ""))
            if mount.get("type") == "bind" and not _stays(Path(source), root):
                problems.append(f"services.{name}.volumes: {source} leads out of the task's directory")
    if problems:
        raise ComposeError("; ".join(problems), hint=_WHERE)


def _stays(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def as_box(model: Mapping[str, Any], spec: BoxSpec, images: Mapping[str, str], means: Means) -> dict[str, Any]:
    """Return the document that makes the box.

    Args:
        model: checked.
        spec: the box.
        images: service -> id of the image that it starts from.
        means: labels, capabilities and the proxy.
    """
    services = {name: _service(service, spec, images[name], means) for name, service in model["services"].items()}
    _become_box(services[MAIN], spec, means)
    labels = {means.label: means.text}
    networks = {name: _network(spec, name, labels) for name in _section(model, "networks")}
    return {
        "name": model["name"],
        "services": services,
        "networks": networks,
        "volumes": {name: {"labels": labels} for name in _section(model, "volumes")},
    }


def bridge_name(box_id: str, network: str) -> str:
    """Return the host's interface of a box's network; 15 characters at most. Source: Linux IFNAMSIZ."""
    return f"sy{digest_bytes(f'{box_id}/{network}'.encode())[:13]}"


def _network(spec: BoxSpec, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "driver": "bridge",
        "internal": spec.environment.network_mode is not NetworkMode.PUBLIC,
        "driver_opts": {"com.docker.network.bridge.name": bridge_name(spec.box_id, name)},
        "labels": dict(labels),
    }


def _service(service: Mapping[str, Any], spec: BoxSpec, image: str, means: Means) -> dict[str, Any]:
    """Return a service with what it may have of its own wishes, and what every container of a box has."""
    made = {name: service[name] for name in _KEPT if service.get(name) not in (None, "", [], {})}
    made |= {
        "image": image,
        "labels": {means.label: means.text},
        "init": True,
        "restart": "no",
        "cap_drop": sorted({*means.dropped, *(service.get("cap_drop") or ())}),
        "volumes": _mounts(service),
    }
    if "network_mode" not in made:
        made["networks"] = {name: _aliases(entry) for name, entry in _section(service, "networks").items()}
        if spec.environment.network_mode is not NetworkMode.PUBLIC:
            made["dns"] = _NO_NAMES
    declared = _section(service, "deploy", "resources", "limits")
    memory = _least(service.get("mem_limit"), declared.get("memory"), _bytes(spec.limits.memory_mb))
    pids = _least(service.get("pids_limit"), declared.get("pids"), spec.limits.processes)
    cpus = service.get("cpus") or declared.get("cpus")
    made |= {} if memory is None else {"mem_limit": memory, "memswap_limit": memory}
    made |= {} if pids is None else {"pids_limit": pids + means.extra_processes}
    return made | ({} if cpus is None else {"cpus": cpus})


def _become_box(main: dict[str, Any], spec: BoxSpec, means: Means) -> None:
    """Let the agent's service be a box: it waits for commands, and has the task's own limits."""
    main |= {"entrypoint": ["sleep"], "command": ["2147483647"]}
    main.setdefault("hostname", "box")
    if spec.environment.cpus is not None:
        main["cpus"] = spec.environment.cpus
    shown = {each.source: f"{TOOLS}/{each.name}" for each in spec.toolchains}
    if means.proxy_socket is not None:
        shown[str(means.proxy_socket.parent)] = f"{INNER}/model"
    ours = [{"type": "bind", "source": source, "target": target, "read_only": True} for source, target in shown.items()]
    main["volumes"] = [*main["volumes"], *ours]


def _section(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a mapping below a document, empty where it or one on the way is missing."""
    for name in names:
        document = document.get(name) or {}
    return document


def _mounts(service: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return service.get("volumes") or ()


def _aliases(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {"aliases": entry["aliases"]} if entry and entry.get("aliases") else None


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * _MB


def _least(*values: object) -> int | None:
    """Return the smallest of what is said; nought and less is Compose's word for no limit."""
    said = [int(str(value)) for value in values if value not in (None, "")]
    return min((value for value in said if value > 0), default=None)


def written(document: Mapping[str, Any]) -> bytes:
    """Return a document as Compose reads it: JSON is YAML. Dollar signs are doubled, as Compose printed them."""
    return json.dumps(document, ensure_ascii=False, indent=1).encode()
