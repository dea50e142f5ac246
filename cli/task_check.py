"""``synth task-set check``: a set's own solutions and doing nothing, through the same trial and the same verifier."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from cli import formats, options, terminal
from cli.connection import existing_platform
from domain.records.wording import counted

if TYPE_CHECKING:
    from domain.service.vetting import Vetting

_LINES = 20
"""Lines of what is wrong that are shown for each check; JSON has all."""


def check(
    reference: Annotated[str, typer.Argument(metavar="TEAM/NAME@vN", help="A published task set.")],
    *,
    sandbox: Annotated[str, typer.Option(help="The kind of box to try solutions in.")] = "local",
    tasks: Annotated[int, typer.Option(min=0, help="Tasks to try, spread over the set; 0: all.")] = 16,
    as_json: options.Json = False,
) -> None:
    """Try tasks before agents do: a solution scores 1, doing nothing less, a verifier repeats itself, nothing leaks.

    The checks of the asset `task_sets`, in boxes of this machine; Synth need not be up. Exit code 1 when one fails.

    JSON: {task_set, sandbox, n_tasks, passed, checks: [{check, says, passed, is_warning, wrong: [TEXT]}]}.
    """
    from domain.records.names import parse_reference
    from domain.service.vetting import CHECKS, WARNINGS, vet

    opened = existing_platform()
    with opened.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(parse_reference(reference, field="reference"))
    holder = f"task-set-check-{opened.clock.new_id()}"
    with terminal.bars(shown=not as_json) as progress:
        found = asyncio.run(vet(opened, task_set, sandbox, tasks, holder=holder, progress=progress))
    if as_json:
        checks = [
            {
                "check": name,
                "says": says,
                "passed": not found.wrong[name],
                "is_warning": name in WARNINGS,
                "wrong": found.wrong[name],
            }
            for name, says in CHECKS.items()
        ]
        terminal.emit(
            {
                "task_set": str(task_set.reference),
                "sandbox": sandbox,
                "n_tasks": found.n_tasks,
                "passed": found.passed,
                "checks": checks,
            }
        )
    else:
        _show(found)
        terminal.say(
            f"{found.n_tasks} of {counted(task_set.n_tasks, 'task')} of {task_set.reference} tried in {sandbox} boxes"
        )
    if not found.passed:
        raise typer.Exit(terminal.EXIT_FAILED)


def _show(found: "Vetting") -> None:
    from domain.service.vetting import CHECKS

    rows = [(name, _verdict(found, name), says) for name, says in CHECKS.items()]
    terminal.show_table(("check", "result", "what it says"), rows)
    for name, lines in found.wrong.items():
        for line in lines[:_LINES]:
            terminal.say(f"{_verdict(found, name)} {name}  {formats.plain(line)}")
        if len(lines) > _LINES:
            terminal.say(f"  and {len(lines) - _LINES} more of {name}: --json lists them")


def _verdict(found: "Vetting", name: str) -> str:
    from domain.service.vetting import TRIED, WARNINGS

    if found.wrong[name]:
        return "[yellow]warning[/]" if name in WARNINGS else "[red]failed[/]"
    # A task that lint refuses is not run, so checks that try it have said nothing.
    refused = len(found.wrong["lint"])
    is_untried = name in TRIED and refused and refused == found.n_tasks
    return "[dim]not run[/]" if is_untried else "[green]passed[/]"


def register(app: typer.Typer) -> None:
    """Add the command to ``synth task-set``."""
    app.command(epilog=options.example("synth task-set check team/practice@v1 --tasks 0"))(check)
