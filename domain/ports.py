"""Ports: what the domain needs of the world. Each has one contract suite run over every adapter and the fake."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable

from domain.records.assessment import Assessment, Datum
from domain.records.chat import ChatMessage, Demonstration, ParsedTurn, ToolSpec
from domain.records.model import BasePolicy, FileEntry, PolicyRecipe, PolicyVersion
from domain.records.profile import Objective, Optimisation, Profile
from domain.records.task import ObjectRef, Task, TaskEnvironment
from domain.records.trial import EvidenceRef, Interaction, StopReason, TrialRecord

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


class Clock(Protocol):
    """Time and identity, so that the domain never reads either."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def new_id(self) -> str:
        """Return a fresh lower-case ULID."""
        ...

    def new_secret(self) -> str:
        """Return 256 fresh random bits, URL safe."""
        ...


class Store(Protocol):
    """Create-only, content-addressed bytes. Blocking; call through a thread from async code."""

    def put(self, data: bytes) -> ObjectRef:
        """Keep ``data`` durably and return its name; the same bytes are kept once."""
        ...

    def get(self, ref: ObjectRef) -> bytes:
        """Return verified bytes. Raises NotFoundError, or StoreError when they do not match."""
        ...

    def has(self, digest: str) -> bool:
        """Say whether the object is here."""
        ...

    def location(self, ref: ObjectRef) -> str:
        """Return a URI people can open."""
        ...


class Records(Protocol):
    """Typed records over a store: canonical JSON in, the same record out."""

    def save(self, record: object) -> ObjectRef:
        """Keep a dataclass record."""
        ...

    def load(self, kind: type[T], ref: ObjectRef) -> T:
        """Return the record. Raises StoreError when the bytes are not of this kind."""
        ...


class DatumTables(Protocol):
    """Datums as Arrow tables in a store."""

    def write(self, datums: Sequence[Datum]) -> ObjectRef:
        """Keep rows in order, with a schema version; the same rows give the same bytes."""
        ...

    def read(self, ref: ObjectRef) -> tuple[Datum, ...]:
        """Return the rows."""
        ...


# --- sampling ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One generation from exact prompt ids."""

    version: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """What came back; a stop id is the last sampled id and has a logprob."""

    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    version: str


class Sampler(Protocol):
    """Prompt ids in, sampled ids and their logprobs out."""

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation."""
        ...

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable beside the others; idempotent; a name never changes its weights."""
        ...

    def versions(self) -> tuple[str, ...]:
        """Return the names that can be sampled now."""
        ...

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample. Raises ContextOverflowError, SamplerError, NotFoundError (unknown version)."""
        ...


class Family(Protocol):
    """A model family's native format, over its tokenizer."""

    @property
    def name(self) -> str:
        """``qwen3``."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return prompt ids that end where the assistant starts."""
        ...

    def assistant_turn(self, message: ChatMessage) -> tuple[int, ...]:
        """Return the ids with which the model writes this turn, its stop id included: supervised targets."""
        ...

    def parse(self, sampled_ids: Sequence[int]) -> ParsedTurn:
        """Read a sampled turn. Never raises on what a model wrote."""
        ...

    def bridge(
        self,
        previous_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...] | None:
        """Return the full next prompt: previous ids + sampled ids + ids of the new suffix.

        None when the suffix cannot follow (the caller starts a new segment with ``render``).
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return text with special tokens shown, for transcripts."""
        ...


# --- learning ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What a trainer needs to open a run."""

    run: str
    """The experiment id."""
    base: PolicyVersion
    optimisation: Optimisation
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One group's forward and backward pass, keyed so that it is counted once."""

    update_id: str
    group: int
    """Gradients are summed in this order, whatever the order of arrival."""
    datums: ObjectRef
    objective: Objective

    @property
    def key(self) -> str:
        """``<update>/g003/<datum digest>``."""
        return f"{self.update_id}/g{self.group:03d}/{self.datums.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionResult:
    """What a forward and backward pass found; sums over mask = 1 tokens."""

    key: str
    loss_sum: float
    n_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Drift: ``kl_v1``, ``kl_v2``, ``logprob_gap_max``, ``ess``, ``entropy``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """An applied optimizer step, already durable with the trainer."""

    update_id: str
    n_optimizer_steps: int
    grad_norm: float
    state: tuple[FileEntry, ...]
    """Adapter, optimizer and RNG after the step, in the store."""
    sampler: PolicyVersion


