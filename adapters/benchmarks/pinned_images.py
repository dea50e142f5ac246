"""Tasks whose images are built once, pushed, and named by digest: what a machine that cannot build needs.

``task.toml`` gets one ``docker_image`` for each directory with a Dockerfile; every other file stays as it is.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from adapters.benchmarks.task_archive import pack, read_files
from domain.errors import TaskError
from domain.ports import Progress
from domain.records.archive import subtree
from domain.records.canonical import digest_bytes

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_NETWORK = frozenset({"docker_image", "network_mode", "allow_internet", "allowed_hosts"})
"""Fields that a verifier does not have from its agent's environment."""

Publish = Callable[[bytes, str], str]
"""Builds the tar of a context, pushes it as ``name:tag`` and returns ``name@sha256:...``. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A directory with a Dockerfile, and the table of task.toml that names its image."""

    context: str
    table: tuple[str | int, ...]


def pin_images(directory: Path, out: Path, prefix: str, publish: Publish, progress: Progress) -> dict[str, str]:
    """Copy a task, or a directory of tasks, with the images of all Dockerfiles built, pushed and named by digest.

    Args:
        directory: is not changed.
        out: must not exist.
        prefix: ``registry/path``, under which each image has its task's name.
        publish: builds and pushes.
        progress: told of each image as it is there.

    Returns:
        ``task directory/context`` -> image.

    Raises:
        TaskError: a task cannot be read, or has compose services.
        SandboxError: an image cannot be built or pushed.
    """
    if not directory.is_dir():
        raise TaskError(f"{directory}: no such directory", hint="name a task or a directory of tasks")
    if out.exists():
        raise TaskError(f"{out}: is there already", hint="name a new directory")
    single = (directory / "task.toml").exists()
    tasks = [directory] if single else sorted(path.parent for path in directory.glob("*/task.toml"))
    if not tasks:
        raise TaskError(f"{directory}: holds no task", hint="a task is a directory with task.toml")
    wanted = [(task, place) for task in tasks for place in _places(task, _document(task))]
    shutil.copytree(directory, out, symlinks=True)
    images: dict[str, str] = {}
    for number, (task, place) in enumerate(wanted, 1):
        context = subtree(pack(read_files(task).files), place.context)
        name = f"{prefix.rstrip('/')}/{_image_name(task, place)}:{digest_bytes(context)[:16]}"
        image = publish(context, name)
        _write(out if single else out / task.name, place, image)
        images[f"{task.name}/{place.context}"] = image
        progress("image", number, len(wanted))
    return images


def _document(task: Path) -> Any:
    try:
        return tomlkit.parse((task / "task.toml").read_bytes().decode().removeprefix("\ufeff"))
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise TaskError(f"{task}/task.toml: {error}") from error


def _places(task: Path, document: Any) -> Iterator[_Place]:
    """Yield what is built: directories with a Dockerfile whose table names no image."""
    found = [_Place(context="environment", table=("environment",)), _Place(context="tests", table=("verifier",))]
    for index, step in enumerate(document.get("steps", ())):
        found.append(_Place(context=f"steps/{step.get('name')}/tests", table=("steps", index, "verifier")))
    for place in found:
        where = task / place.context
        if any((where / name).is_file() for name in _COMPOSE):
            raise TaskError(f"{where}: compose services have no single image", hint="run this task on Docker")
        table: Any = document
        for key in place.table:
            table = table[key] if isinstance(key, int) else table.get(key, {})
        if place.context != "environment":
            table = table.get("environment", {})
        if (where / "Dockerfile").is_file() and "docker_image" not in table:
            yield place


def _image_name(task: Path, place: _Place) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", task.resolve().name.lower()).strip("-") or "task"
    role = "" if place.context == "environment" else "-" + re.sub(r"[^a-z0-9]+", "-", place.context.lower())
    return f"{name}{role}"


def _write(task: Path, place: _Place, image: str) -> None:
    document = _document(task)
    table: Any = document
    for key in place.table:
        table = table[key] if isinstance(key, int) else table.setdefault(key, tomlkit.table())
    if place.context != "environment":
        if "environment" not in table:
            agents = document.get("environment", {})
            table["environment"] = {key: value for key, value in agents.unwrap().items() if key not in _NETWORK}
        table = table["environment"]
    table["docker_image"] = image
    (task / "task.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
