"""Ports of learning: ordered trainer operations with ids, and base policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from domain.ports.state import Progress
from domain.records.chat import Demonstration, ToolSpec
from domain.records.model import BasePolicy, FileEntry, PolicyRecipe, PolicyVersion
from domain.records.profile import Objective, Optimisation
from domain.records.task import ObjectRef


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
