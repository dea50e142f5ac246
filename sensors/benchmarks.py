"""Recurring benchmarks: one schedule for each entry of SYNTH_HOME/benchmarks.json."""

from collections.abc import Sequence

import dagster as dg

from domain.errors import ConfigurationError, boundary
from domain.service.accept import derived_id
from resources.documents import Benchmark, read_benchmarks
from resources.wiring import settings_from_environment
from sensors.jobs import submit_experiment_job
from sensors.loose import loose
from sensors.submission import SubmissionConfig


def benchmark_schedules() -> Sequence[dg.ScheduleDefinition]:
    """Return the schedules of this installation; none when it names no benchmarks.

    Raises:
        ConfigurationError: naming the file, the entry and the field.
    """
    return [schedule_of(benchmark) for benchmark in read_benchmarks(settings_from_environment().benchmarks)]


def schedule_of(benchmark: Benchmark) -> dg.ScheduleDefinition:
    """Return the schedule of one benchmark.

    Raises:
        ConfigurationError: its times make no cron schedule.
    """
    with boundary(ConfigurationError, f"benchmark {benchmark.name!r}: cron: {benchmark.cron!r}"):
        return _schedule(benchmark)


def _schedule(benchmark: Benchmark) -> dg.ScheduleDefinition:

    @loose.schedule(
        name=f"benchmark_{benchmark.name}",
        cron_schedule=benchmark.cron,
        job=submit_experiment_job,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Submits {benchmark.kind} of {benchmark.actor} on {benchmark.dataset}.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        at = context.scheduled_execution_time.isoformat()
        config = SubmissionConfig(
            kind=benchmark.kind,
            dataset=benchmark.dataset,
            actor=benchmark.actor,
            plan_file=benchmark.plan,
            model=benchmark.model,
            # The tick names the experiment, so that a repeated tick finds it instead of submitting again.
            idempotency_key=derived_id("benchmark", benchmark.name, at),
            labels={"benchmark": benchmark.name, "tick": at},
        )
        return dg.RunRequest(run_key=at, run_config=dg.RunConfig(ops={"submit_experiment": config}))

    return tick
