"""Manifests: the content of a partition, as one immutable record whose digest is the data version."""

from dataclasses import dataclass

from domain.records.assessment import Assessment, QualifiedGroup
from domain.records.task import ObjectRef
from domain.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialManifest:
    """What ``trials[unit]`` holds."""

    schema_version: int = 1
    unit: str
    n_planned: int
    trials: tuple[TrialRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessmentManifest:
    """What ``assessments[unit]`` or ``regrades[assessor, unit]`` holds."""

    schema_version: int = 1
    unit: str
    n_planned: int
    source: str
    """Digest of the trial manifest that was assessed."""
    assessments: tuple[Assessment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupManifest:
    """What ``qualified_groups[unit]`` holds."""

    schema_version: int = 1
    unit: str
    source: str
    groups: tuple[QualifiedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDatums:
    """The rows of one group."""

    group: int
    table: ObjectRef
    n_datums: int
    n_trained_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatumManifest:
    """What ``datums[unit]`` holds: one table for each group with signal."""

    schema_version: int = 1
    unit: str
    source: str
    tables: tuple[GroupDatums, ...]
