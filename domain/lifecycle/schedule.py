"""Which tasks a unit holds: a pure function of the pinned spec, so that any process finds the same."""

from collections.abc import Sequence
from math import ceil

from domain.records.canonical import digest_bytes
from domain.records.experiment import ExperimentKind, ExperimentSpec
from domain.records.profile import Order, Plan
from domain.records.task import TaskEntry


def n_units(kind: ExperimentKind, plan: Plan, n_tasks: int) -> int:
    """Return how many units an experiment has: batches of a training, shards otherwise."""
    if kind is ExperimentKind.TRAINING:
        return plan.batches
    return max(1, ceil(_n_taken(plan, n_tasks) / plan.shard_tasks))


def unit_tasks(spec: ExperimentSpec, tasks: Sequence[TaskEntry], index: int) -> tuple[TaskEntry, ...]:
    """Return the tasks of the ``index``-th unit, one for each group, in order of group.

    Evaluations take consecutive shards. Trainings walk the task set again and again; each pass is its own
    permutation, so the data cursor is the batch index alone.
    """
    plan = spec.plan
    if spec.kind is not ExperimentKind.TRAINING:
        taken = _pass(plan, tasks, 0)[: _n_taken(plan, len(tasks))]
        return tuple(taken[index * plan.shard_tasks : (index + 1) * plan.shard_tasks])
    n_taken = _n_taken(plan, len(tasks))
    first = index * plan.groups_per_batch
    passes: dict[int, Sequence[TaskEntry]] = {}
    groups: list[TaskEntry] = []
    for position in range(first, first + plan.groups_per_batch):
        number, offset = divmod(position, n_taken)
        if number not in passes:
            passes[number] = _pass(plan, tasks[:n_taken], number)
        groups.append(passes[number][offset])
    return tuple(groups)


def attempt_seed(plan: Plan, unit: str, group: int, attempt: int) -> int:
    """Return the 31-bit sampling seed of one attempt."""
    return int(digest_bytes(f"{plan.seed}:{unit.partition('.')[2]}:{group}:{attempt}".encode())[:8], 16) >> 1


def _n_taken(plan: Plan, n_tasks: int) -> int:
    return n_tasks if plan.tasks is None else min(plan.tasks, n_tasks)


def _pass(plan: Plan, tasks: Sequence[TaskEntry], number: int) -> Sequence[TaskEntry]:
    if plan.order is Order.LISTED:
        return tasks
    return sorted(tasks, key=lambda entry: digest_bytes(f"{plan.seed}:{number}:{entry.digest}".encode()))
