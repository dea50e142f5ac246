"""Jobs: which assets a run of each kind of experiment makes. Steps share one process: each start costs a second."""

from typing import Any

import dagster as dg

from domain.records.experiment import ExperimentKind
from sensors.loose import loose
from sensors.submission import EXAMPLE, submit_experiment

_CHAIN = ("experiment_specs", "trials", "assessments", "qualified_groups", "datums", "checkpoints")


def _job(name: str, description: str, *assets: str) -> Any:
    selection = dg.AssetSelection.assets(*assets)
    return loose.define_asset_job(
        name, selection=selection, description=description, executor_def=dg.in_process_executor
    )


unscored_job: Any = _job("unscored_job", "Trials of a unit, without assessment.", *_CHAIN[:2])
evaluation_job: Any = _job("evaluation_job", "Trials of a shard, assessed and qualified.", *_CHAIN[:4])
training_job: Any = _job("training_job", "A batch of a training, up to its optimizer step.", *_CHAIN)
regrade_job: Any = _job("regrade_job", "Retained outputs of a unit, assessed again.", "regrades", "regraded_groups")
evaluation_report_job: Any = _job("evaluation_report_job", "The numbers of a finished experiment.", "evaluations")
task_set_job: Any = _job("task_set_job", "A published task set with its checks.", "task_sets")
base_policy_job: Any = _job("base_policy_job", "A base policy and its facts.", "base_policies")


@loose.job(executor_def=dg.in_process_executor, config=EXAMPLE)
def submit_experiment_job() -> None:
    """Submit an experiment from the Launchpad: the same documents, and the same acceptance, as `synth run start`."""
    submit_experiment()


UNIT_JOBS: dict[ExperimentKind, Any] = {
    ExperimentKind.UNSCORED: unscored_job,
    ExperimentKind.EVALUATION: evaluation_job,
    ExperimentKind.TRAINING: training_job,
    ExperimentKind.REGRADE: regrade_job,
}
"""What the dispatcher launches for a unit."""

CATALOG_JOBS: tuple[Any, ...] = (task_set_job, base_policy_job)

JOBS: tuple[Any, ...] = (*UNIT_JOBS.values(), evaluation_report_job, *CATALOG_JOBS, submit_experiment_job)
