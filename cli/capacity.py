"""``synth capacity``: the budget, and who has how much of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform

if TYPE_CHECKING:
    from domain.records.capacity import Grant
    from domain.service.capacity import Resource

_BOXES = frozenset({"cpus", "memory_mb", "disk_mb"})
"""Resources of which a trial counts what its boxes may use."""


def capacity(
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Also resources that have no bound and that nothing uses.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show the budget (SYNTH_BUDGET), and what experiments under way have and want of it.

    Of each resource: its budget; what is under way of it now; what is held for the units that run, which is what is
    under way and what they may start before they next ask; what is wanted, which is what is under way and what would
    start at once if it could. A trial counts the limits of its boxes, not what it really uses.

    Of each unit, in trials: its weight in the plan, what is under way, its share (up to where it may start more),
    what it wants, and how long it has been served: seconds of its share of the scarcest resource by weight. Who has
    been served least comes first.

    JSON: {resources: [{name, budget, used, held, wanted}], grants: [...]}; a budget of null is no bound.
    """
    from domain.service.capacity import capacity as read

    view = read(existing_platform())
    if as_json:
        terminal.emit(view)
        return
    shown = [item for item in view.resources if every or item.budget is not None or item.used or item.wanted]
    _resources(shown)
    if view.grants:
        _grants(view.grants)
    else:
        terminal.say("No unit is under way.")


def _resources(shown: "Sequence[Resource]") -> None:
    columns = ("resource", "budget", "under way", "held", "wanted")
    rows = [
        (item.name, "no bound" if item.budget is None else f"{item.budget:,.10g}", f"{item.used:,.10g}",
         f"{item.held:,.10g}", f"{item.wanted:,.10g}")
        for item in shown
    ]  # fmt: skip
    terminal.show_table(columns, rows, right=frozenset(columns[1:]))
    lines = ["held: under way, and what the units may start before they ask again; wanted: what would start at once"]
    if any(item.name in _BOXES for item in shown):
        lines.append(f"{', '.join(sorted(_BOXES))}: the limits of boxes, not their use; {_undeclared()}")
    terminal.note("\n".join(f"[dim]{line}[/]" for line in lines))


def _undeclared() -> str:
    """Say what a task counts that declares no sizes."""
    from domain.lifecycle.demand import UNDECLARED_CPUS
    from domain.ports import Limits

    usual = Limits()
    return (
        f"a task that declares none counts {UNDECLARED_CPUS:g} CPU, {usual.memory_mb} MB of memory "
        f"and {usual.disk_mb} MB of disk"
    )


def _grants(grants: "Sequence[Grant]") -> None:
    columns = ("unit", "weight", "trials", "share", "wanted", "served (s)")
    rows = [
        (grant.unit, f"{grant.weight:g}", f"{grant.used.trials:g}", f"{grant.share.trials:g}",
         f"{grant.wanted.trials:g}", f"{grant.service:.1f}")
        for grant in grants
    ]  # fmt: skip
    terminal.show_table(columns, rows, right=frozenset(columns[1:]))
    terminal.note("[dim]in trials; share: up to where the unit may start more; the least served comes first[/]")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=options.example("synth capacity", "synth capacity --all"))(capacity)
