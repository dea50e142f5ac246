"""The ports a use case needs, in one value; resources/wiring.py fills it with adapters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.ledger_ports import Ledger
from domain.ports import (
    Clock,
    DatumTables,
    Engine,
    ModelService,
    PolicyMaker,
    Records,
    Sandbox,
    Store,
    TaskSource,
    Trainer,
    Verifier,
)
from domain.records.capacity import UNBOUNDED, Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Everything Synth talks to."""

    clock: Clock
    ledger: Ledger
    store: Store
    records: Records
    datum_tables: DatumTables
    tasks: TaskSource
    engines: Mapping[str, Engine]
    """By engine name."""
    sandboxes: Mapping[str, Sandbox]
    """By sandbox name."""
    verifiers: Mapping[str, Verifier]
    """By the name of the sandbox they assess in."""
    model: ModelService
    trainer: Trainer
    policies: PolicyMaker
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the operator gives to tasks that ask for it with ``${VAR}``; kept in no record."""
    budget: Capacity = UNBOUNDED
    """What all units together may have under way; infinity is no bound."""
