"""The code location: packages loaded, resources wired. No logic."""

import dagster as dg

from assets.admissions import admissions
from assets.base_policies import base_policies
from assets.checkpoints import checkpoints
from assets.evaluations import evaluations
from assets.experiment_specs import experiment_specs
from assets.regraded_groups import regraded_groups
from assets.regrades import regrades
from assets.task_sets import task_sets
from assets.unit_products import unit_products
from resources.synth import SynthResource
from sensors.benchmarks import benchmark_schedules
from sensors.catalog import catalog
from sensors.dispatcher import dispatcher
from sensors.endings import run_cancelled, run_failed
from sensors.evaluate_new_checkpoints import evaluate_new_checkpoints
from sensors.janitor import janitor
from sensors.jobs import JOBS

defs = dg.Definitions(
    assets=[
        base_policies,
        task_sets,
        admissions,
        experiment_specs,
        unit_products,
        checkpoints,
        regrades,
        regraded_groups,
        evaluations,
    ],
    jobs=JOBS,
    sensors=[catalog, dispatcher, run_failed, run_cancelled, evaluate_new_checkpoints, janitor],
    schedules=benchmark_schedules(),
    resources={"synth": SynthResource()},
    executor=dg.in_process_executor,
)
