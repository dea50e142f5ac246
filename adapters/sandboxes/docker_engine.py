"""The Docker engine of this machine: one connection, images by digest of what they are built from, labelled containers.

The engine must run on this machine, and we as root: files go in and out through the container's own root directory and
processes are ended from outside, so that nothing in a container has a say in either.
"""

import asyncio
import io
import socket
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from adapters.sandboxes.docker_network import join_network
from domain.errors import NotFoundError, SandboxError
from domain.ports import BoxSpec, Store
from domain.records.archive import subtree
from domain.records.canonical import canonical_bytes, digest_bytes
from domain.records.task import ObjectRef

T = TypeVar("T")

LABEL = "synth.box"
"""Label of every container of ours; its value is the box's label as JSON."""
DEFAULT_IMAGE = "debian:bookworm-slim"
"""For tasks that need only a shell and name no image."""
_API = (1, 41)
"""Docker Engine 20.10, the oldest that is supported; an engine that no longer speaks it is asked in its oldest."""
_TIMEOUT_S = 60
_PING_S = 5.0
_BUILDS = 2
"""Images built at once."""
_TOLD_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a box starts from."""

    image_id: str
    created: str
    """When it was built, as the engine says."""
    digests: tuple[str, ...] = ()
    """Names by which a registry has the same content."""

    def described(self) -> dict[str, str]:
        """Return what a record says of it."""
        said = {"image": self.image_id, "created": self.created}
        return {**said, "digests": " ".join(self.digests)} if self.digests else said


async def apart(work: Callable[[], T], *, forsaken: Callable[[T], object] | None = None) -> T:
    """Return what ``work`` gives, from a thread of its own that nobody has to wait for.

    A build, a pull or an engine that hangs would hold a shared pool's threads, and with them the killing of processes
    in other boxes; and neither an event loop nor the interpreter ends before the threads of its pool.

    Args:
        work: blocks.
        forsaken: called in a thread with what came too late, after we were cancelled.
    """
    given: Future[T] = Future()
    threading.Thread(target=_deliver, args=(work, given, forsaken), daemon=True).start()
    try:
        return await asyncio.wrap_future(given)
    except asyncio.CancelledError:
        if not given.cancel() and forsaken is not None and given.exception() is None:  # it came just now
            threading.Thread(target=forsaken, args=(given.result(),), daemon=True).start()
        raise


def _deliver(work: Callable[[], T], given: Future[T], forsaken: Callable[[T], object] | None) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        if given.set_running_or_notify_cancel():
            given.set_exception(error)
        return
    if given.set_running_or_notify_cancel():
        given.set_result(result)
    elif forsaken is not None:
        forsaken(result)


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
        self._builds = threading.BoundedSemaphore(_BUILDS)
        self._building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._tags: dict[tuple[ObjectRef, str], str] = {}
        self._network = ""
        self.shield = "public"
        """What stands between boxes with a public network and this machine, as records say it."""

    @property
    def api(self) -> Any:
        """The engine's low-level client. Raises SandboxError when none answers."""
        from docker.errors import DockerException

        with self._lock:
            if self._client is None:
                if silence := self.silence():
                    raise SandboxError(silence, hint="start it, or set SYNTH_DOCKER_HOST")
                try:
                    self._client = _open(self._url)
                except (DockerException, OSError) as error:
                    raise SandboxError(f"Docker engine {self._url}: {error}") from error
                weakref.finalize(self, self._client.close)
            return self._client

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._url

    def silence(self) -> str:
        """Say why the engine does not answer; empty when it does."""
        if not self._url.startswith("unix://"):
            return f"Docker engine {self._url}: not on this machine; name a unix:// socket"
        try:
            _ping(self._url.removeprefix("unix://"))
        except OSError as error:
            return f"no Docker engine answers at {self._url}: {error}"
        return ""

    def image(self, spec: BoxSpec) -> Image:
        """Return the image that a box starts from, built or found. Blocks for as long as that takes.

        Raises:
            SandboxError: it cannot be built, or is not here and cannot be pulled.
        """
        environment = spec.environment
        if environment.dockerfile and environment.docker_image is None:
            return self._built(spec)
        return self.present(environment.docker_image or DEFAULT_IMAGE, environment.build_timeout_s)

    def _found(self, name: str) -> Image | None:
        from docker.errors import ImageNotFound

        try:
            said = self.api.inspect_image(name)
        except ImageNotFound:
            return None
        return Image(image_id=said["Id"], created=said["Created"], digests=tuple(said.get("RepoDigests") or ()))

    def present(self, name: str, limit_s: float) -> Image:
        """Return an image by its name, pulled within the time unless it is here.

        Raises:
            SandboxError: it cannot be had.
        """
        from docker.errors import DockerException
        from urllib3.exceptions import HTTPError

        if (image := self._found(name)) is not None:
            return image
        try:
            _follow(self.api.pull(name, stream=True, decode=True), limit_s, name)
            image = self._found(name)
        except (DockerException, HTTPError, OSError, SandboxError) as error:
            raise SandboxError(f"image {name} is not on this machine and cannot be pulled: {error}") from error
        if image is None:
            raise SandboxError(f"image {name} is not on this machine, not even after it was pulled")
        return image

    def _built(self, spec: BoxSpec) -> Image:
        tag, context = self._tag(spec)
        try:
            return self.build(tag, lambda: context or self.context(spec), spec.environment.build_timeout_s)
        except SandboxError as error:
            raise SandboxError(
                f"{spec.environment.context}/Dockerfile of box {spec.box_id}: {error.message}"
            ) from error

    def build(
        self, tag: str, context: Callable[[], bytes], limit_s: float, options: Mapping[str, Any] | None = None
    ) -> Image:
        """Return the image of a tag, built from the tar of its context unless it is here.

        Args:
            tag: names context and options.
            context: gives the tar.
            limit_s: for the build.
            options: ``dockerfile``, ``target`` and ``args``, as a compose file says them.

        Raises:
            SandboxError: it cannot be built within the time.
        """
        from docker.errors import DockerException
        from urllib3.exceptions import HTTPError

        asked = options or {}
        given: Mapping[str, Any] = asked.get("args") or {}
        arguments = {name: str(value or "") for name, value in given.items()}
        with self._lock:
            building = self._building[tag]
        with building:
            if (image := self._found(tag)) is not None:
                return image
            try:
                with self._builds:
                    answers = self.api.build(
                        fileobj=io.BytesIO(context()),
                        custom_context=True,
                        tag=tag,
                        rm=True,
                        forcerm=True,
                        decode=True,
                        timeout=limit_s,
                        labels={"synth.image": tag},
                        dockerfile=asked.get("dockerfile"),
                        target=asked.get("target") or "",
                        buildargs=arguments,
                    )
                    _follow(answers, limit_s, "build")
            except (DockerException, HTTPError, OSError) as error:
                raise SandboxError(str(error)) from error
            if (image := self._found(tag)) is None:
                raise SandboxError(f"the engine has built {tag} and does not know it")
            return image

    def push(self, tag: str, name: str, limit_s: float) -> str:
        """Push a built image under ``registry/path:tag``; returns it as ``registry/path@sha256:...``.

        Raises:
            SandboxError: the registry does not take it within the time.
        """
        from docker.errors import DockerException
        from urllib3.exceptions import HTTPError

        repository, _, label = name.rpartition(":")
        digests: list[str] = []
        try:
            self.api.tag(tag, repository, label, force=True)
            answers = self.api.push(repository, tag=label, stream=True, decode=True)
            _follow(_noting(answers, digests), limit_s, f"push {name}")
        except (DockerException, HTTPError, OSError) as error:
            raise SandboxError(f"push {name}: {error}", hint="log in with `docker login` on this machine") from error
        if not digests:
            raise SandboxError(f"push {name}: the registry told no digest")
        return f"{repository}@{digests[-1]}"

    def _tag(self, spec: BoxSpec) -> tuple[str, bytes]:
        """Return the tag of a task's image, and its context where that had to be read."""
        known = None if spec.archive is None else self._tags.get((spec.archive, spec.environment.context))
        if known is not None:
            return known, b""
        context = self.context(spec)
        tag = build_tag(context)
        if spec.archive is not None:
            self._tags[spec.archive, spec.environment.context] = tag
        return tag, context

    def context(self, spec: BoxSpec) -> bytes:
        """Return a tar of the directory that the environment names, file modes included: what its image is built from.

        Raises:
            SandboxError: the box has no files of a task.
            NotFoundError: they have no such directory.
        """
        if spec.archive is None:
            raise SandboxError(f"box {spec.box_id}: a Dockerfile without the files of its task")
        context = subtree(self._store.get(spec.archive), spec.environment.context)
        if not context:
            raise NotFoundError(f"box {spec.box_id}: the task has no directory {spec.environment.context}")
        return context

    def network(self) -> str:
        """Return the id of the network of boxes that may reach the public one, made when it is first needed."""
        if not self._network:
            self._network, self.shield = join_network(self.api, LABEL)
        return self._network

    def shared_parts(self) -> Iterator[str]:
        """Yield the label of every network and volume that belongs to a box of ours."""
        chosen = {"label": LABEL}
        for part in (*self.api.networks(filters=chosen), *(self.api.volumes(filters=chosen)["Volumes"] or ())):
            labels: Mapping[str, str] = part["Labels"] or {}
            yield labels.get(LABEL, "")

    def quietly(self, remove: Callable[[], object]) -> None:
        """Remove something that may be gone already, or that a removal under way still holds: then the next sweep's."""
        from docker.errors import APIError, DockerException

        try:
            remove()
        except APIError as error:
            if error.status_code not in {403, 404, 409}:
                raise SandboxError(str(error)) from error
        except (DockerException, OSError) as error:
            raise SandboxError(str(error)) from error

    def boxes(self) -> Iterator[tuple[str, str]]:
        """Yield (container id, label) of every container of ours on this engine."""
        for container in self.api.containers(all=True, filters={"label": LABEL}):
            yield str(container["Id"]), str(container["Labels"].get(LABEL, ""))

    def remove(self, container: str) -> None:
        """End a container at once, with its anonymous volumes; one that is gone is no matter."""
        from docker.errors import APIError, DockerException, NotFound

        try:
            self.api.remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:  # noqa: PLR2004 - 409 Conflict: its removal is under way already
                raise SandboxError(f"container {container[:12]} cannot be removed: {error}") from error
        except (DockerException, OSError) as error:
            raise SandboxError(f"container {container[:12]} cannot be removed: {error}") from error


