"""``synth train``: start trainings; everything else about them is under ``synth run``."""

import typer

from cli import options
from cli.connection import existing_platform
from cli.waiting import answer

app = typer.Typer(no_args_is_help=True, help="Start trainings; `synth run` shows them.")


@app.callback()
def train() -> None:
    """Start trainings; `synth run` shows them."""


@app.command(
    epilog=options.example(
        "synth train start --dataset team/practice@v1 --actor @agent.json --plan @train-plan.json",
        "synth train start --dataset team/practice@v1 --actor @agent.json --plan @train-plan.json "
        "--model checkpoint:ckpt-0123456789ab",
    )
)
def start(
    dataset: options.Dataset,
    actor: options.Actor,
    plan: options.PlanFile,
    *,
    model: options.Model = None,
    wait: options.Wait = False,
    idempotency_key: options.IdempotencyKey = None,
    as_json: options.Json = False,
) -> None:
    """Submit a training and return its durable id.

    JSON: {experiment, created}; with --wait the shape of `run show`.
    """
    from cli.submission import submit
    from domain.records.experiment import ExperimentKind

    opened = existing_platform()
    found = submit(
        opened,
        ExperimentKind.TRAINING,
        dataset_text=dataset,
        actor_text=actor,
        plan_text=plan,
        model=model,
        idempotency_key=idempotency_key,
    )
    answer(opened, found, wait=wait, as_json=as_json)
