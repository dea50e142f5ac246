"""Ports of a trial: task sources, engines, verifiers, evidence, the model process as a run sees it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from domain.ports.boxes import Box, Command
from domain.records.assessment import Assessment
from domain.records.model import PolicyVersion
from domain.records.profile import Profile
from domain.records.task import Task
from domain.records.trajectory import TokenCall
from domain.records.trial import EvidenceRef, Interaction, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBinding:
    """What a harness is told about its model."""

    base_url: str
    token: str
    model: str
    max_tokens: int
    socket: str | None = None
    """Unix socket of the same proxy in the box, where it has one: a harness that speaks it dials no URL."""
    context_tokens: int = 0
    """Longest prompt and answer together; 0: unknown."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one phase left, to be verified while its trial still runs."""

    task: Task
    """As the phase sees it (``lifecycle.step_view``), its templates not filled."""
    archive: bytes
    """The task's archive as the phase sees it."""
    trial: TrialRecord
    """So far: its identity."""
    fence: int
    outputs: bytes | None = None
    missing_artifacts: tuple[str, ...] = ()
    box: Box | None = None
    """The agent's own box, for a shared verifier: nothing that the agent started lives in it any more."""


class Verifier(Protocol):
    """Assesses what a trial left behind."""

    def identity(self, task: Task) -> str:
        """Return ``verifier:<12 hex>`` of what will judge this task."""
        ...

    async def assess(self, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
        """Assess retained outputs in a fresh box. Infrastructure faults become UNGRADED, not exceptions.

        Steps were verified while the trial ran: their verdicts are read from its record.
        """
        ...

    async def verify(self, work: Work) -> Assessment:
        """Verify one phase of a running trial. Infrastructure faults become UNGRADED, not exceptions."""
        ...


class TaskSource(Protocol):
    """Reads foreign task directories."""

    def read(self, directory: str, *, host_runnable: bool) -> Iterator[tuple[Task, bytes]]:
        """Return each task with its archive, in order of name, when all of them have been checked; one is in memory.

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

    async def read_calls(self, ref: EvidenceRef) -> tuple[TokenCall, ...]:
        """Return the same as arrays, in memory linear in the new ids of each call.

        Raises EvidenceError when the counts of ``ref`` are not those of the object.
        """
        ...
