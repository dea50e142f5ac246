"""Ends what outlived its owner: boxes past their deadline or of dead processes, runs that no process works on."""

import asyncio

import dagster as dg

from domain.errors import NotFoundError, SynthError
from domain.lifecycle.deadline import within
from domain.ports import Sandbox
from domain.service.platform import Platform
from resources.synth import SynthResource
from sensors.loose import loose

_SWEEP_S = 15.0
_UNFINISHED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


@loose.sensor(minimum_interval_seconds=20, default_status=dg.DefaultSensorStatus.RUNNING)
def janitor(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SkipReason:
    """Sweep orphaned boxes, and mark runs as failed whose unit has a later generation: their process is gone."""
    platform = synth.platform()
    boxes, problems = asyncio.run(sweep(platform))
    for problem in problems:
        context.log.warning("boxes could not be swept: %s", problem)
    runs = [run for run in context.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)) if _is_lost(platform, run)]
    for run in runs:
        context.instance.report_run_failed(run, "another run has taken over the unit of this one")
    return dg.SkipReason(f"ended {len(boxes)} boxes and {len(runs)} runs" if boxes or runs else "nothing was left over")


async def sweep(platform: Platform) -> tuple[list[str], list[str]]:
    """Return the boxes that were ended, and what went wrong: one sandbox that hangs or fails keeps no other waiting."""
    sandboxes = platform.sandboxes.values()
    found = await asyncio.gather(*(_swept(platform, sandbox) for sandbox in sandboxes), return_exceptions=True)
    boxes: list[str] = []
    problems: list[str] = []
    for sandbox, answer in zip(sandboxes, found, strict=True):
        if isinstance(answer, (SynthError, TimeoutError)):
            problems.append(f"{sandbox.name}: {answer}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            boxes += answer
    return boxes, problems


async def _swept(platform: Platform, sandbox: Sandbox) -> tuple[str, ...]:
    return await within(platform.clock, _SWEEP_S, sandbox.sweep(platform.clock.now_ms()))


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
