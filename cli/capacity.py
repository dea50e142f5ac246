"""``synth capacity``: the budget, and who has how much of it."""

import typer

from cli import options, terminal
from cli.connection import existing_platform


def capacity(*, as_json: options.Json = False) -> None:
    """Show the budget (SYNTH_BUDGET), what is under way of it, and what each unit has and wants.

    JSON: {resources: [{name, budget, used, held, wanted}], grants: [...]}; a budget of null is no bound.
    """
    from domain.service.capacity import capacity as read

    view = read(existing_platform())
    if as_json:
        terminal.emit(view)
        return
    rows = [
        (item.name, "–" if item.budget is None else f"{item.budget:g}", f"{item.used:g}", f"{item.held:g}",
         f"{item.wanted:g}")
        for item in view.resources
    ]  # fmt: skip
    columns = ("resource", "budget", "under way", "held", "wanted")
    terminal.show_table(columns, rows, right=frozenset(columns[1:]))
    if not view.grants:
        terminal.say("No unit is under way.")
        return
    units = [
        (grant.unit, f"{grant.weight:g}", f"{grant.used.trials:g}", f"{grant.share.trials:g}",
         f"{grant.wanted.trials:g}", f"{grant.service:.1f}")
        for grant in view.grants
    ]  # fmt: skip
    columns = ("unit", "weight", "trials", "share", "wanted", "served (s)")
    terminal.show_table(columns, units, right=frozenset(columns[1:]))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=options.example("synth capacity"))(capacity)
