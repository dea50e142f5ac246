"""Answering a submission: its identity at once, or its result when it has ended."""

from typing import TYPE_CHECKING

import typer

from cli import terminal, views, watch

if TYPE_CHECKING:
    from domain.service.accept import Accepted
    from domain.service.platform import Platform


def answer(platform: "Platform", found: "Accepted", *, wait: bool, as_json: bool) -> None:
    """Show what was accepted; with ``wait`` show the experiment once it has ended.

    Raises:
        typer.Exit: with code 1 when the awaited experiment did not succeed.
    """
    if not wait:
        if as_json:
            terminal.emit(found)
        else:
            views.accepted(found)
        return
    if not as_json:
        views.accepted(found)
    view = watch.until_ended(platform, found.experiment.experiment_id, shown=not as_json)
    if as_json:
        terminal.emit(view)
    else:
        views.experiment(view)
    if view.experiment.state.value != "succeeded":
        raise typer.Exit(terminal.EXIT_FAILED)
