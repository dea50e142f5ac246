"""Images: those of the engine, and pulls from registries of this machine. No other registry is ever asked.

Source: kubelet ``pkg/kubelet/images``; Kubernetes, "Images".
"""

import re
from typing import Any

from tests.kubernetes_double.engine import Engine, EngineError

Json = dict[str, Any]

_NAME = re.compile(r"^[a-z0-9.:_/-]+(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$")
_LOCAL = re.compile(r"^(127\.[0-9.]+|localhost)(:\d+)?/")


class PullError(Exception):
    """An image that the node cannot get.

    Args:
        reason: as the container's state has it.
        message: the kubelet's words.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


async def image_id(engine: Engine, name: str, policy: str) -> str:
    """Return what a container's status calls an image. Raises PullError."""
    if not _NAME.match(name):
        raise PullError("InvalidImageName", f'couldn\'t parse image name "{name}": invalid reference format')
    found: Json | None = await engine.ask("GET", f"/images/{name}/json", absent=(404, 400))
    if found is None and policy == "Never":
        raise PullError("ErrImageNeverPull", f'Container image "{name}" is not present with pull policy of Never')
    if found is None:
        await _pull(engine, name)
        found = await engine.ask("GET", f"/images/{name}/json")
    assert found is not None
    return (found.get("RepoDigests") or [found["Id"]])[0]


async def _pull(engine: Engine, name: str) -> None:
    head = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}"'
    if not _LOCAL.match(name):
        host = name.partition("/")[0] if "." in name.partition("/")[0] else "registry-1.docker.io"
        raise PullError("ErrImagePull", f"{head}: dial tcp: lookup {host}: no such host")
    try:
        async for line in engine.lines("POST", "/images/create", fromImage=name):
            if "error" in line:
                raise PullError("ErrImagePull", f"{head}: {line['error']}")
    except EngineError as error:
        raise PullError("ErrImagePull", f"{head}: {error.message}") from error
