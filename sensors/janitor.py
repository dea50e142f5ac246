"""Ends what outlived its owner: boxes past their deadline or of dead processes, runs that no process works on."""

import asyncio

import dagster as dg

from domain.errors import NotFoundError
from domain.service.platform import Platform
from resources.synth import SynthResource
from sensors.loose import loose

_UNFINISHED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


@loose.sensor(minimum_interval_seconds=20, default_status=dg.DefaultSensorStatus.RUNNING)
def janitor(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SkipReason:
    """Sweep orphaned boxes, and mark runs as failed whose unit has a later generation: their process is gone."""
    platform = synth.platform()
    boxes = asyncio.run(_sweep(platform))
    runs = [run for run in context.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)) if _is_lost(platform, run)]
    for run in runs:
        context.instance.report_run_failed(run, "another run has taken over the unit of this one")
    return dg.SkipReason(f"ended {len(boxes)} boxes and {len(runs)} runs" if boxes or runs else "nothing was left over")


async def _sweep(platform: Platform) -> list[str]:
    now_ms = platform.clock.now_ms()
    return [box for sandbox in platform.sandboxes.values() for box in await sandbox.sweep(now_ms)]


def _is_lost(platform: Platform, run: dg.DagsterRun) -> bool:
    unit, generation = run.tags.get("unit"), run.tags.get("generation")
    if unit is None or generation is None:
        return False
    try:
        with platform.ledger.snapshot() as tx:
            row = tx.units.get(unit)
    except NotFoundError:
        return False
    return row.generation > int(generation) and row.lease_holder != run.run_id
