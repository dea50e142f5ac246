"""``trials``, ``assessments``, ``qualified_groups``, ``datums``: the products of a unit, made by one step.

Inside a unit the groups pipeline, so the four come from one function. A subset reads retained manifests and never
samples unless ``trials`` is selected.
"""

import asyncio
from collections.abc import Coroutine, Iterator

import dagster as dg
from pydantic import Field

from assets.partitions import UNITS
from assets.progress import log_progress
from assets.stamps import CODE_VERSION, OWNERS, materialized, version_of
from assets.unit_checks import CHECKS, results_of
from assets.unit_facts import facts_of
from domain.lifecycle.lease import UnitCancelledError
from domain.service.units import Stage, UnitResult, run_unit
from resources.synth import SynthResource

_DESCRIPTIONS = {
    Stage.TRIALS: "Attempts as executed: retained outputs, logs and the interactions behind every model call.",
    Stage.ASSESSMENTS: "The pinned assessor's reward panel for each trial, over retained outputs only.",
    Stage.QUALIFIED_GROUPS: "Sampling groups after eligibility: who is kept with which advantage, who is out and why.",
    Stage.DATUMS: "Training rows packed from the interactions of groups with signal. Absent outside trainings.",
}
_ABOVE = {
    Stage.TRIALS: "experiment_specs",
    Stage.ASSESSMENTS: Stage.TRIALS.value,
    Stage.QUALIFIED_GROUPS: Stage.ASSESSMENTS.value,
    Stage.DATUMS: Stage.QUALIFIED_GROUPS.value,
}

_FIRST_RUN = "dagster/root_run_id"
"""Tag of a re-execution: the run that was first. Source: Dagster 1.13, ``dagster._core.storage.tags``."""


class UnitConfig(dg.Config):
    """What an operator may ask of a materialization."""

    fresh_sample: bool = Field(
        default=False,
        description=(
            "Sample every attempt of the unit afresh instead of keeping its finished trials. The earlier trials stay "
            "and can be read; re-executing this run continues the sample that it began."
        ),
    )


@dg.multi_asset(
    name="unit_products",
    specs=[
        dg.AssetSpec(
            stage.value,
            deps=[_ABOVE[stage]],
            description=_DESCRIPTIONS[stage],
            skippable=True,
            group_name="learning" if stage is Stage.DATUMS else "experiments",
            owners=OWNERS,
            kinds={"arrow"} if stage is Stage.DATUMS else {"json"},
            code_version=CODE_VERSION,
        )
        for stage in Stage
    ],
    check_specs=CHECKS,
    partitions_def=UNITS,
    can_subset=True,
)
def unit_products(
    context: dg.AssetExecutionContext, config: UnitConfig, synth: SynthResource
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Run what is missing of a unit and name its manifests; finished trials are kept unless a fresh sample is asked."""
    platform = synth.platform()
    stages = frozenset(Stage(key.to_user_string()) for key in context.selected_asset_keys)
    run = context.run
    fresh = run.tags.get(_FIRST_RUN, run.run_id) if config.fresh_sample else None
    work = run_unit(platform, context.partition_key, run.run_id, stages, log_progress(context.log), fresh=fresh)
    result = _awaited(work)
    for stage in Stage:
        if stage in stages and stage in result.refs:
            yield materialized(facts_of(platform, result, stage), version_of(result.refs[stage]), key=stage.value)
    yield from asyncio.run(results_of(platform, result, context.selected_asset_check_keys))


def _awaited(work: Coroutine[None, None, UnitResult]) -> UnitResult:
    """Run the work; the operator's cancellation is no failure of the code, so nothing tries again."""
    try:
        return asyncio.run(work)
    except UnitCancelledError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
