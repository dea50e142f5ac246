"""Amounts of what running work takes: of a machine, of a grant, of one trial."""

from dataclasses import dataclass, fields
from math import inf

_ROUNDING = 1e-9
"""Sums of CPU shares such as 0.1 are not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much of each resource; in a budget, infinity is no bound."""

    trials: float = 0.0
    """Trials under way: a box of the agent or of its verifier."""
    cpus: float = 0.0
    memory_mb: float = 0.0
    disk_mb: float = 0.0
    gpus: float = 0.0
    exports: float = 0.0
    """Groups whose evidence is read and packed into datums."""

    def plus(self, other: "Capacity") -> "Capacity":
        """Return the sum."""
        return Capacity(**{name: getattr(self, name) + getattr(other, name) for name in RESOURCES})

    def minus(self, other: "Capacity") -> "Capacity":
        """Return what is left, never below 0."""
        return Capacity(**{name: max(0.0, getattr(self, name) - getattr(other, name)) for name in RESOURCES})

    def larger(self, other: "Capacity") -> "Capacity":
        """Return the larger amount of each."""
        return Capacity(**{name: max(getattr(self, name), getattr(other, name)) for name in RESOURCES})

    def smaller(self, other: "Capacity") -> "Capacity":
        """Return the smaller amount of each."""
        return Capacity(**{name: min(getattr(self, name), getattr(other, name)) for name in RESOURCES})

    def times(self, factor: float) -> "Capacity":
        """Return every amount times a finite positive factor."""
        return Capacity(**{name: getattr(self, name) * factor for name in RESOURCES})

    def lacking(self, limit: "Capacity") -> tuple[str, ...]:
        """Return the resources of which this is more than ``limit``; empty: it fits."""
        return tuple(name for name in RESOURCES if getattr(self, name) > getattr(limit, name) + _ROUNDING)

    def share_of(self, budget: "Capacity") -> float:
        """Return the dominant share: the largest part of any bounded resource that this is."""
        bounds = ((getattr(self, name), getattr(budget, name)) for name in RESOURCES)
        return max((amount / bound for amount, bound in bounds if 0 < bound < inf), default=0.0)

    def open_where(self, budget: "Capacity") -> "Capacity":
        """Return the same, without bound where the budget has none."""
        bounds = {name: getattr(budget, name) for name in RESOURCES}
        return Capacity(**{name: inf if bound == inf else getattr(self, name) for name, bound in bounds.items()})

    def bounded(self) -> dict[str, float]:
        """Return the finite amounts by name."""
        return {name: getattr(self, name) for name in RESOURCES if getattr(self, name) < inf}


RESOURCES = tuple(field.name for field in fields(Capacity))

UNBOUNDED = Capacity(**dict.fromkeys(RESOURCES, inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one unit may use of the budget, and what it asks for: a row of the ledger, live while its lease is."""

    unit: str
    experiment_id: str
    weight: float
    """Of the experiment, which its live units share."""
    wanted: Capacity
    """What is under way, and what would start at once if it could."""
    head: Capacity
    """What the next one in line takes alone; nothing: nobody waits."""
    used: Capacity
    """What was under way when this was written."""
    share: Capacity
    """Up to where the unit may start more until it writes again."""
    held: Capacity
    """What it has of the budget until then: its share, and what runs beyond it because nothing is interrupted."""
    service: float
    """Seconds of dominant share used so far, for each unit of weight: who has less comes first."""
    at_ms: int
