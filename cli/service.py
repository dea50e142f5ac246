"""``synth up``, ``down`` and ``status``: the processes that run what was accepted."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import formats, options, terminal
from cli.connection import existing_platform, settings

if TYPE_CHECKING:
    from cli.up import Up


def up(
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once everything is ready.")] = False,
    as_json: options.Json = False,
) -> None:
    """Start Dagster and the model process on this machine, and keep them running until Ctrl-C or `synth down`.

    The UI is at SYNTH_UI_HOST and SYNTH_UI_PORT (127.0.0.1, 3000), or at the next port where that one is taken.

    JSON: {running, ready, ui, proxy, supervisor, services}, printed once everything is ready (with --detach).
    """
    from cli.up import up as start

    found = start(settings(), detach=detach, say=_quiet if as_json else terminal.note)
    if not detach:
        return
    if as_json:
        terminal.emit(_shape(found))
    else:
        terminal.say(f"Synth is up: [bold]{found.ui}[/]")
        terminal.note("[dim]stop it: synth down[/]")


def down(*, as_json: options.Json = False) -> None:
    """Stop what `synth up` started; experiments go on from where they were at the next `synth up`.

    JSON: {stopped}.
    """
    from cli.up import down as stop

    stopped = stop(settings(), say=_quiet if as_json else terminal.note)
    if as_json:
        terminal.emit({"stopped": stopped})
    else:
        where = formats.plain(str(settings().home))
        terminal.say(f"Synth is down in {where}" if stopped else f"Nothing was running in {where}")


def status(*, as_json: options.Json = False) -> None:
    """Say what runs, and which experiments are open. Exit code 1 when nothing runs.

    JSON: {running, ready, ui, proxy, supervisor, services, open: [{experiment_id, kind, state}]}.
    """
    from cli.up import status as look

    found = look(settings())
    with existing_platform().ledger.snapshot() as tx:
        opened = tx.experiments.open()
    if as_json:
        rows = [{"experiment_id": row.experiment_id, "kind": row.spec.kind, "state": row.state} for row in opened]
        terminal.emit(_shape(found) | {"open": rows})
    else:
        _show(found)
        for row in opened:
            terminal.say(f"  {row.experiment_id}  {row.spec.kind.value}  {formats.state(row.state.value)}")
    if found is None:
        raise typer.Exit(terminal.EXIT_FAILED)


def _show(found: "Up | None") -> None:
    if found is None:
        terminal.say(f"Synth is down in {formats.plain(str(settings().home))} [dim](start it: synth up)[/]")
        return
    terminal.say(f"Synth is {'up' if found.ready else 'starting'}: [bold]{found.ui}[/]")
    for name, identity in found.services.items():
        word = formats.state("running") if identity.lives() else formats.state("failed")
        terminal.say(f"  {name:<10} {word}  [dim]pid {identity.pid}[/]")


def _shape(found: "Up | None") -> dict[str, Any]:
    if found is None:
        return {"running": False, "ready": False, "ui": None, "proxy": None, "supervisor": None, "services": {}}
    return {
        "running": True,
        "ready": found.ready,
        "ui": found.ui,
        "proxy": found.proxy,
        "supervisor": found.supervisor,
        "services": found.services,
    }


def _quiet(_line: str) -> None:
    """Say nothing."""


def register(app: typer.Typer) -> None:
    """Add the commands to ``synth``."""
    app.command(epilog=options.example("synth up --detach"))(up)
    app.command(epilog=options.example("synth down"))(down)
    app.command(epilog=options.example("synth status"))(status)
