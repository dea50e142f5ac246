"""What the demo found, and what it took."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli import formats, terminal
from cli.work_log import Span, WorkLog, worked_ms
from domain.records.wording import counted

if TYPE_CHECKING:
    from cli.demo_setup import Setup
    from cli.up import Up
    from domain.maths.scores import TaskScores
    from domain.maths.statistics import Estimate
    from domain.records.experiment import Experiment
    from domain.service.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One policy on the held-out tasks."""

    experiment_id: str
    policy: str
    mean: float | None
    low: float | None
    high: float | None
    n_tasks: int
    n_attempts: int
    n_ungraded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Trained less base, paired by task."""

    value: float | None
    low: float | None
    high: float | None
    n_tasks: int
    p_value: float | None
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The numbers of a demo."""

    seed: int
    batches: int
    base: Side
    trained: Side
    gain: Gain
    """Interval over families: tasks of one family are not independent."""
    gain_over_tasks: Gain
    """The same difference with an interval over tasks."""
    n_ungraded: int
    """Of all trials of the demo."""
    wall_s: float
    """Of this call; a resumed demo counts only what was left."""
    worked_s: float
    """Of all calls and of what went on between them, without the pauses."""
    stages_s: dict[str, float]
    peak_rss_bytes: int
    """Largest sum of resident memory over this process, `synth up` and all their descendants; pages that processes
    share are counted for each."""
    ui: str
    report: str
    experiments: dict[str, str]


@dataclass(slots=True, kw_only=True)
class PeakMemory:
    """The largest resident memory seen."""

    peak_bytes: int = 0
    roots: set[int] = field(default_factory=set[int])

    def watch(self, running: "Up") -> None:
        """Include what runs and this process."""
        import os

        self.roots = {os.getpid(), running.supervisor.pid, *(item.pid for item in running.services.values())}
        self.sample()

    def sample(self) -> None:
        """Look now."""
        import psutil

        members: dict[int, psutil.Process] = {}
        for root in self.roots:
            try:
                process = psutil.Process(root)
                members |= {item.pid: item for item in (process, *process.children(recursive=True))}
            except psutil.NoSuchProcess:
                continue
        total = 0
        for process in members.values():
            try:
                total += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        self.peak_bytes = max(self.peak_bytes, total)


def summarize(
    platform: "Platform",
    setup: "Setup",
    experiments: "tuple[Experiment, Experiment, Experiment]",
    *,
    wall_s: float,
    log: "WorkLog",
    stages_s: dict[str, float],
    peak_rss_bytes: int,
    ui: str,
    report: Path,
) -> DemoResult:
    """Return the numbers of base evaluation, training and trained evaluation."""
    from domain.service.evaluate import evaluation

    base, training, trained = experiments
    before, after = evaluation(platform, base.experiment_id), evaluation(platform, trained.experiment_id)
    return DemoResult(
        seed=setup.seed,
        batches=setup.train_plan.batches,
        base=_side(base, before.mean),
        trained=_side(trained, after.mean),
        gain=_gain(after.tasks, before.tasks),
        gain_over_tasks=_gain(_alone(after.tasks), _alone(before.tasks)),
        n_ungraded=sum(_n_ungraded(platform, item) for item in experiments),
        wall_s=round(wall_s, 1),
        worked_s=round(worked_ms([*log.spans, *_trial_spans(platform, experiments)]) / 1000, 1),
        stages_s=stages_s,
        peak_rss_bytes=peak_rss_bytes,
        ui=ui,
        report=str(report),
        experiments={
            "base": base.experiment_id,
            "training": training.experiment_id,
            "trained": trained.experiment_id,
        },
    )


def _trial_spans(platform: "Platform", experiments: "Sequence[Experiment]") -> "list[Span]":
    """Return when trials ran: Synth goes on while no demo is there to wait for it."""
    with platform.ledger.snapshot() as tx:
        trials = [trial for item in experiments for trial in tx.trials.of_experiment(item.experiment_id)]
    return [(trial.started_ms, trial.ended_ms) for trial in trials]


def _side(experiment: "Experiment", mean: "Estimate") -> Side:
    return Side(
        experiment_id=experiment.experiment_id,
        policy=experiment.spec.policy.name if experiment.spec.policy else "",
        mean=mean.value,
        low=mean.low,
        high=mean.high,
        n_tasks=mean.n_tasks,
        n_attempts=mean.n_attempts,
        n_ungraded=mean.coverage.n_ungraded,
    )


def _gain(after: "Sequence[TaskScores]", before: "Sequence[TaskScores]") -> Gain:
    from domain.maths.comparison import paired_difference

    found = paired_difference(after, before)
    difference = found.difference
    return Gain(
        value=difference.value,
        low=difference.low,
        high=difference.high,
        n_tasks=difference.n_tasks,
        p_value=found.p_value,
        method=difference.method,
    )


def _alone(tasks: "Sequence[TaskScores]") -> "list[TaskScores]":
    return [replace(task, family=None) for task in tasks]


def _n_ungraded(platform: "Platform", experiment: "Experiment") -> int:
    from domain.service.inspection import show as look

    return look(platform, experiment.experiment_id).assessed.get("ungraded", 0)


def _time(found: DemoResult) -> str:
    """Return how long the work took; a call that went on with it did only the rest."""
    worked = f"{formats.duration(found.worked_s)} of work"
    resumed = found.worked_s - found.wall_s > 1.0
    return f"{worked} ({formats.duration(found.wall_s)} of it in this call)" if resumed else worked


def show(found: DemoResult, home: Path | None) -> None:
    """Print the summary; ``home`` as it was named on the command line."""
    terminal.say()
    terminal.show_table(
        ("held-out tasks", "mean reward", "95 % interval", "tasks", "attempts", "ungraded"),
        [
            (
                name,
                formats.score(side.mean),
                formats.interval(side.low, side.high).replace("[", r"\["),
                str(side.n_tasks),
                str(side.n_attempts),
                str(side.n_ungraded),
            )
            for name, side in (("base policy", found.base), (f"after {counted(found.batches, 'batch')}", found.trained))
        ],
        right=frozenset({"mean reward", "tasks", "attempts", "ungraded"}),
    )
    gain = found.gain
    p = "–" if gain.p_value is None else "< 0.001" if gain.p_value < 0.001 else f"= {gain.p_value:.3f}"  # noqa: PLR2004 - usual floor
    terminal.say(
        f"Paired gain [bold]{formats.score(gain.value)}[/], 95 % {formats.interval(gain.low, gain.high)}".replace(
            ", 95 % [", r", 95 % \["
        )
        + f" over {counted(gain.n_tasks, 'task')} ({gain.method}), p {p}"
    )
    terminal.say(
        f"{found.n_ungraded} ungraded trials, {_time(found)}, {found.peak_rss_bytes / 2**30:.1f} GiB resident at most"
    )
    terminal.say()
    terminal.say(f"  report      [bold]{found.report}[/]")
    terminal.say(f"  Dagster UI  [bold]{found.ui}[/]")
    name = f"{terminal.command()}{f' --home {home}' if home is not None else ''}"
    terminal.say(f"  read on     {name} run show {found.experiments['training']}")
    terminal.say(f"  stop        {name} down")
