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
class NetworkPolicy:
    """What one phase may reach, where it differs from its environment."""

    mode: NetworkMode
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthcheck:
    """A command that must succeed before the agent starts; Docker's meaning of each number."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    """Failures in it do not count."""
    start_interval_s: float = 5.0
    retries: int = 3
    """Consecutive failures that make the box unhealthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A tool server that the agent may use."""

    name: str
    transport: str
    """``stdio``, ``sse`` or ``streamable-http``."""
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """May hold ``${VAR}``, which the operator's variables fill when the trial runs."""


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
    """A value may be ``${VAR}`` or ``${VAR:-default}``; ``lifecycle.variables`` fills it when the trial runs."""
    context: str = "environment"
    """Directory of the task with Dockerfile or compose file and what they copy."""
    build_timeout_s: float = 600.0
    """Bounds building and starting."""
    gpu_types: tuple[str, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    skills_dir: str | None = None
    """Directory of the box whose contents are the agent's skills."""
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A path the agent leaves for the verifier."""

    source: str
    destination: str | None = None
    """Where it lies in Harbor's layout; the verifier finds it at ``source``."""
    exclude: tuple[str, ...] = ()
    """Patterns of ``tar --exclude``."""
    service: str | None = None
    """Compose service it is taken from; None: the agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectHook:
    """A command run after the agent's processes are dead, so that a service's state becomes files."""

    command: str
    service: str = "main"
    timeout_s: float = 60.0
    user: str | None = None


class VerifierMode(StrEnum):
    """Where the tests run."""

    SEPARATE = "separate"
    """In a fresh box, over what was retained. The default here, not Harbor's."""
    SHARED = "shared"
    """In the agent's box, once everything the agent started is dead."""


class RewardStrategy(StrEnum):
    """How the rewards of steps become the trial's."""

    MEAN = "mean"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a trial: the agent's or the verifier's."""

    timeout_s: float | None = None
    """None: the plan's limit alone holds."""
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a task: its own instruction, tests and limits in the box that all steps share.

    What a step leaves open has the task's value already. ``lifecycle.step_view`` makes it a task of its own.
    """

    name: str
    """Its directory below ``steps/``."""
    instruction: str
    agent: Phase
    verifier: Phase
    artifacts: tuple[Artifact, ...] = ()
    """The task's and its own."""
    collect: tuple[CollectHook, ...] = ()
    healthcheck: Healthcheck | None = None
    min_reward: Mapping[str, float] = field(default_factory=dict[str, float])
    """Reward key -> least value; below one of them, or without it, no later step runs."""
    verifier_mode: VerifierMode = VerifierMode.SEPARATE
    verifier_environment: TaskEnvironment | None = None
    verifier_network: NetworkPolicy | None = None
    bundles_tests: bool = False


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
    steps: tuple[Step, ...] = ()
    reward_strategy: RewardStrategy = RewardStrategy.MEAN
    collect: tuple[CollectHook, ...] = ()
    verifier_mode: VerifierMode = VerifierMode.SEPARATE
    verifier_environment: TaskEnvironment | None = None
    """None: a fresh copy of the agent's."""
    bundles_tests: bool = False
    """The verifier's image holds ``/tests``; nothing is uploaded into it."""
    agent_network: NetworkPolicy | None = None
    """None: the environment's."""
    verifier_network: NetworkPolicy | None = None
    """None: no network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One task of a task set, enough to list it without opening it."""

    name: str
    digest: str
    record: ObjectRef
    family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Consecutive tasks of a task set."""

    schema_version: int = 1
    entries: tuple[TaskEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClass:
    """Tasks of a set that ask the same of box, engine and operator, and so are admitted or refused together."""

    n_tasks: int
    example: TaskEntry
    """The first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """An ordered list of exact tasks, published under a reference; immutable, and read in pages."""

    schema_version: int = 2
    reference: Reference
    n_tasks: int
    n_families: int
    digest: str
    """SHA-256 over the task digests in order."""
    page_tasks: int
    """Tasks in each page but the last."""
    pages: tuple[ObjectRef, ...]
    """One ``TaskPage`` each, in order."""
    classes: tuple[TaskClass, ...]
