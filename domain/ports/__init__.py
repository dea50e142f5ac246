"""Ports: what the domain needs of the world. Each has one contract suite run over every adapter and the fake."""

from domain.ports.boxes import (
    Box,
    BoxSpec,
    BoxStats,
    Command,
    CommandResult,
    HasServices,
    Limits,
    Sandbox,
    Toolchain,
)
from domain.ports.learning import (
    Contribution,
    ContributionResult,
    PolicyMaker,
    StepResult,
    StepStatus,
    Trainer,
    TrainingRun,
)
from domain.ports.sampling import Family, Sampler, SampleRequest, SampleResult
from domain.ports.state import Clock, DatumTables, Progress, Records, Store
from domain.ports.trials import Engine, Evidence, Launch, ModelBinding, ModelService, TaskSource, Upload, Verifier, Work

__all__ = [
    "Box",
    "BoxSpec",
    "BoxStats",
    "Clock",
    "Command",
    "CommandResult",
    "Contribution",
    "ContributionResult",
    "DatumTables",
    "Engine",
    "Evidence",
    "Family",
    "HasServices",
    "Launch",
    "Limits",
    "ModelBinding",
    "ModelService",
    "PolicyMaker",
    "Progress",
    "Records",
    "SampleRequest",
    "SampleResult",
    "Sampler",
    "Sandbox",
    "StepResult",
    "StepStatus",
    "Store",
    "TaskSource",
    "Toolchain",
    "Trainer",
    "TrainingRun",
    "Upload",
    "Verifier",
    "Work",
]
