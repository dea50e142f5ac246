"""A task's services as one Compose project for one box: made, found again, and ended with all that belongs to it."""

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from adapters.sandboxes.compose_model import (
    Means,
    as_box,
    bridge_name,
    check_model,
    check_written,
    without_logs,
    written,
)
from adapters.sandboxes.compose_tool import ComposeError, read_model, start_services
from adapters.sandboxes.docker_engine import Engine, Image, build_tag
from adapters.sandboxes.docker_shield import lift, shield
from adapters.sandboxes.egress import socket_of
from adapters.sandboxes.labels import Label, read_label, write_label
from adapters.sandboxes.transfer import unpack
from domain.errors import SandboxError
from domain.lifecycle.compose_rules import MAIN
from domain.ports import BoxSpec
from domain.records.task import NetworkMode

_FILES = ("docker-compose.yaml", "docker-compose.yml")
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_FINAL = "box.json"
_LOG_LINES = 5
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The running services of a box."""

    containers: Mapping[str, str]
    """Service -> container."""
    images: Mapping[str, Image]
    """Service -> what it started from."""
    network: str
    """What stands between them and this machine, as records say it."""


def project_of(box_id: str) -> str:
    """Return the name of a box's project, as Compose allows names."""
    return f"synth-{box_id.lower()}"


def start_project(engine: Engine, program: Path, spec: BoxSpec, context: bytes, label: Label, means: Means) -> Services:
    """Start the services that the compose file of a task's directory declares. Blocks.

    Args:
        engine: builds, pulls, and is where they run.
        program: Docker Compose.
        spec: the box.
        context: tar of the directory.
        label: whose it is.
        means: what containers get from us.

    Raises:
        ComposeError: no box can be made from the file.
        SandboxError: an image cannot be had, or a service does not start.
    """
    home = _home(spec.box_id)
    home.mkdir(parents=True)
    write_label(home, label)
    root, logs = home / "task", home / "logs"
    for directory in (root, logs):
        directory.mkdir()
    _unpack(context, root)
    project = project_of(spec.box_id)
    first = _own_image(engine, spec)
    base = home / "base.json"
    base.write_bytes(written({"services": {MAIN: {} if first is None else {"image": first.image_id}}}))
    file = next((root / name for name in _FILES if (root / name).is_file()), None)
    if file is None:
        raise ComposeError(f"box {spec.box_id}: the task has no {_FILES[0]}")
    check_written(file)
    model = read_model(program, (base, file), project, root, _variables(spec, first, root, logs))
    model = without_logs(model, logs)
    check_model(model, root)
    images = {name: _image(engine, spec, service) for name, service in model["services"].items()}
    document = as_box(model, spec, {name: image.image_id for name, image in images.items()}, means)
    final = home / _FINAL
    final.write_bytes(written(document))
    told = "no network"
    for network in document["networks"]:
        told = shield(bridge_name(spec.box_id, network))
    try:
        start_services(program, final, project, engine.url, spec.environment.build_timeout_s)
    except SandboxError as error:
        raise SandboxError(f"{error.message}{_ill(engine.api, project)}") from error
    public = spec.environment.network_mode is NetworkMode.PUBLIC
    return Services(
        containers=containers_of(engine.api, project),
        images=images,
        network=told if public else told.replace("public", "services alone", 1),
    )


def containers_of(api: Any, project: str) -> dict[str, str]:
    """Return service -> container of a project."""
    found = api.containers(all=True, filters={"label": f"{_PROJECT}={project}"})
    return {str(entry["Labels"][_SERVICE]): str(entry["Id"]) for entry in found}


