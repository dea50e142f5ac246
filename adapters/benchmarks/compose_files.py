"""Compose files of a task: read strictly, and checked by the rules of boxes before anything runs."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import yaml

from adapters.benchmarks.task_archive import TaskFile
from domain.lifecycle.compose_rules import refusals, unknown_variables

NAMES = ("docker-compose.yaml", "docker-compose.yml")
"""Source: Harbor 0.26 ``environments/definition.py``."""
_LONGEST_BYTES = 1_000_000
_MOST_NODES = 100_000
_Plain = dict[str, object]


class _Strict(yaml.SafeLoader):
    """Refuses a key that is there twice: one of the two would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def wrong_compose(files: Mapping[str, TaskFile], context: str) -> Iterator[str]:
    """Name what is wrong with the compose file of a directory; nothing where there is none."""
    found = [f"{context}/{name}" for name in NAMES if f"{context}/{name}" in files]
    if len(found) > 1:
        yield f"{found[1]}: beside {found[0]}; keep one"
    for path in found[:1]:
        file = files[path]
        if file.link is not None:
            yield f"{path}: is a link"
        else:
            settings = files.get(f"{context}/.env")
            told = "" if settings is None else settings.content.decode(errors="replace")
            yield from (f"{path}: {words}" for words in _wrong(file.content, told))


def service_names(files: Mapping[str, TaskFile], context: str) -> frozenset[str]:
    """Return the services of a directory's compose file; empty where it has none that can be read."""
    found = (files[f"{context}/{name}"] for name in NAMES if f"{context}/{name}" in files)
    services = [_read(file.content)[0].get("services") for file in found]
    return frozenset(str(name) for entry in services if isinstance(entry, dict) for name in cast("_Plain", entry))


def _wrong(content: bytes, settings: str) -> Iterator[str]:
    document, problem = _read(content)
    if problem:
        yield problem
        return
    yield from refusals(document)
    yield from unknown_variables(content.decode(), settings)


def _read(content: bytes) -> tuple[_Plain, str]:
    """Return the document, or in words why there is none."""
    if len(content) > _LONGEST_BYTES:
        return {}, f"more than {_LONGEST_BYTES} bytes"
    try:
        loaded = yaml.load(content.decode(), _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        return {}, f"no YAML: {' '.join(str(error).split())}"
    if not isinstance(loaded, dict):
        return {}, "no mapping"
    if _n_nodes(cast("_Plain", loaded)) > _MOST_NODES:
        return {}, f"more than {_MOST_NODES} values once its aliases are written out"
    return cast("_Plain", loaded), ""


def _n_nodes(document: object) -> int:
    """Count values as far as the limit: aliases may make a small file enormous."""
    waiting: list[object] = [document]
    count = 0
    while waiting and count <= _MOST_NODES:
        node = waiting.pop()
        count += 1
        if isinstance(node, dict):
            waiting += cast("dict[object, object]", node).values()
        elif isinstance(node, list):
            waiting += cast("list[object]", node)
    return count
