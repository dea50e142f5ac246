"""Answering a submission: its identity at once, or its result when it has ended."""

from typing import TYPE_CHECKING

import typer

from cli import terminal, views, watch

if TYPE_CHECKING:
    from domain.service.accept import Accepted
    from domain.service.platform import Platform


def say_who_runs_it() -> None:
    """Say on stderr whether what was asked for is done now, or when somebody starts Synth."""
    from cli.connection import settings
    from cli.up import status

    found = status(settings())
    if found is None:
        terminal.note(f"[yellow]Synth is down: nothing runs until `{terminal.command()} up`[/]")
    else:
        terminal.note(f"[dim]Synth is {'up and runs it' if found.ready else 'starting and will run it'}: {found.ui}[/]")


def _accepted(found: "Accepted") -> None:
    views.accepted(found)
    if not found.experiment.state.is_terminal():
        say_who_runs_it()


def answer(platform: "Platform", found: "Accepted", *, wait: bool, as_json: bool) -> None:
    """Show what was accepted; with ``wait`` show the experiment once it has ended.

    Raises:
        typer.Exit: with code 1 when the awaited experiment did not succeed.
    """
    if not wait:
        if as_json:
            terminal.emit(found)
        else:
            _accepted(found)
        return
    if not as_json:
        _accepted(found)
    view = watch.until_ended(platform, found.experiment.experiment_id, shown=not as_json)
    if as_json:
        terminal.emit(view)
    else:
        views.experiment(view)
    if view.experiment.state.value != "succeeded":
        raise typer.Exit(terminal.EXIT_FAILED)
