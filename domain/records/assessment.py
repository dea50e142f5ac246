"""Assessments, qualified groups and datums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from domain.records.task import ObjectRef


class AssessmentOutcome(StrEnum):
    """Three, never two. Zero is a score; ungraded has no reward at all."""

    SCORED = "scored"
    UNGRADED = "ungraded"
    FAIL_CLOSED = "fail_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A reward panel for one trial by one assessor."""

    schema_version: int = 1
    trial_id: str
    assessor: str
    """``verifier:<12 hex>`` of the task's tests, or ``judge:<12 hex>`` of a judge profile."""
    outcome: AssessmentOutcome
    panel: Mapping[str, float] = field(default_factory=dict[str, float])
    """Finite; keys that never ran are absent."""
    reward: float | None = None
    """The headline. None unless scored or fail-closed."""
    reason: str = ""
    tampered: bool = False
    """Scored zero, flagged, kept out of training."""
    logs: ObjectRef | None = None
    duration_s: float = 0.0


class ExclusionReason(StrEnum):
    """Why a trial gives no learning signal."""

    NOT_ASSESSABLE = "not_assessable"
    UNGRADED = "ungraded"
    TAMPERED = "tampered"
    NO_EVIDENCE = "no_evidence"
    MISALIGNED = "misaligned"
    NON_FINITE = "non_finite"
    STALE_POLICY = "stale_policy"
    NO_SAMPLED_TOKENS = "no_sampled_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A trial that is kept in its group."""

    trial_id: str
    attempt: int
    reward: float
    advantage: float
    n_sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A trial that is not."""

    trial_id: str
    attempt: int
    reason: ExclusionReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualifiedGroup:
    """A sampling group after eligibility."""

    schema_version: int = 1
    group_id: str
    """``<unit>/g003``."""
    unit: str
    group: int
    task_name: str
    task_digest: str
    policy: str | None
    members: tuple[Member, ...]
    excluded: tuple[Exclusion, ...]
    has_signal: bool
    """At least two members and a non-zero spread of rewards."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Datum:
    """One training row. All arrays have shape (N,): position i predicts target i from input 0..i.

    Source: facts/learning.md section 1.4 (right-shifted inputs, left-shifted targets).
    """

    input_ids: NDArray[np.int32]
    target_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """Sampler logprobs at targets; 0 where the mask is 0."""
    advantages: NDArray[np.float32]
    """0 where the mask is 0."""
    mask: NDArray[np.float32]
    """1 on sampled tokens, else 0. Every loss multiplies by it."""
    trial_id: str = ""
    group: int = 0
    interactions: tuple[str, ...] = ()
    """Interaction ids whose sampled tokens this row trains, in order."""
