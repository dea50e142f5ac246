"""``checkpoints``: one optimizer step behind the fence, then sampler weights and trainer state."""

import asyncio

import dagster as dg

from assets.learning_facts import checkpoint_facts
from assets.partitions import UNITS
from assets.stamps import CODE_VERSION, OWNERS, Materialized, materialized, version_of
from domain.errors import SynthError
from domain.service.learning import Advance, advance
from domain.service.platform import Platform
from resources.synth import SynthResource

_LOADS = dg.AssetCheckSpec(
    "adapter_loads",
    asset="checkpoints",
    description="The model process loads the new policy version and can answer with it.",
)


@dg.asset(
    partitions_def=UNITS,
    deps=["datums"],
    check_specs=[_LOADS],
    group_name="learning",
    owners=OWNERS,
    kinds={"pytorch"},
    code_version=CODE_VERSION,
)
def checkpoints(context: dg.AssetExecutionContext, synth: SynthResource) -> Materialized:
    """The policy after a batch: contributions that the stream has not, one step, the next batch admitted.

    A step that may or may not have happened blocks the training until evidence or an operator resolves it. A batch
    without signal takes no step: its checkpoint is the policy it started from.
    """
    platform = synth.platform()
    step, loads = asyncio.run(_advance_and_load(platform, context.partition_key, context.run.run_id))
    return materialized(
        checkpoint_facts(platform, step),
        version_of([step.update.state.value, step.checkpoint and step.checkpoint.version]),
        checks=[loads],
    )


async def _advance_and_load(platform: Platform, unit: str, holder: str) -> tuple[Advance, dg.AssetCheckResult]:
    step = await advance(platform, unit, holder)
    policy = step.checkpoint.version if step.checkpoint else step.update.parent
    try:
        await platform.model.serve(policy)
    except SynthError as error:
        return step, dg.AssetCheckResult(passed=False, metadata={"policy": policy.name, "error": str(error)})
    return step, dg.AssetCheckResult(passed=True, metadata={"policy": policy.name})
