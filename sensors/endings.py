"""What a run's end means for its unit: failed runs run again from what is kept, cancelled ones do not."""

import dagster as dg

from domain.records.experiment import UnitState
from domain.service.dispatch import conclude_evaluation, unit_run_ended
from domain.service.platform import Platform
from domain.service.relaunch import end_lease
from resources.synth import SynthResource
from sensors.jobs import UNIT_JOBS, evaluation_report_job
from sensors.launches import RUN_KEY
from sensors.loose import loose

REPETITION = "repetition"
_REPETITIONS = 3
_INTERVAL_S = 10
"""Each tick opens Dagster's databases; a unit whose run died waits for its lease to expire anyway."""
_MONITORED = [*UNIT_JOBS.values(), evaluation_report_job]


@loose.run_failure_sensor(
    monitored_jobs=_MONITORED,
    request_jobs=_MONITORED,
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def run_failed(context: dg.RunFailureSensorContext, synth: SynthResource) -> dg.SkipReason | dg.RunRequest:
    """Note a failed run: its unit gets a new generation, and keeps every finished trial.

    A run that died after its unit was done is repeated, so that the graph shows what the ledger holds.
    """
    run = context.dagster_run
    platform = synth.platform()
    ended = _ended(platform, run, f"run {run.run_id}: {context.failure_event.message or 'failed'}"[:500])
    return _repetition(platform, run) or ended


@loose.run_status_sensor(
    run_status=dg.DagsterRunStatus.CANCELED,
    monitored_jobs=_MONITORED,
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def run_cancelled(context: dg.RunStatusSensorContext, synth: SynthResource) -> dg.SkipReason:
    """Note a run that somebody cancelled in Dagster: its unit is over."""
    run = context.dagster_run
    return _ended(synth.platform(), run, f"run {run.run_id} was cancelled in Dagster", cancelled=True)


def _ended(platform: Platform, run: dg.DagsterRun, reason: str, *, cancelled: bool = False) -> dg.SkipReason:
    """Tell the ledger. A unit whose current worker is another run is left alone."""
    unit = run.tags.get("unit")
    if unit is not None and _is_current(platform, unit, run):
        unit_run_ended(platform, unit, reason=reason, cancelled=cancelled)
        _free(platform, unit, run.run_id)
    elif unit is None and cancelled and "experiment" in run.tags:
        conclude_evaluation(platform, run.tags["experiment"], succeeded=False, detail=reason)
    return dg.SkipReason(reason)


def _repetition(platform: Platform, run: dg.DagsterRun) -> dg.RunRequest | None:
    """Return a run that materializes a finished unit again: it finds everything done and costs a second."""
    unit = run.tags.get("unit")
    number = int(run.tags.get(REPETITION, "0")) + 1
    if unit is None or number > _REPETITIONS:
        return None
    with platform.ledger.snapshot() as tx:
        if tx.units.get(unit).state is not UnitState.SUCCEEDED:
            return None
    kept = ("experiment", "kind", "unit", "generation")
    return dg.RunRequest(
        run_key=f"{run.tags.get(RUN_KEY, unit)}+{number}",
        job_name=run.job_name,
        partition_key=_partition(run),
        tags={**{name: run.tags[name] for name in kept if name in run.tags}, REPETITION: str(number)},
    )


def _partition(run: dg.DagsterRun) -> str | dg.MultiPartitionKey | None:
    key = run.tags.get("dagster/partition")
    if key is None or "|" not in key:
        return key
    assessor, unit = key.split("|")
    return dg.MultiPartitionKey({"assessor": assessor, "unit": unit})


def _is_current(platform: Platform, unit: str, run: dg.DagsterRun) -> bool:
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
    return str(row.generation) == run.tags.get("generation") and row.lease_holder in {None, run.run_id}


def _free(platform: Platform, unit: str, holder: str) -> None:
    """End the lease of a run that is over, so that its successor need not wait until it expires."""
    with platform.ledger.begin() as tx:
        row = tx.units.get(unit)
        if row.lease_holder == holder:
            end_lease(tx, row, holder, platform.clock.now_ms())
