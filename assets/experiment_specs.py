"""``experiment_specs``: what a unit pins, read and checked again before anything runs."""

import dagster as dg

from assets.partitions import UNITS
from assets.stamps import CODE_VERSION, OWNERS, experiment_facts, json_fact, materialized, version_of
from domain.service.units import unit_spec
from resources.synth import SynthResource


@dg.asset(
    partitions_def=UNITS,
    deps=["admissions"],
    group_name="experiments",
    owners=OWNERS,
    kinds={"ledger"},
    code_version=CODE_VERSION,
)
def experiment_specs(context: dg.AssetExecutionContext, synth: SynthResource) -> dg.MaterializeResult[None]:
    """The pinned spec of a unit: task set by digest, actor, assessor, plan and the policy version to sample."""
    unit, experiment, task_set = unit_spec(synth.platform(), context.partition_key)
    spec = experiment.spec
    policy = unit.policy.name if unit.policy else None
    return materialized(
        {
            **experiment_facts(experiment, unit.unit),
            "task_set": str(task_set.reference),
            "task_set_sha256": task_set.digest,
            "n_tasks": task_set.n_tasks,
            "actor_sha256": spec.actor_digest,
            "assessor": spec.assessor,
            "policy": policy or "none",
            "plan": json_fact(spec.plan),
            "labels": json_fact(spec.labels),
            "spec_sha256": experiment.spec_digest,
        },
        version_of([experiment.spec_digest, policy, unit.index]),
    )