def end_project(engine: Engine, box_id: str) -> None:
    """End and remove all that belongs to a box: containers, networks, volumes, rules, files. Twice is fine.

    Raises:
        SandboxError: the engine fails.
    """
    api, project = engine.api, project_of(box_id)
    for container in containers_of(api, project).values():
        engine.remove(container)
    chosen = {"label": f"{_PROJECT}={project}"}
    for network in api.networks(filters=chosen):
        engine.quietly(lambda network=network: api.remove_network(network["Id"]))
    for volume in api.volumes(filters=chosen)["Volumes"] or ():
        engine.quietly(lambda volume=volume: api.remove_volume(volume["Name"], force=True))
    home = _home(box_id)
    with suppress(OSError, ValueError):  # rules come before networks, so the file knows better than the engine
        for network in json.loads((home / _FINAL).read_bytes())["networks"]:
            lift(bridge_name(box_id, network))
    rmtree(home, ignore_errors=True)


def sweep_projects(engine: Engine, is_over: Callable[[Label], bool], marked: Sequence[str]) -> tuple[str, ...]:
    """End the projects of boxes that are over, whichever part of them is left; returns their ids.

    Args:
        engine: where they ran.
        is_over: says whether a box is to be ended.
        marked: ids of boxes that are over, by what the engine still has of them.
    """
    labels = (read_label(home) for home in _home("any").parent.glob("*"))
    over = {label.box_id for label in labels if label is not None and is_over(label)} | set(marked)
    for box_id in sorted(over):
        end_project(engine, box_id)
    return tuple(sorted(over))


def _home(box_id: str) -> Path:
    """Return the directory of a box's files on this machine."""
    return socket_of("any").parent / "compose" / box_id


def _unpack(context: bytes, root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpack(context, descriptor, (), lambda _: None)
    except SandboxError as error:
        raise ComposeError(f"the files beside the compose file: {error.message}") from error
    finally:
        os.close(descriptor)


def _own_image(engine: Engine, spec: BoxSpec) -> Image | None:
    """Return the image that Harbor gives the agent's service before its file has a say."""
    environment = spec.environment
    return engine.image(spec) if environment.dockerfile or environment.docker_image is not None else None


def _variables(spec: BoxSpec, first: Image | None, root: Path, logs: Path) -> dict[str, str]:
    """Return what a file may interpolate. Source: Harbor 0.26 ``environments/docker``."""
    environment = spec.environment
    image = "" if first is None else first.image_id
    known = {
        "MAIN_IMAGE_NAME": image,
        "PREBUILT_IMAGE_NAME": image,
        "CONTEXT_DIR": str(root),
        "CPUS": str(environment.cpus or 0),
        "MEMORY": f"{spec.limits.memory_mb or 0}M",
    }
    for name, place in (("VERIFIER_LOGS", "verifier"), ("AGENT_LOGS", "agent"), ("ARTIFACTS", "artifacts")):
        known |= {f"HOST_{name}_PATH": str(logs / place), f"ENV_{name}_PATH": f"/logs/{place}"}
    return known


def _image(engine: Engine, spec: BoxSpec, service: Mapping[str, Any]) -> Image:
    limit_s = spec.environment.build_timeout_s
    build: Mapping[str, Any] = service.get("build") or {}
    if not build:
        return engine.present(str(service.get("image", "")), limit_s)
    options = {name: build[name] for name in ("dockerfile", "target", "args") if build.get(name)}
    context = _pack(Path(build["context"]))
    return engine.build(build_tag(context, options), lambda: context, limit_s, options)


def _pack(directory: Path) -> bytes:
    """Return a build context: the same files, the same bytes."""
    out = io.BytesIO()

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, path.relative_to(directory).as_posix(), recursive=False, filter=plain)
    return out.getvalue()


def _ill(api: Any, project: str) -> str:
    """Return which services do not run as they should, with the end of what they said."""
    told: list[str] = []
    for service, container in sorted(containers_of(api, project).items()):
        state: Mapping[str, Any] = api.inspect_container(container)["State"]
        checked: Mapping[str, str] = state.get("Health") or {}
        health = checked.get("Status", "healthy")
        if state["Running"] and health == "healthy":
            continue
        with suppress(ValueError):
            said = bytes(api.logs(container, tail=_LOG_LINES)).decode(errors="replace")
            why = health if state["Running"] else f"ended with {state['ExitCode']}"
            told.append(f"; {service}: {why}: {' | '.join(said.split(chr(10))).strip(' |')}")
    return "".join(told)
