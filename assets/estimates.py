"""Estimates as metadata: a value, its interval and what it rests on. Undefined stays absent, never 0."""

from assets.stamps import Facts
from domain.maths.statistics import Estimate
from domain.records.wording import counted


def spoken(estimate: Estimate) -> str:
    """Return ``0.62 [0.51, 0.73]``, or why there is no value."""
    if estimate.value is None:
        return "undefined: nothing is scored"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}, no interval: one task"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def mean_facts(estimate: Estimate) -> Facts:
    """Return a mean reward with interval and coverage; ``mean_reward`` is plotted over partitions."""
    coverage = estimate.coverage
    n = f"{counted(estimate.n_tasks, 'task')}, {counted(estimate.n_attempts, 'attempt')}"
    facts: Facts = {
        "mean": f"{spoken(estimate)}, n = {n} ({estimate.method})",
        "n_scored": coverage.n_scored,
        "n_ungraded": coverage.n_ungraded,
        "n_fail_closed": coverage.n_fail_closed,
        "n_total": coverage.n_total,
    }
    if estimate.value is not None:
        facts["mean_reward"] = estimate.value
    return facts
