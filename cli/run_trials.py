"""``synth run trials``, ``transcript`` and ``artifacts``: what attempts did and left behind."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import formats, options, terminal
from cli.connection import existing_platform
from cli.reporting import assessed_trials
from domain.records.wording import counted, one_of

if TYPE_CHECKING:
    from domain.records.assessment import Assessment
    from domain.records.trial import TrialRecord
    from domain.service.platform import Platform


def trials(
    experiment: options.ExperimentId,
    *,
    outcome: Annotated[str | None, typer.Option(help="Only trials that ended so, for example agent_timeout.")] = None,
    task: Annotated[str | None, typer.Option(help="Only trials whose task name contains this.")] = None,
    limit: options.Limit = 200,
    as_json: options.Json = False,
) -> None:
    """List the attempts of an experiment with their assessments.

    JSON: {trials: [{trial, assessment}]}; assessment is null where nothing is assessed.
    """
    from domain.errors import ConfigurationError
    from domain.records.trial import TrialOutcome

    if outcome is not None and outcome not in set(TrialOutcome):
        message = f"--outcome: no trial ends {outcome!r}"
        raise ConfigurationError(message, hint=one_of(outcome, [item.value for item in TrialOutcome]))
    found = [
        (trial, assessment)
        for trial, assessment in assessed_trials(existing_platform(), experiment)
        if (outcome is None or trial.outcome.value == outcome) and (task is None or task in trial.task_name)
    ]
    if as_json:
        rows = [{"trial": trial, "assessment": assessment} for trial, assessment in found[:limit]]
        terminal.emit({"trials": rows})
        return
    empty = "No such trial." if outcome or task else "No trial has ended yet."
    numbers = frozenset({"reward", "calls", "sampled tokens", "wall"})
    columns = ("trial", "attempt", "task", "outcome", "reward", "calls", "sampled tokens", "wall")
    terminal.show_table(
        columns, [_row(trial, assessment) for trial, assessment in found[:limit]], right=numbers, empty=empty
    )
    _ungraded([assessment for _, assessment in found if assessment is not None])
    if len(found) > limit:
        terminal.note(f"[dim]{len(found) - limit} more: --limit {len(found)}[/]")


def _ungraded(assessments: "list[Assessment]") -> None:
    """Say why trials have no reward, and that none has."""
    from domain.service.ungraded import NOTHING_GRADED, ungraded_reasons

    reasons = ungraded_reasons(assessments)
    for reason, count in reasons.items():
        terminal.say(f"[yellow]ungraded[/] {count} x {formats.told(reason)}")
    if reasons and sum(reasons.values()) == len(assessments):
        terminal.say(f"[bold red]{NOTHING_GRADED}[/]")


def _row(trial: "TrialRecord", assessment: "Assessment | None") -> tuple[str, ...]:
    reward = "–" if assessment is None else formats.score(assessment.reward)
    return (
        trial.trial_id,
        str(trial.key).rpartition(".")[2],
        formats.plain(trial.task_name),
        formats.state(trial.outcome.value),
        reward if assessment is None or assessment.reward is not None else formats.state(assessment.outcome.value),
        str(trial.usage.n_calls),
        str(trial.usage.n_sampled_tokens),
        formats.duration(trial.usage.wall_s),
    )


def transcript(
    trial: options.TrialId,
    *,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page there instead.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print what a trial said and did, turn by turn, with tokens, reward and reason.

    JSON: {trial, assessments, interactions}, ids and logprobs included.
    """
    from adapters.reports.transcript_page import transcript_page
    from adapters.reports.transcript_text import transcript_text
    from domain.service import inspection

    opened = existing_platform()
    found = asyncio.run(inspection.transcript(opened, inspection.find_trial(opened, trial)))
    if html is not None:
        html.write_text(transcript_page(found), encoding="utf-8")
        terminal.note(f"wrote {html}")
    elif as_json:
        terminal.emit(found)
    else:
        terminal.console().print(transcript_text(found), highlight=False, soft_wrap=True)


def artifacts(
    identity: Annotated[str, typer.Argument(metavar="EXPERIMENT|TRIAL", help="Experiment id, trial id or attempt.")],
    *,
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("artifacts"),
    as_json: options.Json = False,
) -> None:
    """Download retained outputs and logs as tar archives, one directory for each trial.

    JSON: {artifacts: [{trial, attempt, kind, path, size_bytes, digest}]}.
    """
    from domain.errors import NotFoundError
    from domain.records.identities import Named, named_by
    from domain.service import inspection

    opened = existing_platform()
    kind = named_by(identity)
    if kind is Named.EXPERIMENT:
        found = [trial for trial, _ in assessed_trials(opened, identity)]
    elif kind in {Named.TRIAL, Named.ATTEMPT}:
        with opened.ledger.snapshot() as tx:
            found = [tx.trials.get(inspection.find_trial(opened, identity))]
    else:
        message = f"{identity!r} names neither an experiment nor a trial"
        raise NotFoundError(message, hint="synth run list shows experiments, synth run trials EXPERIMENT their trials")
    rows: list[dict[str, str | int]] = []
    with terminal.bars(shown=not as_json) as progress:
        for number, trial in enumerate(found, start=1):
            rows += _download(opened, trial, out)
            progress("trials", number, len(found))
    if as_json:
        terminal.emit({"artifacts": rows})
    else:
        terminal.say(f"Wrote {counted(len(rows), 'archive')} of {counted(len(found), 'trial')} below [bold]{out}[/]")


def _download(opened: "Platform", trial: "TrialRecord", out: Path) -> list[dict[str, str | int]]:
    directory = out / trial.trial_id
    rows: list[dict[str, str | int]] = []
    for kind, ref in (("outputs", trial.outputs), ("logs", trial.logs)):
        if ref is None:
            continue
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{kind}.tar"
        path.write_bytes(opened.store.get(ref))
        rows.append(
            {
                "trial": trial.trial_id,
                "attempt": str(trial.key),
                "kind": kind,
                "path": str(path),
                "size_bytes": ref.size_bytes,
                "digest": ref.digest,
            }
        )
    return rows


def register(app: typer.Typer) -> None:
    """Add the commands to ``synth run``."""
    app.command(epilog=options.example("synth run trials evl-01k... --outcome agent_timeout"))(trials)
    app.command(
        epilog=options.example(
            "synth run transcript 01k...", "synth run transcript evl-01k....s000/g003/a1 --html transcript.html"
        )
    )(transcript)
    app.command(epilog=options.example("synth run artifacts evl-01k... --out results"))(artifacts)
