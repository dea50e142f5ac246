"""Which launches have a run already: Dagster's own records, asked by run key."""

from collections.abc import Iterable, Sequence

import dagster as dg

from domain.service.dispatch import UnitLaunch, unit_run_ended
from domain.service.platform import Platform

RUN_KEY = "dagster/run_key"
"""Tag under which Dagster keeps a run key. Source: Dagster 1.13, ``dagster._core.storage.tags``."""


def runs_by_key(instance: dg.DagsterInstance, run_keys: Iterable[str]) -> dict[str, dg.DagsterRun]:
    """Return the run of each run key that has one."""
    keys = list(run_keys)
    if not keys:
        return {}
    runs = instance.get_runs(filters=dg.RunsFilter(tags={RUN_KEY: keys}))
    return {run.tags[RUN_KEY]: run for run in runs}


def waiting_launches(
    instance: dg.DagsterInstance, platform: Platform, launches: Sequence[UnitLaunch]
) -> list[UnitLaunch]:
    """Return launches that have no run yet.

    A launch whose run has ended, while its unit still waits, never took the unit: it is noted as a lost run, and
    the next tick launches the next generation.
    """
    known = runs_by_key(instance, [launch.run_key for launch in launches])
    for launch in launches:
        run = known.get(launch.run_key)
        if run is not None and run.is_finished:
            unit_run_ended(
                platform, launch.unit, reason=f"run {run.run_id} ended as {run.status.value} without the unit"
            )
    return [launch for launch in launches if launch.run_key not in known]
