"""Who may use how much of the budget now."""

from dataclasses import dataclass

from domain.records.capacity import RESOURCES, Capacity, Grant
from domain.service.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource over all units."""

    name: str
    budget: float | None
    """None: no bound."""
    used: float
    """What ran when each unit last wrote, a second ago or less."""
    held: float
    wanted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """The live figures of the ledger."""

    resources: tuple[Resource, ...]
    grants: tuple[Grant, ...]
    """Of units under way, the one that is furthest behind its share first."""


def capacity(platform: Platform) -> CapacityView:
    """Return what is under way, held and wanted of each resource, and by whom."""
    with platform.ledger.snapshot() as tx:
        grants = tx.grants.live(platform.clock.now_ms())
    bounds = platform.budget.bounded()
    return CapacityView(
        resources=tuple(
            Resource(
                name=name,
                budget=bounds.get(name),
                used=_sum([grant.used for grant in grants], name),
                held=_sum([grant.held for grant in grants], name),
                wanted=_sum([grant.wanted for grant in grants], name),
            )
            for name in RESOURCES
        ),
        grants=tuple(sorted(grants, key=lambda grant: (grant.service, grant.unit))),
    )


def _sum(amounts: list[Capacity], name: str) -> float:
    return sum(getattr(amount, name) for amount in amounts)
