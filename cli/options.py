"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of text for people; draw no progress.")
]
ExperimentId = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Experiment id, as printed by `run start` or `run list`.")
]
TrialId = Annotated[str, typer.Argument(metavar="TRIAL", help="Trial id, or attempt key `UNIT/g003/a1`.")]
Dataset = Annotated[str, typer.Option(help="Published task set, `team/name@v1`.")]
Actor = Annotated[str, typer.Option(help="Profile of the agent: `@FILE`, or a published `team/name@v1`.")]
PlanFile = Annotated[str, typer.Option("--plan", help="How the experiment runs: `@FILE`.")]
Model = Annotated[
    str | None,
    typer.Option(help="Model to use instead of the profile's: `base:NAME` or `checkpoint:ID`."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 unless it succeeded.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(help="The same key with the same request returns the same experiment; with another one, an error."),
]
Limit = Annotated[int, typer.Option(min=1, help="Show at most so many.")]


def example(*lines: str) -> str:
    """Return the examples at the foot of a command's help, one paragraph each."""
    return "\n\n".join(("Examples:" if len(lines) > 1 else "Example:", *lines))
