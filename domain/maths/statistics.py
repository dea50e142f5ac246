"""Estimates over tasks with intervals and coverage: mean score, pass@k, pass^k. Never NaN; unscored is None.

The task is the unit of sampling: attempts at one task are not independent, so every interval is over tasks.

Source: facts/peers-and-statistics.md section D; Miller 2024, "Adding Error Bars to Evals".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from domain.errors import ConfigurationError
from domain.maths.distributions import normal_quantile, t_quantile
from domain.maths.scores import Coverage, TaskScores, coverage_of

_SMALL_SAMPLE = 30
"""Tasks below which a share takes Wilson's interval. Source: facts/peers-and-statistics.md section D."""
_NEAR_EDGE = 0.1
"""Distance from 0 or 1 below which it does so, too."""
_SCORES = (0.0, 1.0)
"""Where scores usually lie; what an interval without spread needs to know."""
_ROUNDING = 1e-12
"""Sums of deviations below this share of the largest deviation are 0 but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its interval and what it rests on. None: undefined, never 0 or NaN."""

    value: float | None
    low: float | None
    high: float | None
    n_tasks: int
    """Tasks inside the value."""
    n_attempts: int
    """Scored attempts inside the value."""
    method: str
    """How the interval was made."""
    coverage: Coverage
    n_left_out: int = 0
    """Tasks of the set that are not inside the value."""
    errors_as_zero: float | None = None
    """The value if each ungraded attempt had scored 0."""
    errors_as_best: float | None = None
    """The value if each ungraded attempt had the best score."""

    def headline(self, ungraded_limit: float) -> float | None:
        """Return the value, or None when too large a share of attempts is ungraded."""
        return self.value if self.coverage.ungraded_share <= ungraded_limit else None


def mean_score(tasks: Sequence[TaskScores], *, confidence: float = 0.95, best: float = 1.0) -> Estimate:
    """Return the mean of task means with an interval over tasks.

    Interval: cluster-robust by family when a family holds several tasks (a task without one is its own); Wilson for
    single binary attempts at few tasks or near 0 or 1, and for all-0 or all-1 results; else t with T - 1 degrees.
    Scores in [0, 1] that are all the same get Wilson's bound on what was not seen (``t_estimate``), never zero width.

    Args:
        tasks: every planned task.
        confidence: of the interval, two-sided.
        best: the score an ungraded attempt is given in ``errors_as_best``.
    """
    scored = [task for task in tasks if task.scores]
    means = [task.mean or 0.0 for task in scored]
    keys = [task.family or task.task for task in scored]
    if len(set(keys)) < len(keys):
        estimate = clustered_estimate(means, keys, confidence=confidence, bounds=_SCORES)
    elif _wants_wilson(scored, means):
        estimate = wilson_estimate(round(sum(means)), len(means), confidence=confidence)
    else:
        estimate = t_estimate(means, confidence=confidence, bounds=_SCORES)
    return replace(
        estimate,
        n_attempts=sum(len(task.scores) for task in scored),
        coverage=coverage_of(tasks),
        n_left_out=len(tasks) - len(scored),
        errors_as_zero=_filled_mean(tasks, 0.0),
        errors_as_best=_filled_mean(tasks, best),
    )


def _wants_wilson(scored: Sequence[TaskScores], means: Sequence[float]) -> bool:
    if not means or any(mean not in (0.0, 1.0) for mean in means):
        return False
    share = sum(means) / len(means)
    single = all(len(task.scores) == 1 for task in scored)
    at_edge = share in (0.0, 1.0)
    return at_edge or (single and (len(means) < _SMALL_SAMPLE or min(share, 1 - share) < _NEAR_EDGE))


def _filled_mean(tasks: Sequence[TaskScores], fill: float) -> float | None:
    filled = [
        (math.fsum(task.scores) + fill * task.n_ungraded) / (len(task.scores) + task.n_ungraded)
        for task in tasks
        if task.scores or task.n_ungraded
    ]
    return math.fsum(filled) / len(filled) if filled else None


def pass_at_k(task: TaskScores, k: int, *, success: float = 1.0) -> float | None:
    """Return the unbiased chance that any of k attempts succeeds: 1 - C(n-c, k) / C(n, k), by products.

    None when fewer than k attempts are scored. A success is a score of at least ``success``.

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.
    """
    n_attempts, n_success = _counts(task, success)
    if k < 1 or n_attempts < k:
        return None
    if n_attempts - n_success < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n_attempts - n_success + 1, n_attempts + 1))


