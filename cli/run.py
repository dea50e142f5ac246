"""``synth run``: start, follow, read and end experiments."""

from typing import Annotated

import typer

from cli import options, run_control, run_export, run_import, run_trials, terminal, views
from cli.connection import existing_platform
from cli.waiting import answer
from domain.records.wording import counted

app = typer.Typer(no_args_is_help=True, help="Start, follow, read and end experiments.")


@app.command(
    epilog=options.example(
        "synth run start --dataset team/evaluation@v1 --actor @agent.json --plan @eval-plan.json",
        "synth run start --dataset team/evaluation@v1 --actor @agent.json --plan @eval-plan.json --unscored --wait",
    )
)
def start(
    dataset: options.Dataset,
    actor: options.Actor,
    plan: options.PlanFile,
    *,
    model: options.Model = None,
    unscored: Annotated[bool, typer.Option("--unscored", help="Only do the work; assess nothing.")] = False,
    wait: options.Wait = False,
    idempotency_key: options.IdempotencyKey = None,
    as_json: options.Json = False,
) -> None:
    """Submit an evaluation, or an unscored run, and return its durable id.

    JSON: {experiment, created}; with --wait the shape of `run show`.
    """
    from cli.submission import submit
    from domain.records.experiment import ExperimentKind

    opened = existing_platform()
    found = submit(
        opened,
        ExperimentKind.UNSCORED if unscored else ExperimentKind.EVALUATION,
        dataset_text=dataset,
        actor_text=actor,
        plan_text=plan,
        model=model,
        idempotency_key=idempotency_key,
    )
    answer(opened, found, wait=wait, as_json=as_json)


@app.command("list", epilog=options.example("synth run list --limit 20"))
def list_runs(
    limit: options.Limit = 50,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also the single attempts of `synth agent run`.")] = False,
    as_json: options.Json = False,
) -> None:
    """List experiments, newest first, each with the mean of its task means and the scored attempts behind it.

    JSON: {experiments}.
    """
    from domain.service import inspection

    opened = existing_platform()
    found, n_left_out = inspection.newest(opened, limit, every=every)
    if as_json:
        terminal.emit({"experiments": found})
        return
    views.experiments([inspection.row_of(opened, item) for item in found])
    if n_left_out:
        terminal.note(f"[dim]{counted(n_left_out, 'attempt')} of `synth agent run` left out: --all[/]")


@app.command(epilog=options.example("synth run show evl-01k..."))
def show(experiment: options.ExperimentId, *, as_json: options.Json = False) -> None:
    """Show an experiment: state, units, counts, checkpoints.

    JSON: {experiment, units, n_trials_planned, outcomes, assessed, ungraded, mean, n_scored, checkpoints, actor}.
    """
    from domain.service import inspection

    view = inspection.show(existing_platform(), experiment)
    if as_json:
        terminal.emit(view)
    else:
        views.experiment(view)


@app.command(
    epilog=options.example("synth run events evl-01k... --follow", "synth run events evl-01k... --cursor 120 --json")
)
def events(
    experiment: options.ExperimentId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the experiment has ended.")] = False,
    cursor: Annotated[int, typer.Option(min=0, help="Show what came after this cursor.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Print the ordered events of an experiment; each has a cursor from which to go on.

    JSON: one document a line {cursor, experiment_id, unit, kind, at_ms, body}.
    """
    from cli import watch
    from domain.service import inspection

    opened = existing_platform()
    found = watch.follow(opened, experiment, cursor) if follow else inspection.events(opened, experiment, cursor)
    for item in found:
        if as_json:
            terminal.emit_line(item)
        else:
            views.event(item)


@app.command(epilog=options.example("synth run checkpoints trn-01k..."))
def checkpoints(experiment: options.ExperimentId, *, as_json: options.Json = False) -> None:
    """List the checkpoints of a training, oldest first, with what each was used for.

    JSON: {checkpoints: [{checkpoint, trials, n_trained_tokens, used_by}]}.
    """
    from domain.records.experiment import ExperimentKind
    from domain.service import inspection

    opened = existing_platform()
    view = inspection.show(opened, experiment)
    found = view.checkpoints
    if as_json:
        lineages = [inspection.checkpoint_lineage(opened, item.checkpoint_id, training_id=experiment) for item in found]
        terminal.emit({"checkpoints": lineages})
    elif found:
        views.checkpoints(found)
    elif view.experiment.spec.kind is not ExperimentKind.TRAINING:
        kind = view.experiment.spec.kind.value
        terminal.say(f"{experiment} is of kind {kind}: only trainings make checkpoints (synth train start)")
    else:
        terminal.say(f"{experiment} has no checkpoint yet: the first one comes with its first optimizer step")


run_trials.register(app)
run_control.register(app)
run_export.register(app)
run_import.register(app)
