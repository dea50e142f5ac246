"""What a trial of a task takes of the budget, and what can never fit into it."""

from dataclasses import replace

from domain.lifecycle.step_view import step_view
from domain.lifecycle.trial import box_limits
from domain.records.capacity import Capacity
from domain.records.profile import Overrides, Plan
from domain.records.task import Task, TaskEnvironment

UNDECLARED_CPUS = 1.0
"""A box without a CPU limit counts as one CPU."""


def shaped(task: Task, plan: Plan) -> Task:
    """Return the task with the plan's sizes of boxes instead of its own."""
    environment = _overridden(task.environment, plan.overrides)
    own = task.verifier_environment
    steps = tuple(
        replace(step, verifier_environment=_overridden(step.verifier_environment, plan.overrides))
        if step.verifier_environment is not None
        else step
        for step in task.steps
    )
    verifier = None if own is None else _overridden(own, plan.overrides)
    return replace(task, environment=environment, verifier_environment=verifier, steps=steps)


def trial_demand(task: Task) -> Capacity:
    """Return what one trial takes: the larger of the agent's box and each verifier's, which follow one another."""
    places = [task.environment]
    views = [task, *(step_view(task, step) for step in task.steps)]
    places += [view.verifier_environment for view in views if view.verifier_environment is not None]
    demand = Capacity(trials=1.0)
    for environment in places:
        demand = demand.larger(_box(task, environment))
    return demand


def never_fits(task: Task, budget: Capacity) -> tuple[str, ...]:
    """Name every resource of which one trial takes more than there is, whoever else waits; empty: it fits."""
    demand = trial_demand(task)
    return tuple(
        f"{name}: a trial takes {getattr(demand, name):g}, the budget has {getattr(budget, name):g}"
        for name in demand.lacking(budget)
    )


def _box(task: Task, environment: TaskEnvironment) -> Capacity:
    limits = box_limits(replace(task, environment=environment))
    return Capacity(
        cpus=environment.cpus or UNDECLARED_CPUS,
        memory_mb=limits.memory_mb or 0,
        disk_mb=limits.disk_mb or 0,
        gpus=environment.gpus or 0,
    )


def _overridden(environment: TaskEnvironment, sizes: Overrides) -> TaskEnvironment:
    return replace(
        environment,
        cpus=environment.cpus if sizes.cpus is None else sizes.cpus,
        memory_mb=environment.memory_mb if sizes.memory_mb is None else sizes.memory_mb,
        storage_mb=environment.storage_mb if sizes.storage_mb is None else sizes.storage_mb,
        gpus=environment.gpus if sizes.gpus is None else sizes.gpus,
    )
