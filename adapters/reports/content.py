"""What a report is made of: read once from the ledger and the store, then only shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.maths.comparison import Comparison
from domain.records.assessment import Assessment
from domain.records.profile import Profile
from domain.records.trial import TrialRecord
from domain.service.evaluate import BatchPoint, EvaluationReport
from domain.service.inspection import ExperimentView


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledEvaluation:
    """One held-out evaluation of a training's policies."""

    label: str
    """``base`` or the checkpoint's id."""
    batch: int
    """Batches that the policy has learned from."""
    report: EvaluationReport
    trials: tuple[tuple[TrialRecord, Assessment | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentContent:
    """Everything a report shows."""

    view: ExperimentView
    profile: Profile
    made_ms: int
    trials: tuple[tuple[TrialRecord, Assessment | None], ...]
    """Of the experiment itself, in order of attempt key."""
    evaluation: EvaluationReport | None = None
    """Of an evaluation or a regrade."""
    curve: tuple[BatchPoint, ...] = ()
    """Of a training."""
    evaluations: tuple[LabelledEvaluation, ...] = ()
    """Of a training's policies on its held-out task set, in order of batch."""
    comparison: Comparison | None = None
    """Last evaluation less first one, paired by task."""
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    """Trial id -> address of its transcript page, relative to the report."""
