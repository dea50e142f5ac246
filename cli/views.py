"""Experiments and what belongs to them, as text for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli import formats, terminal
from domain.records.wording import counted

if TYPE_CHECKING:
    from domain.maths.statistics import Estimate
    from domain.records.experiment import Event
    from domain.records.model import Checkpoint
    from domain.records.profile import Profile
    from domain.service.accept import Accepted
    from domain.service.inspection import ExperimentRow, ExperimentView


_REASONS = 5
"""Reasons of ungraded trials that are shown, the most frequent ones; JSON has all."""


def accepted(found: "Accepted") -> None:
    """Show what acceptance returned and what to do next."""
    experiment = found.experiment
    identity = experiment.experiment_id
    word = "Accepted" if found.created else "Already accepted"
    terminal.say(
        f"{word} [bold]{identity}[/]: {experiment.spec.kind.value} of {experiment.spec.task_set}, "
        f"{counted(experiment.n_units, 'batch' if identity.startswith('trn-') else 'shard')}"
    )
    terminal.note(f"[dim]follow it: synth run events {identity} --follow[/]")


def experiments(found: "Sequence[ExperimentRow]") -> None:
    """Show a list of experiments, newest first."""
    terminal.show_table(
        ("experiment", "kind", "state", "task set", "actor", "model", "mean reward", "accepted"),
        [
            (
                row.experiment.experiment_id,
                row.experiment.spec.kind.value,
                formats.state(row.experiment.state.value),
                str(row.experiment.spec.task_set),
                _actor(row.actor),
                row.experiment.spec.policy.name if row.experiment.spec.policy else "–",
                _mean(row.mean),
                formats.when(row.experiment.created_ms),
            )
            for row in found
        ],
        right=frozenset({"mean reward"}),
        empty="No experiment yet: synth run start, synth train start",
    )


def _actor(profile: "Profile") -> str:
    """Return ``agent (mini)``, or the name alone where it says the engine."""
    name, engine = formats.plain(profile.name), formats.plain(profile.engine)
    return name if name == engine else f"{name} ({engine})"


def _mean(mean: "Estimate | None") -> str:
    return "–" if mean is None or mean.value is None else f"{formats.score(mean.value)}  [dim]n={mean.n_attempts}[/]"


def experiment(view: "ExperimentView") -> None:
    """Show one experiment."""
    from domain.service.ungraded import NOTHING_GRADED

    item, plan = view.experiment, view.experiment.spec.plan
    done = sum(view.outcomes.values())
    terminal.say(f"[bold]{item.experiment_id}[/]  {item.spec.kind.value}  {formats.state(item.state.value)}")
    rows = [
        ("task set", f"{item.spec.task_set}  [dim]{item.spec.task_set_digest[:12]}[/]"),
        ("actor", f"{_actor(view.actor)}  [dim]profile {item.spec.actor_digest[:12]}[/]"),
        ("model", item.spec.policy.name if item.spec.policy else "–"),
        ("plan", f"{counted(plan.attempts, 'attempt')}, sandbox {plan.sandbox}, {plan.concurrency} at once"),
        ("accepted", formats.when(item.created_ms)),
        ("trials", f"{done} of {view.n_trials_planned}: {formats.counts(view.outcomes)}"),
        ("assessed", formats.counts(view.assessed)),
    ]
    rows += [("ungraded", f"{count} x {formats.told(reason)}") for reason, count in view.ungraded.items()][:_REASONS]
    if view.ungraded and not view.n_scored:
        rows.append(
            ("result", f"[bold red]{NOTHING_GRADED}[/]  [dim]read why: synth run trials {item.experiment_id}[/]")
        )
    elif view.mean is not None:
        over = f"over {counted(view.mean.n_tasks, 'task')}, {counted(view.mean.n_attempts, 'scored attempt')}"
        rows.append(("mean reward", f"{formats.estimate(view.mean)}  [dim]{over}, {view.mean.method}[/]"))
    if item.spec.source is not None:
        rows.append(("source", item.spec.source))
    for name, value in rows:
        terminal.say(f"  [dim]{name:<12}[/] {value}")
    terminal.show_table(
        ("unit", "state", "runs", "model", "detail"),
        [
            (
                unit.unit,
                formats.state(unit.state.value),
                str(unit.generation + 1),
                unit.policy.name if unit.policy else "–",
                formats.told(unit.detail),
            )
            for unit in view.units
        ],
        right=frozenset({"runs"}),
    )
    if view.checkpoints:
        checkpoints(view.checkpoints)


def event(found: "Event") -> None:
    """Show one event as a line."""
    unit = found.unit.rpartition(".")[2] if found.unit else ""
    terminal.say(
        f"[dim]{found.cursor:>5}  {formats.when(found.at_ms)[11:]}[/]  {unit:<7}[bold]{found.kind:<22}[/] "
        f"{formats.body(found.body)}"
    )


def checkpoints(found: "Sequence[Checkpoint]") -> None:
    """Show checkpoints, oldest first."""
    terminal.show_table(
        ("checkpoint", "after batch", "steps", "parent", "groups", "trained tokens", "gradient norm"),
        [
            (
                item.checkpoint_id,
                str(item.next_batch),
                str(item.version.n_optimizer_steps),
                item.parent,
                str(len(item.groups)),
                _number(item.metrics.get("n_trained_tokens"), 0),
                _number(item.metrics.get("grad_norm"), 4),
            )
            for item in found
        ],
        right=frozenset({"after batch", "steps", "groups", "trained tokens", "gradient norm"}),
    )


def _number(value: object, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else "–"
