"""``synth run export``: an experiment in another tool's own layout."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform
from cli.reporting import assessed_trials
from domain.records.wording import counted

if TYPE_CHECKING:
    from adapters.reports.atif import Document
    from domain.records.experiment import Experiment
    from domain.records.trial import Interaction, TrialRecord
    from domain.service.platform import Platform


def export(
    experiment: options.ExperimentId,
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of jobs; the experiment becomes one in it.")],
    *,
    layout: Annotated[str, typer.Option("--format", help="Only harbor: what `harbor view DIR` reads.")] = "harbor",
    as_json: options.Json = False,
) -> None:
    """Write trials with results, trajectories, logs and artifacts as Harbor does.

    JSON: {path, n_trials}.
    """
    from adapters.reports.harbor_layout import Finished, HarborJob, trial_name
    from domain.errors import ConfigurationError, ConflictError

    if layout != "harbor":
        raise ConfigurationError(f"--format: {layout!r} is no layout", hint="write harbor")
    opened = existing_platform()
    with opened.ledger.snapshot() as tx:
        found = tx.experiments.get(experiment)
        profile = tx.catalog.profile(found.spec.actor_digest)
    directory = out / experiment
    if directory.exists():
        raise ConflictError(f"{directory} exists", hint="name another directory, or remove it")
    results: list[Document] = []
    trials = assessed_trials(opened, experiment)
    digests = _harbor_digests(opened, found, {trial.task_digest for trial, _ in trials})
    job = HarborJob(experiment=found, profile=profile, store=opened.store, harbor_digests=digests)
    with terminal.bars(shown=not as_json) as progress:
        for number, (trial, assessment) in enumerate(trials, start=1):
            finished = Finished(trial=trial, assessment=assessment, interactions=_interactions(opened, trial))
            result, files = job.trial_files(finished)
            _write(directory / trial_name(trial), files)
            results.append(result)
            progress("trials", number, len(trials))
    _write(directory, job.job_files(results))
    if as_json:
        terminal.emit({"path": str(directory), "n_trials": len(trials)})
    else:
        terminal.say(f"Wrote {counted(len(trials), 'trial')} to [bold]{directory}[/]; harbor view {out} shows them")


def _harbor_digests(opened: "Platform", experiment: "Experiment", tasks: set[str]) -> dict[str, str]:
    """Return Harbor's digest of each task by ours, where it can be told."""
    from adapters.benchmarks.harbor_job import task_digests
    from domain.records.task import Task
    from domain.service.task_pages import entries_with

    with opened.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(experiment.spec.task_set)
    found: dict[str, str] = {}
    for digest, entry in entries_with(opened.records, task_set, tasks).items():
        archive = opened.store.get(opened.records.load(Task, entry.record).archive)
        found.update((digest, known) for known in task_digests(archive))
    return found


def _interactions(opened: "Platform", trial: "TrialRecord") -> "tuple[Interaction, ...]":
    if trial.evidence is None or not trial.evidence.n_interactions:
        return ()
    return asyncio.run(opened.model.read(trial.evidence))


def _write(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def register(app: typer.Typer) -> None:
    """Add the command to ``synth run``."""
    app.command(epilog=options.example("synth run export evl-01k... jobs --format harbor"))(export)
