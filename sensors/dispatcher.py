"""The dispatcher: reconciles the ledger into unit keys, admissions and runs. Stateless, so any tick may be lost."""

from collections.abc import Iterator

import dagster as dg

from domain.records.experiment import ExperimentKind
from domain.records.names import unit_key
from domain.service.dispatch import UnitLaunch, conclude_evaluation, dispatch
from domain.service.platform import Platform
from resources.synth import SynthResource
from sensors.jobs import UNIT_JOBS, evaluation_report_job
from sensors.launches import runs_by_key, waiting_launches
from sensors.loose import loose

LAUNCHES_AT_ONCE = 20
PRIORITY = "dagster/priority"
"""Tag by which the queue orders runs: a report first, which takes seconds and ends an experiment, then the next batch
of a training."""
REPORT_TRIES = 5
"""Runs of one report before its experiment fails. A report only reads: it fails again when something is wrong."""


@loose.sensor(
    jobs=[*UNIT_JOBS.values(), evaluation_report_job],
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def dispatcher(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SensorResult:
    """Launch what the ledger has admitted; an unresolved optimizer step blocks its training and is named here."""
    platform = synth.platform()
    found = dispatch(platform, limit=LAUNCHES_AT_ONCE)
    blocked = "; ".join(found.blocked)
    if not found.launches and not found.reports:
        # Opening Dagster's instance costs more than the whole tick, and most ticks need it for nothing.
        return dg.SensorResult(skip_reason=blocked or "nothing to launch")
    launches = waiting_launches(context.instance, platform, found.launches)
    requests = [_unit_request(platform, launch) for launch in launches]
    requests += _report_requests(context.instance, platform, found.reports)
    if requests and blocked:
        context.log.warning("blocked: %s", blocked)
    return dg.SensorResult(
        run_requests=requests or None,
        skip_reason=None if requests else blocked or "everything is launched",
        dynamic_partitions_requests=list(_keys(requests)),
        asset_events=[_admission(launch) for launch in launches if launch.kind is not ExperimentKind.REGRADE],
    )


def _unit_request(platform: Platform, launch: UnitLaunch) -> dg.RunRequest:
    partition: str | dg.MultiPartitionKey = launch.unit
    if launch.kind is ExperimentKind.REGRADE:
        with platform.ledger.snapshot() as tx:
            source = tx.experiments.get(launch.experiment_id).spec.source or ""
            index = tx.units.get(launch.unit).index
        partition = dg.MultiPartitionKey({"assessor": launch.experiment_id, "unit": unit_key(source, index)})
    return dg.RunRequest(
        run_key=launch.run_key,
        job_name=UNIT_JOBS[launch.kind].name,
        partition_key=partition,
        tags={
            "experiment": launch.experiment_id,
            "kind": launch.kind.value,
            "unit": launch.unit,
            "generation": str(launch.generation),
            PRIORITY: "1" if launch.kind is ExperimentKind.TRAINING else "0",
        },
    )


def _report_requests(
    instance: dg.DagsterInstance, platform: Platform, experiments: tuple[str, ...]
) -> Iterator[dg.RunRequest]:
    """Request the report of finished experiments; a run that died is replaced a few times."""
    prefixes = {experiment: _report_prefix(platform, experiment) for experiment in experiments}
    keys = {
        f"{prefix}{number}": experiment for experiment, prefix in prefixes.items() for number in range(REPORT_TRIES)
    }
    known = runs_by_key(instance, keys)
    for experiment in experiments:
        runs = [known[key] for key, wanted in keys.items() if wanted == experiment and key in known]
        if len(runs) == REPORT_TRIES and all(run.is_finished for run in runs):
            detail = f"no report in {REPORT_TRIES} runs, the last {runs[-1].run_id}"
            conclude_evaluation(platform, experiment, succeeded=False, detail=detail)
        elif all(run.is_finished for run in runs):
            yield dg.RunRequest(
                run_key=f"{prefixes[experiment]}{len(runs)}",
                job_name=evaluation_report_job.name,
                partition_key=experiment,
                tags={"experiment": experiment, "kind": "report", PRIORITY: "2"},
            )


def _report_prefix(platform: Platform, experiment: str) -> str:
    """Return what the keys of an experiment's report runs start with: a fresh sample of a unit wants its own report."""
    with platform.ledger.snapshot() as tx:
        resampled = sum(unit.first_attempt for unit in tx.units.of(experiment))
    return f"{experiment}#report" if resampled == 0 else f"{experiment}#sample{resampled}-report"


def _keys(requests: list[dg.RunRequest]) -> Iterator[dg.AddDynamicPartitionsRequest]:
    """Name the keys that the requested runs need; known ones are no matter."""
    keys: dict[str, list[str]] = {"unit": [], "experiment": [], "assessor": []}
    for request in requests:
        partition = request.partition_key
        if isinstance(partition, dg.MultiPartitionKey):
            keys["assessor"].append(partition.keys_by_dimension["assessor"])
            keys["unit"].append(partition.keys_by_dimension["unit"])  # no run of an imported unit has made it known
        elif partition is not None:
            keys["experiment" if request.job_name == evaluation_report_job.name else "unit"].append(partition)
    for name, found in keys.items():
        if found:
            yield dg.AddDynamicPartitionsRequest(name, found)


def _admission(launch: UnitLaunch) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        "admissions",
        partition=launch.unit,
        description="What the ledger pins for this unit.",
        metadata={name: "none" if value is None else str(value) for name, value in launch.admission.items()},
        tags={"dagster/data_version": f"{launch.admission['spec']}:{launch.admission['policy']}"},
    )
