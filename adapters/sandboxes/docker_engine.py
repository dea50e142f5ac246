"""The Docker engine of this machine: one connection, images by digest of what they are built from, labelled containers.

The engine must run on this machine, and we as root: files go in and out through the container's own root directory and
processes are ended from outside, so that nothing in a container has a say in either.
"""

import io
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from domain.errors import NotFoundError, SandboxError
from domain.ports import BoxSpec, Store
from domain.records.archive import subtree
from domain.records.canonical import digest_bytes
from domain.records.task import TaskEnvironment

LABEL = "synth.box"
"""Label of every container of ours; its value is the box's label as JSON."""
DEFAULT_IMAGE = "debian:bookworm-slim"
"""For tasks that need only a shell and name no image."""
_API = "1.41"
"""Docker Engine 20.10, the oldest that is supported; newer engines speak it, too."""
_TIMEOUT_S = 60
_BUILD_TIMEOUT_S = 600
_TOLD_LINES = 5


class Engine:
    """A connection that is made when it is first needed.

    Args:
        url: ``unix:///var/run/docker.sock``; it must be a Unix socket of this machine.
        store: holds the archives of tasks, for build contexts.
    """

    def __init__(self, url: str, store: Store) -> None:
        self._url = url
        self._store = store
        self._client: Any = None
        self._lock = threading.Lock()
        self._building = threading.Lock()

    @property
    def api(self) -> Any:
        """The engine's low-level client. Raises SandboxError when none answers."""
        import docker
        from docker.errors import DockerException

        with self._lock:
            if self._client is None:
                if not self._url.startswith("unix://"):
                    raise SandboxError(f"Docker engine {self._url}: not on this machine", hint="name a unix:// socket")
                try:
                    _knock(self._url.removeprefix("unix://"))
                    client = docker.APIClient(base_url=self._url, version=_API, timeout=_TIMEOUT_S)
                    weakref.finalize(self, client.close)
                    client.ping()
                except (DockerException, OSError) as error:
                    raise SandboxError(
                        f"no Docker engine answers at {self._url}: {error}", hint="start it, or set SYNTH_DOCKER_HOST"
                    ) from error
                self._client = client
            return self._client

    def silence(self) -> str:
        """Say why the engine does not answer; empty when it does."""
        try:
            self.api.ping()
        except (SandboxError, OSError) as error:
            return str(error)
        return ""

    def image(self, spec: BoxSpec) -> str:
        """Return the id of the image that a box starts from, built or found.

        Raises:
            SandboxError: it cannot be built, or is not here and cannot be pulled.
        """
        environment = spec.environment
        if environment.dockerfile and environment.docker_image is None:
            return self._built(spec)
        return self._present(_named_image(environment))

    def _present(self, name: str) -> str:
        from docker.errors import DockerException, ImageNotFound

        try:
            return str(self.api.inspect_image(name)["Id"])
        except ImageNotFound:
            pass
        try:
            repository, _, tag = name.partition(":")
            self.api.pull(repository, tag=None if "@" in name else tag or "latest")
            return str(self.api.inspect_image(name)["Id"])
        except DockerException as error:
            raise SandboxError(f"image {name} is not on this machine and cannot be pulled: {error}") from error

    def _built(self, spec: BoxSpec) -> str:
        from docker.errors import DockerException, ImageNotFound

        context = self._context(spec)
        tag = f"synth-task:{digest_bytes(context)[:32]}"
        with self._building:
            try:
                return str(self.api.inspect_image(tag)["Id"])
            except ImageNotFound:
                pass
            try:
                answers = self.api.build(
                    fileobj=io.BytesIO(context),
                    custom_context=True,
                    tag=tag,
                    rm=True,
                    forcerm=True,
                    decode=True,
                    timeout=_BUILD_TIMEOUT_S,
                    labels={"synth.image": tag},
                )
                _follow(answers)
                return str(self.api.inspect_image(tag)["Id"])
            except (DockerException, OSError) as error:
                raise SandboxError(f"environment/Dockerfile of box {spec.box_id}: {error}") from error

    def _context(self, spec: BoxSpec) -> bytes:
        """Return the build context: the directory that the environment names, file modes included."""
        if spec.archive is None:
            raise SandboxError(f"box {spec.box_id}: a Dockerfile without the files of its task")
        context = subtree(self._store.get(spec.archive), spec.environment.context)
        if not context:
            raise NotFoundError(f"box {spec.box_id}: the task has no directory {spec.environment.context}")
        return context

    def boxes(self) -> Iterator[tuple[str, str]]:
        """Yield (container id, label) of every container of ours on this engine."""
        for container in self.api.containers(all=True, filters={"label": LABEL}):
            yield str(container["Id"]), str(container["Labels"].get(LABEL, ""))

    def remove(self, container: str) -> None:
        """End a container at once, with its anonymous volumes; one that is gone is no matter."""
        from docker.errors import APIError, NotFound

        try:
            self.api.remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:  # noqa: PLR2004 - 409 Conflict: its removal is under way already
                raise SandboxError(f"container {container[:12]} cannot be removed: {error}") from error


def _knock(path: str) -> None:
    """Connect once and hang up: the SDK leaks its socket when nobody listens. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.connect(path)


def _named_image(environment: TaskEnvironment) -> str:
    if environment.docker_image is not None:
        return environment.docker_image
    return DEFAULT_IMAGE


def _follow(answers: Any) -> None:
    """Read a build to its end. Raises SandboxError with its last words when it fails."""
    lines: list[str] = []
    for answer in answers:
        if "stream" in answer:
            lines += [line for line in str(answer["stream"]).splitlines() if line.strip()]
        if "error" in answer:
            said = " | ".join([*lines[-_TOLD_LINES:], str(answer["error"]).strip()])
            raise SandboxError(f"environment/Dockerfile does not build: {said}")