class StepStatus(StrEnum):
    """What the trainer can prove about an update."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


class Trainer(Protocol):
    """Ordered learning operations with ids. One writer per run; every operation is idempotent by its id."""

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Bring the run to ``state`` (empty: a fresh adapter from the seed) and drop open updates."""
        ...

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Open an update or return to it; returns the contribution keys it already holds."""
        ...

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Add one contribution; the same key again returns the first result."""
        ...

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step once over exactly ``keys``; durable before it returns; the same id again returns it.

        Raises TrainerError when the held keys differ, or anything is non-finite (nothing is applied).
        """
        ...

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Say what is known of a step from the trainer's own durable record."""
        ...

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop an open update and its gradients."""
        ...


class PolicyMaker(Protocol):
    """Makes a base policy from demonstrations; ships no weights."""

    def make(
        self,
        recipe: PolicyRecipe,
        demonstrations: Sequence[Demonstration],
        tools: Sequence[ToolSpec],
        progress: Progress,
    ) -> BasePolicy:
        """Train tokenizer and model and keep their files in the store; the same inputs give the same digest."""
        ...


# --- execution -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on a box; None: unbounded."""

    memory_mb: int | None = 2048
    processes: int | None = 256
    output_bytes: int = 1_000_000
    """Of stdout and stderr kept of one command, each; the rest is dropped and counted."""
    disk_mb: int | None = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What to create."""

    box_id: str
    experiment_id: str
    trial_id: str
    fence: int
    deadline_ms: int
    """The janitor may end the box after this."""
    environment: TaskEnvironment
    limits: Limits
    model_access: bool = False
    """Only then is the model proxy reachable, at the address in ``Box.proxy_url``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program run in a box."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The whole environment beside PATH and HOME; nothing is inherited."""
    stdin: bytes = b""
    timeout_s: float = 60.0
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How it ended. ``exit_code`` is None when it was killed on time-out."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    limit_exceeded: str | None = None
    """``memory``, ``processes`` or ``disk`` when a limit ended it."""
    n_dropped_bytes: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxStats:
    """What a box consumed so far."""

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    limits_enforced_by: Mapping[str, str] = field(default_factory=dict[str, str])


class Box(Protocol):
    """One live box. Every path is absolute inside it."""

    @property
    def proxy_url(self) -> str | None:
        """Base URL of the model proxy as seen from inside; None without model access."""
        ...

    async def exec(self, command: Command) -> CommandResult:
        """Run to its end or its time-out; every process it started is dead when this returns."""
        ...

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``; refuses links and paths that leave it."""
        ...

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory: regular files, directories, inner links.

        A file's tar has one member, its base name; a directory's has paths relative to the directory. Modes keep
        their permission bits, owner and time are 0. ``max_bytes`` bounds the content (None: the sandbox's own
        bound), so that a box cannot make its reader run out of memory.

        Raises NotFoundError when the path does not exist, SandboxError on a device, FIFO, escape or too much.
        """
        ...

    async def stats(self) -> BoxStats:
        """Return consumption."""
        ...

    async def destroy(self) -> None:
        """End every process and remove everything; twice is fine."""
        ...


class Sandbox(Protocol):
    """Makes boxes."""

    @property
    def name(self) -> str:
        """``local``, ``memory``."""
        ...

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted."""
        ...

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box. Raises SandboxError."""
        ...

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes of dead owners or past their deadline; returns their ids. Touches nothing else."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBinding:
    """What a harness is told about its model."""

    base_url: str
    token: str
    model: str
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Files to put into a box before launch."""

    tar: bytes
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to upload and run; commands run in order and stop at the first that fails."""

    uploads: tuple[Upload, ...] = ()
    commands: tuple[Command, ...] = ()


class Engine(Protocol):
    """How a profile starts a harness."""

    @property
    def name(self) -> str:
        """``mini``."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether a launch takes a model binding."""
        ...

    def check(self, profile: Profile) -> None:
        """Refuse a profile that conflicts with routing or capture. Raises ConfigurationError by field."""
        ...

    def launch(self, profile: Profile, task: Task, archive: bytes, binding: ModelBinding | None) -> Launch:
        """Return what to upload and run for one attempt. ``archive`` is the task's tar."""
        ...


class Verifier(Protocol):
    """Assesses what a trial left behind."""

    def identity(self, task: Task) -> str:
        """Return ``verifier:<12 hex>`` of what will judge this task."""
        ...

    async def assess(self, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
        """Assess retained outputs in a fresh box. Infrastructure faults become UNGRADED, not exceptions."""
        ...


class TaskSource(Protocol):
    """Reads foreign task directories."""

    def read(self, directory: str, *, host_runnable: bool) -> tuple[tuple[Task, bytes], ...]:
        """Return each task with its archive, in order of name.

        ``directory`` is one task or a directory of tasks; ``host_runnable`` declares that boxes without
        the tasks' images may run them. Raises TaskError naming file and field, for every bad task at once.
        """
        ...


@runtime_checkable
class Evidence(Protocol):
    """The journal of interactions. Append is durable before it returns."""

    async def append(self, interaction: Interaction) -> None:
        """Stage with fsync (group commit)."""
        ...

    async def staged(self, trial_id: str) -> tuple[Interaction, ...]:
        """Return the interactions of a trial that is not published yet, in order."""
        ...

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Move all interactions of a trial to the store; idempotent; empty trials give 0 interactions."""
        ...

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions in order."""
        ...


class ModelService(Protocol):
    """The model process as seen by a run: it serves versions and publishes evidence."""

    async def serve(self, version: PolicyVersion) -> None:
        """Make a version answerable; idempotent."""
        ...

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Publish a trial's evidence."""
        ...

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions."""
        ...
