"""``synth run import``: finished trials of another tool as an experiment."""

from pathlib import Path
from typing import Annotated

import typer

from cli import options, terminal
from cli.connection import platform
from domain.records.wording import counted


def import_job(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished job: config.json, result.json, trials.")],
    *,
    layout: Annotated[str, typer.Option("--format", help="Only harbor: what Harbor or `run export` wrote.")] = "harbor",
    dataset: Annotated[
        str | None,
        typer.Option(help="Published task set with the job's tasks, `team/name@v1`; default: what the job names."),
    ] = None,
    agent: Annotated[str, typer.Option(help="Only trials of this agent: its name, or `NAME MODEL`.")] = "",
    sandbox: Annotated[str, typer.Option(help="Where `run regrade` will assess them.")] = "local",
    as_json: options.Json = False,
) -> None:
    """Keep the trials of a finished job as an experiment; the same job again is the same experiment.

    Outcomes and scores follow Synth's rules: no verdict is ungraded and never 0. A directory that cannot be read is
    refused by file and field before anything is written. JSON: {experiment, created}.
    """
    from adapters.benchmarks.harbor_job import read_job, task_digests
    from adapters.evidence_codec import encode_trial
    from domain.errors import ConfigurationError
    from domain.records.names import parse_reference
    from domain.service.import_trials import Importer
    from domain.service.import_trials import import_job as keep

    if layout != "harbor":
        raise ConfigurationError(f"--format: {layout!r} is no layout", hint="write harbor")
    opened = platform()
    job = read_job(directory)
    name = dataset or job.dataset
    if name is None:
        raise ConfigurationError(f"{directory}: its trials name no data set", hint="name the task set with --dataset")
    reference = parse_reference(name, field="--dataset" if dataset else f"{directory}: source")
    importer = Importer(platform=opened, task_digests=task_digests, encode=encode_trial)
    found = keep(importer, job, reference, sandbox=sandbox, actor=agent)
    experiment = found.experiment.experiment_id
    if as_json:
        terminal.emit(found)
    elif found.created:
        terminal.say(
            f"Imported {counted(len(job.trials), 'trial')} as [bold]{experiment}[/]; `synth run show {experiment}`"
        )
    else:
        terminal.say(f"[bold]{experiment}[/] holds this job already")


def register(app: typer.Typer) -> None:
    """Add the command to ``synth run``."""
    app.command(
        "import", epilog=options.example("synth run import jobs/2026-01-31__12-00-00 --dataset team/evaluation@v1")
    )(import_job)