def pass_hat_k(task: TaskScores, k: int, *, success: float = 1.0) -> float | None:
    """Return the unbiased chance that all of k attempts succeed: C(c, k) / C(n, k), by products.

    None when fewer than k attempts are scored.

    Source: Yao et al. 2024, tau-bench (arXiv 2406.12045), section 4.
    """
    n_attempts, n_success = _counts(task, success)
    if k < 1 or n_attempts < k:
        return None
    return math.prod((n_success - i) / (n_attempts - i) for i in range(k)) if n_success >= k else 0.0


def _counts(task: TaskScores, success: float) -> tuple[int, int]:
    return len(task.scores), sum(score >= success for score in task.scores)


def pass_at_k_over_tasks(
    tasks: Sequence[TaskScores], k: int, *, success: float = 1.0, confidence: float = 0.95
) -> Estimate:
    """Return mean pass@k over tasks with at least k scored attempts; the others are counted in ``n_left_out``."""
    return _over_tasks(tasks, lambda task: pass_at_k(task, k, success=success), success, confidence)


def pass_hat_k_over_tasks(
    tasks: Sequence[TaskScores], k: int, *, success: float = 1.0, confidence: float = 0.95
) -> Estimate:
    """Return mean pass^k over tasks with at least k scored attempts; the others are counted in ``n_left_out``."""
    return _over_tasks(tasks, lambda task: pass_hat_k(task, k, success=success), success, confidence)


def _over_tasks(
    tasks: Sequence[TaskScores], measure: Callable[[TaskScores], float | None], success: float, confidence: float
) -> Estimate:
    inside = [(task, value) for task in tasks if (value := measure(task)) is not None]
    keys = [task.family or task.task for task, _ in inside]
    values = [value for _, value in inside]
    if len(set(keys)) < len(keys):
        estimate = clustered_estimate(values, keys, confidence=confidence, bounds=_SCORES)
    elif values and set(values) in ({0.0}, {1.0}):
        estimate = wilson_estimate(round(sum(values)), len(values), confidence=confidence)
    else:
        estimate = t_estimate(values, confidence=confidence, bounds=_SCORES)
    return replace(
        estimate,
        n_attempts=sum(len(task.scores) for task, _ in inside),
        coverage=coverage_of(tasks),
        n_left_out=len(tasks) - len(inside),
        errors_as_zero=_filled_measure(tasks, measure, success - 1.0),
        errors_as_best=_filled_measure(tasks, measure, success),
    )


