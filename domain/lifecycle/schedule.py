"""Which tasks a unit holds: a pure function of the pinned spec, so that any process finds the same."""

from math import ceil

from domain.maths.permutation import permuted
from domain.records.canonical import digest_bytes
from domain.records.experiment import ExperimentKind, ExperimentSpec
from domain.records.profile import Order, Plan


def n_units(kind: ExperimentKind, plan: Plan, n_tasks: int) -> int:
    """Return how many units an experiment has: batches of a training, shards otherwise."""
    if kind is ExperimentKind.TRAINING:
        return plan.batches
    return max(1, ceil(_n_taken(plan, n_tasks) / plan.shard_tasks))


def unit_positions(spec: ExperimentSpec, n_tasks: int, index: int) -> tuple[int, ...]:
    """Return where in the task set the tasks of the ``index``-th unit are, one for each group, in order of group.

    Evaluations take consecutive shards. Trainings walk the task set again and again; each pass is its own
    permutation, so the data cursor is the batch index alone.
    """
    plan = spec.plan
    n_taken = _n_taken(plan, n_tasks)
    if spec.kind is not ExperimentKind.TRAINING:
        shard = range(index * plan.shard_tasks, min(n_taken, (index + 1) * plan.shard_tasks))
        return tuple(_in_pass(plan, n_tasks, 0, position) for position in shard)
    first = index * plan.groups_per_batch
    walk = (divmod(position, n_taken) for position in range(first, first + plan.groups_per_batch))
    return tuple(_in_pass(plan, n_taken, number, offset) for number, offset in walk)


def attempt_seed(plan: Plan, unit: str, group: int, attempt: int) -> int:
    """Return the 31-bit sampling seed of one attempt."""
    return int(digest_bytes(f"{plan.seed}:{unit.partition('.')[2]}:{group}:{attempt}".encode())[:8], 16) >> 1


def _n_taken(plan: Plan, n_tasks: int) -> int:
    return n_tasks if plan.tasks is None else min(plan.tasks, n_tasks)


def _in_pass(plan: Plan, n_tasks: int, number: int, offset: int) -> int:
    if plan.order is Order.LISTED:
        return offset
    return permuted(offset, n_tasks, key=f"{plan.seed}:{number}")
