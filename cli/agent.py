"""``synth agent``: run a profile once, here and now."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import formats, options, terminal
from cli.connection import platform
from domain.records.wording import counted

if TYPE_CHECKING:
    from cli.agent_run import AgentRun
    from domain.service.platform import Platform

app = typer.Typer(no_args_is_help=True, help="Run an agent profile once, here and now.")


@app.callback()
def agent() -> None:
    """Run an agent profile once, here and now."""


@app.command(
    epilog=options.example(
        "synth agent run @examples/oracle.json --task examples/tasks/hello",
        "synth agent run @examples/agent.json --task examples/tasks/hello --model checkpoint:ckpt-0123456789ab",
    )
)
def run(
    profile: Annotated[str, typer.Argument(metavar="@FILE|REFERENCE", help="The profile to run.")],
    *,
    task: Annotated[Path, typer.Option(help="A task directory in Harbor's format.")],
    model: options.Model = None,
    sandbox: Annotated[str, typer.Option(help="The kind of box to run in.")] = "local",
    host_runnable: Annotated[
        bool, typer.Option("--host-runnable", help="Declare that a box without the task's image may run it.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run a profile once on one task, in a box of this machine, and print outcome and reward.

    The same interpreter and verifier as in experiments; the trial is kept and can be read afterwards. An engine with
    a model needs `synth up`. Exit code 1 unless the trial was completed.

    JSON: {experiment_id, trial, assessment}.
    """
    from cli import submission
    from cli.agent_run import run_once

    opened = platform()
    with terminal.bars(shown=not as_json) as progress:
        found = asyncio.run(
            run_once(
                opened,
                actor=submission.actor(profile, option="profile"),
                directory=str(task),
                model=model,
                sandbox=sandbox,
                host_runnable=host_runnable,
                progress=progress,
            )
        )
    if as_json:
        terminal.emit(found)
    else:
        _show(found, opened)
    if found.trial.outcome.value != "completed":
        raise typer.Exit(terminal.EXIT_FAILED)


def _show(found: "AgentRun", opened: "Platform") -> None:
    from cli.agent_run import context_of

    trial, assessment = found.trial, found.assessment
    named = formats.plain(trial.task_name)
    terminal.say(f"[bold]{named}[/]  {formats.state(trial.outcome.value)}  {formats.told(trial.detail)}")
    if (context := context_of(found, opened)) is not None:
        terminal.say(f"  {context}")
    if assessment is not None:
        terminal.say(f"  reward [bold]{formats.score(assessment.reward)}[/]  {assessment.outcome.value}")
        if assessment.reason:
            terminal.say(f"  {formats.told(assessment.reason)}")
    terminal.say(
        f"  {counted(trial.usage.n_calls, 'call')}, {counted(trial.usage.n_sampled_tokens, 'sampled token')}, "
        f"{formats.duration(trial.usage.wall_s)}"
    )
    terminal.note(f"[dim]read it: synth run transcript {trial.trial_id}[/]")