def _filled_measure(
    tasks: Sequence[TaskScores], measure: Callable[[TaskScores], float | None], fill: float
) -> float | None:
    filled = [measure(replace(task, scores=(*task.scores, *(fill,) * task.n_ungraded))) for task in tasks]
    defined = [value for value in filled if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def t_estimate(
    values: Sequence[float], *, confidence: float = 0.95, bounds: tuple[float, float] | None = None
) -> Estimate:
    """Return the mean of one value per task, +- t(T-1) x sd / sqrt(T); no interval below two tasks.

    Given the bounds between which values lie, the interval is cut there: a mean lies between them, too.

    Values that are all the same say nothing of a spread, and zero width would claim certainty. Given the bounds, the
    interval is then [v - u (v - low), v + u (high - v)], where u is Wilson's upper limit of the share of tasks that
    would have shown another value: none of T did. For all-0 and all-1 it is Wilson's own.

    Args:
        values: one per task, shape (T,).
        confidence: of the interval, two-sided.
        bounds: between which every value lies; None when unknown.
    """
    n_tasks = len(values)
    if n_tasks == 0:
        return _bare(None, 0, "nothing scored")
    if n_tasks == 1:
        return _bare(float(values[0]), 1, "no interval: one task")
    if (same := _same_value(values, bounds)) is not None:
        return _without_spread(same, n_tasks, float(n_tasks), confidence, f"no spread over {n_tasks} tasks")
    values_T = np.asarray(values, dtype=np.float64)
    mean = float(values_T.mean())
    half = t_quantile((1 + confidence) / 2, n_tasks - 1) * float(values_T.std(ddof=1)) / math.sqrt(n_tasks)
    return _around(_bare(mean, n_tasks, "t over tasks"), mean, half, values, bounds)


def clustered_estimate(
    values: Sequence[float],
    clusters: Sequence[str | None],
    *,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Return the mean of one value per task with a cluster-robust interval, t with G - 1 degrees.

    SE^2 = G/(G-1) x sum over g of (sum of deviations in g)^2 / T^2. Where the deviations of every cluster cancel though
    tasks differ, it is 0, and the interval is the one over tasks. Values that are all the same take the bound of
    ``t_estimate``, with the number of independent tasks T^2 / (sum of squared cluster sizes): nothing in the data
    speaks against tasks of a cluster always going together, so each cluster counts once.

    Args:
        values: one per task, shape (T,).
        clusters: key of each task's cluster; no interval below two clusters.
        confidence: of the interval, two-sided.
        bounds: between which every value lies; None when unknown.

    Raises:
        ConfigurationError: a task has no cluster key.

    Source: inspect_ai 0.3 scorer/_metrics/std.py (cluster form with finite-cluster factor); Miller 2024, equation 4;
        Kish 1965, "Survey Sampling", section 5.4 (design effect 1 + (m - 1) x ICC, here with ICC = 1); Korn and
        Graubard 1998, Survey Methodology 24 (an interval for proportions by effective sample size).
    """
    if any(key is None for key in clusters) or len(clusters) != len(values):
        raise ConfigurationError(
            f"a cluster-robust interval needs one key for each of {len(values)} tasks",
            hint="give every task a family, or use the interval over tasks",
        )
    if not values:
        return _bare(None, 0, "nothing scored")
    values_T = np.asarray(values, dtype=np.float64)
    mean, n_tasks = float(values_T.mean()), len(values)
    names, inverse_T = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    n_clusters = len(names)
    if n_clusters == 1:
        return _bare(mean, n_tasks, "no interval: one cluster")
    if (same := _same_value(values, bounds)) is not None:
        n_effective = n_tasks**2 / float((np.bincount(inverse_T) ** 2).sum())
        return _without_spread(same, n_tasks, n_effective, confidence, f"no spread over {n_clusters} clusters")
    sums_G = np.bincount(inverse_T, weights=values_T - mean, minlength=n_clusters)
    if np.abs(sums_G).max() <= _ROUNDING * np.abs(values_T - mean).max():
        return t_estimate(values, confidence=confidence, bounds=bounds)
    error = math.sqrt(n_clusters / (n_clusters - 1) * float((sums_G**2).sum())) / n_tasks
    half = t_quantile((1 + confidence) / 2, n_clusters - 1) * error
    return _around(_bare(mean, n_tasks, f"t over {n_clusters} clusters"), mean, half, values, bounds)


def _around(
    bare: Estimate, mean: float, half: float, values: Sequence[float], bounds: tuple[float, float] | None
) -> Estimate:
    """Add mean +- half, cut where no mean can lie: of few tasks, t alone would reach far outside."""
    low, high = mean - half, mean + half
    if bounds is not None and bounds[0] <= min(values) and max(values) <= bounds[1]:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return replace(bare, low=low, high=high)


def wilson_estimate(n_success: int, n_trials: int, *, confidence: float = 0.95) -> Estimate:
    """Return a share with Wilson's score interval; None without trials.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if n_trials == 0:
        return _bare(None, 0, "nothing scored")
    share = n_success / n_trials
    low, high = _wilson(share, n_trials, confidence)
    return replace(_bare(share, n_trials, "wilson"), low=low, high=high)


def _wilson(share: float, n: float, confidence: float) -> tuple[float, float]:
    z = normal_quantile((1 + confidence) / 2)
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Same:
    """A value that all tasks share, and between what it lies."""

    value: float
    low: float
    high: float


def _same_value(values: Sequence[float], bounds: tuple[float, float] | None) -> _Same | None:
    value = float(values[0])
    if bounds is None or any(other != value for other in values) or not bounds[0] <= value <= bounds[1]:
        return None
    return _Same(value=value, low=bounds[0], high=bounds[1])


def _without_spread(same: _Same, n_tasks: int, n_effective: float, confidence: float, where: str) -> Estimate:
    _, unseen = _wilson(0.0, n_effective, confidence)
    return replace(
        _bare(same.value, n_tasks, f"wilson, {where}"),
        low=same.value - unseen * (same.value - same.low),
        high=same.value + unseen * (same.high - same.value),
    )


def _bare(value: float | None, n_tasks: int, method: str) -> Estimate:
    none = Coverage(n_scored=n_tasks, n_ungraded=0, n_fail_closed=0, n_total=n_tasks)
    return Estimate(value=value, low=None, high=None, n_tasks=n_tasks, n_attempts=n_tasks, method=method, coverage=none)