def build_tag(context: bytes, options: Mapping[str, Any] | None = None) -> str:
    """Return the tag of what is built from a context."""
    named = context if not options else context + canonical_bytes(options)
    return f"synth-task:{digest_bytes(named)[:32]}"


def _ping(path: str) -> None:
    """Ask an engine whether it is there, without the SDK, which waits long and leaks its socket. Raises OSError.

    Source: Docker Engine API 1.41, SystemPing.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PING_S)
        asking.connect(path)
        asking.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        status = asking.recv(64).split(b"\r\n")[0]
    if b" 200 " not in status:
        raise OSError(f"it says {status.decode(errors='replace')!r}")


def _open(url: str) -> Any:
    """Return a client of the version of the API that we know, or of the engine's oldest where that is newer."""
    import docker

    asking = docker.APIClient(base_url=url, version="auto", timeout=_TIMEOUT_S)
    try:
        oldest = str(asking.version(api_version=False).get("MinAPIVersion") or "1.12")
    finally:
        asking.close()
    major, _, minor = oldest.partition(".")
    version = max(_API, (int(major), int(minor)))
    return docker.APIClient(base_url=url, version=".".join(map(str, version)), timeout=_TIMEOUT_S)


def _noting(answers: Iterable[dict[str, Any]], digests: list[str]) -> Iterator[dict[str, Any]]:
    """Pass the answers to a push on, and keep the digest that one of them tells."""
    for answer in answers:
        told: dict[str, Any] = answer.get("aux") or {}
        digests += [str(told["Digest"])] if "Digest" in told else []
        yield answer


def _follow(answers: Any, limit_s: float, what: str) -> None:
    """Read a build or pull to its end. Raises SandboxError with its last words when it fails or takes too long."""
    from urllib3.exceptions import ReadTimeoutError

    lines: list[str] = []
    error = ""
    deadline_s = time.monotonic() + limit_s
    with suppress(ReadTimeoutError):
        for answer in answers:  # to the end also after an error, or the connection is lost
            if "stream" in answer:
                lines += [line for line in str(answer["stream"]).splitlines() if line.strip()]
            error = error or str(answer.get("error", "")).strip()
            if time.monotonic() > deadline_s:
                break  # which hangs up, and so ends it
    if time.monotonic() > deadline_s:
        error = error or f"not done after {limit_s:g} s"
    if error:
        raise SandboxError(f"{what}: {' | '.join([*lines[-_TOLD_LINES:], error])}")
