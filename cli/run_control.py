"""``synth run cancel``, ``regrade``, ``resolve``, ``resample`` and ``report``: what an operator decides."""

from pathlib import Path
from typing import Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform, settings
from cli.waiting import answer, say_who_runs_it
from domain.records.wording import counted


def cancel(experiment: options.ExperimentId, *, as_json: options.Json = False) -> None:
    """Ask for the end of an experiment; trials under way stop within a heartbeat. JSON: the shape of `run show`."""
    from domain.service import inspection
    from domain.service.dispatch import request_cancel

    opened = existing_platform()
    request_cancel(opened, experiment)
    view = inspection.show(opened, experiment)
    if as_json:
        terminal.emit(view)
    elif view.experiment.state.is_terminal():
        terminal.say(f"{experiment} has already {view.experiment.state.value}")
    else:
        terminal.say(f"Asked for the end of [bold]{experiment}[/]; `synth run show {experiment}` tells when it came")


def regrade(
    experiment: options.ExperimentId,
    *,
    wait: options.Wait = False,
    idempotency_key: options.IdempotencyKey = None,
    as_json: options.Json = False,
) -> None:
    """Assess the retained outputs of a finished experiment again, side by side with the first assessment.

    JSON: {experiment, created}; with --wait the shape of `run show`.
    """
    from domain.service.regrade import accept_regrade

    opened = existing_platform()
    found = accept_regrade(opened, experiment, idempotency_key=idempotency_key)
    answer(opened, found, wait=wait, as_json=as_json)


def resolve(
    unit: Annotated[str, typer.Argument(metavar="UNIT", help="The blocked unit, for example `trn-01k....b00012`.")],
    *,
    applied: Annotated[
        bool,
        typer.Option("--applied/--not-applied", help="Your word on whether the optimizer step happened."),
    ],
    as_json: options.Json = False,
) -> None:
    """Settle an optimizer step of which nobody can prove whether it happened, so that the training goes on.

    The trainer's own record is asked first. JSON: {unit, applied}.
    """
    from cli.resolution import resolve as settle

    settle(existing_platform(), unit, applied=applied)
    if as_json:
        terminal.emit({"unit": unit, "applied": applied})
    else:
        terminal.say(f"[bold]{unit}[/] goes on: the step {'happened' if applied else 'did not happen'}")


def resample(
    unit: Annotated[str, typer.Argument(metavar="UNIT", help="For example `evl-01k....s000`.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Run every attempt of a unit afresh; `synth up` does it. The earlier trials stay, and count no more.

    Without this, a unit that runs again keeps its finished trials. JSON: {unit, first_attempt, generation}.
    """
    from domain.service.samples import request_fresh_sample

    row = request_fresh_sample(existing_platform(), unit)
    if as_json:
        terminal.emit({"unit": unit, "first_attempt": row.first_attempt, "generation": row.generation})
    else:
        terminal.say(f"[bold]{unit}[/] is sampled afresh, from attempt {row.first_attempt}")
        say_who_runs_it()


def report(
    experiment: options.ExperimentId,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Directory to write to; default: SYNTH_HOME/reports/EXPERIMENT.")
    ] = None,
    transcripts: Annotated[int, typer.Option(min=0, help="Transcript pages to write, spread over the tasks.")] = 200,
    as_json: options.Json = False,
) -> None:
    """Write the report of an experiment as an HTML file that needs nothing else, with transcript pages beside it.

    JSON: {experiment, path, n_transcripts}.
    """
    from cli.reporting import write_report

    directory = out or settings().home / "reports" / experiment
    with terminal.bars(shown=not as_json) as progress:
        written = write_report(existing_platform(), experiment, directory, n_transcripts=transcripts, progress=progress)
    if as_json:
        terminal.emit({"experiment": experiment, "path": str(written.path), "n_transcripts": written.n_transcripts})
    else:
        terminal.say(f"Wrote [bold]{written.path}[/] and {counted(written.n_transcripts, 'transcript')}")


def register(app: typer.Typer) -> None:
    """Add the commands to ``synth run``."""
    app.command(epilog=options.example("synth run cancel trn-01k..."))(cancel)
    app.command(epilog=options.example("synth run regrade evl-01k... --wait"))(regrade)
    app.command(epilog=options.example("synth run resolve trn-01k....b00012 --not-applied"))(resolve)
    app.command(epilog=options.example("synth run resample evl-01k....s000"))(resample)
    app.command(epilog=options.example("synth run report trn-01k... --out report"))(report)
