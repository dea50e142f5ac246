"""Shows what was published outside the graph: task sets and base policies of the ledger become partitions."""

import dagster as dg

from resources.synth import SynthResource
from sensors.jobs import CATALOG_JOBS, base_policy_job, task_set_job
from sensors.loose import loose

_AT_ONCE = 4


@loose.sensor(jobs=list(CATALOG_JOBS), minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def catalog(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SensorResult:
    """Materialize task sets and base policies that `synth` has published and the graph does not show yet."""
    with synth.platform().ledger.snapshot() as tx:
        task_sets = [reference.partition_key for reference in tx.catalog.task_sets()]
        policies = [policy.recipe_digest for policy in tx.catalog.base_policies()]
    requests: list[dg.RunRequest] = []
    keys: list[dg.AddDynamicPartitionsRequest] = []
    for name, published, job in (("task_set", task_sets, task_set_job), ("base_policy", policies, base_policy_job)):
        known = set(context.instance.get_dynamic_partitions(name))
        new = [key for key in published if key not in known][:_AT_ONCE]
        requests += [
            dg.RunRequest(
                run_key=f"{name}:{key}",
                job_name=job.name,
                partition_key=key,
                tags={"kind": name, "dagster/priority": "-1"},
            )
            for key in new
        ]
        keys += [dg.AddDynamicPartitionsRequest(name, new)] if new else []
    return dg.SensorResult(
        run_requests=requests or None,
        skip_reason=None if requests else "everything published is shown",
        dynamic_partitions_requests=keys,
    )
