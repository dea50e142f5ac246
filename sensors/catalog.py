"""Shows what was published outside the graph: task sets and base policies of the ledger become partitions."""

import dagster as dg

from domain.records.canonical import digest_of
from resources.synth import SynthResource
from sensors.jobs import CATALOG_JOBS, base_policy_job, task_set_job
from sensors.loose import loose

_AT_ONCE = 4
_ALL_SHOWN = "everything published is shown"


@loose.sensor(jobs=list(CATALOG_JOBS), minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def catalog(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SensorResult:
    """Materialize task sets and base policies that `synth` has published and the graph does not show yet."""
    with synth.platform().ledger.snapshot() as tx:
        task_sets = [reference.partition_key for reference in tx.catalog.task_sets()]
        policies = [policy.recipe_digest for policy in tx.catalog.base_policies()]
    published = digest_of([task_sets, policies])
    if context.cursor == published:
        # Opening Dagster's databases costs more than the rest of the tick.
        return dg.SensorResult(skip_reason=_ALL_SHOWN)
    requests: list[dg.RunRequest] = []
    keys: list[dg.AddDynamicPartitionsRequest] = []
    for name, there, job in (("task_set", task_sets, task_set_job), ("base_policy", policies, base_policy_job)):
        known = set(context.instance.get_dynamic_partitions(name))
        new = [key for key in there if key not in known][:_AT_ONCE]
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
        skip_reason=None if requests else _ALL_SHOWN,
        cursor=None if requests else published,
        dynamic_partitions_requests=keys,
    )
