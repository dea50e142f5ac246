"""``admissions``: the token that pins a unit's inputs. External: only the dispatcher emits it, from the ledger."""

import dagster as dg

from assets.partitions import UNITS
from assets.stamps import OWNERS

# The edges to what a token pins end here. A spec that depended on every task set version itself would turn stale
# with each new one; an external asset never does. Source: Dagster 1.13, ``CachingStaleStatusResolver``.
admissions = dg.AssetSpec(
    "admissions",
    partitions_def=UNITS,
    deps=[
        dg.AssetDep("task_sets", partition_mapping=dg.AllPartitionMapping()),
        dg.AssetDep("base_policies", partition_mapping=dg.AllPartitionMapping()),
    ],
    description=(
        "The token that pins task set, actor, assessor, plan and policy version of a unit. The dispatcher emits it "
        "from the ledger, so that the policy of the next batch is an input and the training loop stays acyclic."
    ),
    group_name="experiments",
    owners=OWNERS,
    kinds={"ledger"},
)
