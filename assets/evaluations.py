"""``evaluations``: the numbers of one finished experiment, with intervals, coverage and cost."""

import dagster as dg

from assets.evaluation_facts import evaluation_facts
from assets.partitions import EXPERIMENTS
from assets.stamps import CODE_VERSION, OWNERS, materialized, version_of
from domain.service.dispatch import conclude_evaluation
from domain.service.evaluate import evaluation
from domain.service.ungraded import nothing_graded
from resources.synth import SynthResource


# No edge to ``assessments``: over all partitions it would mark a finished evaluation stale with every new unit
# (tests/assets/test_staleness.py). Data version and metadata name the manifests that were read instead.
@dg.asset(
    partitions_def=EXPERIMENTS,
    group_name="reports",
    owners=OWNERS,
    kinds={"report"},
    code_version=CODE_VERSION,
)
def evaluations(context: dg.AssetExecutionContext, synth: SynthResource) -> dg.MaterializeResult[None]:
    """Mean reward, pass@k and pass^k over tasks, by family, with what stands behind them. Ungraded is never zero.

    The dispatcher launches it when all shards are terminal; its data version is that of the assessments it read.
    """
    platform = synth.platform()
    report = evaluation(platform, context.partition_key)
    facts = evaluation_facts(platform, report)
    # The work was done, so it has succeeded; but that nobody got a reward must not look like a result.
    detail = nothing_graded(report.ungraded) if report.nothing_graded else ""
    conclude_evaluation(platform, context.partition_key, succeeded=True, detail=detail)
    return materialized(facts, version_of(list(report.sources)))
