"""What trials are run with, and what one trial is about."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.ledger_ports import Ledger
from domain.ports import Clock, Engine, ModelService, Sandbox, Store, Verifier
from domain.records.experiment import Lease
from domain.records.profile import Plan, Profile
from domain.records.task import Task
from domain.records.trial import AttemptKey

TAMPERED = "tampered: "
"""Prefix of a record's detail when its outputs try to leave the box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What all trials of a unit share."""

    clock: Clock
    ledger: Ledger
    store: Store
    sandbox: Sandbox
    engine: Engine
    model: ModelService
    profile: Profile
    profile_digest: str
    plan: Plan
    experiment_id: str
    lease: Lease
    policy: str | None
    verifier: Verifier | None = None
    """For tasks whose phases are verified while the trial runs: steps, and shared verifiers. None: nothing is."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the operator gives to tasks that ask for it with ``${VAR}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one trial is about."""

    key: AttemptKey
    task: Task
    archive: bytes
    seed: int
    n_infra_retries: int = 0
