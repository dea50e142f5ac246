"""``regrades``: another assessment of the same retained outputs, side by side with the canonical one."""

import asyncio

import dagster as dg

from assets.partitions import REGRADED_UNITS
from assets.progress import log_progress
from assets.stamps import CODE_VERSION, OWNERS, manifest_facts, materialized, version_of
from assets.unit_facts import assessment_facts
from domain.service.regrade import regrade_unit
from resources.synth import SynthResource


@dg.asset(
    partitions_def=REGRADED_UNITS,
    deps=["trials"],
    group_name="regrading",
    owners=OWNERS,
    kinds={"json"},
    code_version=CODE_VERSION,
)
def regrades(context: dg.AssetExecutionContext, synth: SynthResource) -> dg.MaterializeResult[None]:
    """Retained outputs of a unit assessed again in fresh boxes; the actor never runs, the canonical panel stays."""
    platform = synth.platform()
    keys = dimensions(context)
    work = regrade_unit(platform, keys["assessor"], keys["unit"], context.run.run_id, log_progress(context.log))
    ref, manifest = asyncio.run(work)
    facts = assessment_facts(platform, keys["unit"], manifest)
    return materialized(
        {"experiment": keys["assessor"], "unit": keys["unit"], **facts, **manifest_facts(platform, ref)},
        version_of(ref),
    )


def dimensions(context: dg.AssetExecutionContext) -> dict[str, str]:
    """Return the keys by dimension: the joined key has them in order of the dimensions' names."""
    return dict(zip(("assessor", "unit"), context.partition_key.split("|"), strict=True))
