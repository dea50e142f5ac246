"""Tasks and task sets: pinned units of work in Harbor's format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.records.canonical import Json
from domain.records.names import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Bytes in the store, named by their SHA-256."""

    digest: str
    size_bytes: int


class NetworkMode(StrEnum):
    """What a box may reach besides the model proxy."""

    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """What the task asks of its box. Source: Harbor 0.26 ``models/task/config.py``."""

    dockerfile: bool = False
    compose: bool = False
    docker_image: str | None = None
    host_runnable: bool = False
    """The task needs only a shell, coreutils and python3, so a box without its image may run it."""
    host_files: str | None = None
    """Directory of the task put into the workdir of a box that runs without the task's image."""
    workdir: str = "/app"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    network_mode: NetworkMode = NetworkMode.PUBLIC
    allowed_hosts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A path the agent leaves for the verifier."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a trial: the agent's or the verifier's."""

    timeout_s: float | None = None
    """None: the plan's limit alone holds."""
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A pinned unit of work; its identity is the digest of its files."""

    schema_version: int = 1
    name: str
    """``org/name``."""
    digest: str
    """SHA-256 over path, executable bit and content of every file."""
    instruction: str
    archive: ObjectRef
    """A tar of the whole task directory: instruction, environment, solution, tests."""
    environment: TaskEnvironment
    agent: Phase
    verifier: Phase
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    artifacts: tuple[Artifact, ...] = ()
    """Empty: the whole working directory is retained and graded."""
    family: str | None = None
    """Cluster key for statistics: tasks of one family are not independent."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One task of a task set, enough to list it without opening it."""

    name: str
    digest: str
    record: ObjectRef
    family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """An ordered list of exact tasks, published under a reference; immutable."""

    schema_version: int = 1
    reference: Reference
    tasks: tuple[TaskEntry, ...]
    digest: str
    """SHA-256 over the task digests in order."""
