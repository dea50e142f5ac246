"""Comparing two systems task by task: paired difference, exact sign-flip p, what could have been detected.

Source: facts/peers-and-statistics.md section D, "Comparing two systems" and "Power".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from domain.errors import ConfigurationError
from domain.maths.distributions import normal_quantile
from domain.maths.scores import Coverage, TaskScores, coverage_of
from domain.maths.statistics import Estimate, clustered_estimate, t_estimate

_EXACT_UP_TO = 18
"""Non-zero differences up to which every sign pattern is enumerated: 2^18 sums."""
_N_DRAWS = 20_000
_DRAWS_AT_ONCE = 500
_TIE = 1e-9
"""Relative tolerance when sums are compared, so that float noise makes no difference significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """System A less system B over the tasks scored on both sides."""

    difference: Estimate
    p_value: float | None
    """Two-sided sign-flip test; for single binary attempts this is the exact McNemar test."""
    p_method: str
    correlation: float | None
    """Of the task means; None when a side is constant."""
    n_missing_a: int
    """Tasks of either side that have no score on side A."""
    n_missing_b: int
    minimum_detectable: float | None
    """Smallest true difference that this design finds with 80 % power at 5 %."""


def paired_difference(
    side_a: Sequence[TaskScores], side_b: Sequence[TaskScores], *, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Return mean_A - mean_B over tasks scored on both sides, with a t interval over tasks or over families.

    Differences that are all the same, of scores in [0, 1], get the bound of ``t_estimate``, never zero width.

    Args:
        side_a: tasks of system A.
        side_b: tasks of system B, paired by ``task``.
        confidence: of the interval, two-sided.
        seed: of the draws, used only when the sign patterns are too many to enumerate.

    Raises:
        ConfigurationError: a side lists a task twice.
    """
    tasks_a, tasks_b = _by_task(side_a, "A"), _by_task(side_b, "B")
    names = list(dict.fromkeys([*tasks_a, *tasks_b]))
    with_a = {name for name, task in tasks_a.items() if task.scores}
    with_b = {name for name, task in tasks_b.items() if task.scores}
    both = [name for name in names if name in with_a and name in with_b]
    means_a = [tasks_a[name].mean or 0.0 for name in both]
    means_b = [tasks_b[name].mean or 0.0 for name in both]
    differences = [a - b for a, b in zip(means_a, means_b, strict=True)]
    keys = [tasks_a[name].family or name for name in both]
    clustered = len(set(keys)) < len(keys)
    inside = all(0.0 <= mean <= 1.0 for mean in [*means_a, *means_b])
    bounds = (-1.0, 1.0) if inside else None
    interval = (
        clustered_estimate(differences, keys, confidence=confidence, bounds=bounds)
        if clustered
        else t_estimate(differences, confidence=confidence, bounds=bounds)
    )
    p_value, p_method = sign_flip_p(_cluster_sums(differences, keys), seed=seed)
    return Comparison(
        difference=replace(
            interval,
            method=f"paired {interval.method}" if differences else interval.method,
            n_attempts=sum(len(side[name].scores) for side in (tasks_a, tasks_b) for name in both),
            coverage=_joint_coverage(side_a, side_b),
            n_left_out=len(names) - len(both),
        ),
        p_value=p_value,
        p_method=p_method,
        correlation=_correlation(means_a, means_b),
        n_missing_a=sum(name not in with_a for name in names),
        n_missing_b=sum(name not in with_b for name in names),
        minimum_detectable=_detectable(differences, keys),
    )


def _by_task(side: Sequence[TaskScores], label: str) -> dict[str, TaskScores]:
    tasks = {task.task: task for task in side}
    if len(tasks) < len(side):
        raise ConfigurationError(f"side {label} of the comparison lists a task twice", hint="merge its attempts first")
    return tasks


def _joint_coverage(side_a: Sequence[TaskScores], side_b: Sequence[TaskScores]) -> Coverage:
    return coverage_of([*side_a, *side_b])


def _cluster_sums(differences: Sequence[float], keys: Sequence[str]) -> list[float]:
    sums: dict[str, float] = {}
    for difference, key in zip(differences, keys, strict=True):
        sums[key] = sums.get(key, 0.0) + difference
    return list(sums.values())


def _correlation(means_a: Sequence[float], means_b: Sequence[float]) -> float | None:
    centred_a = np.asarray(means_a, dtype=np.float64) - (np.mean(means_a) if means_a else 0.0)
    centred_b = np.asarray(means_b, dtype=np.float64) - (np.mean(means_b) if means_b else 0.0)
    scale = math.sqrt(float((centred_a**2).sum()) * float((centred_b**2).sum()))
    return float((centred_a * centred_b).sum()) / scale if scale > 0 else None


def _detectable(differences: Sequence[float], keys: Sequence[str]) -> float | None:
    sums_G = np.asarray(_cluster_sums(differences, keys), dtype=np.float64)
    n_clusters = len(sums_G)
    if n_clusters < 2:  # noqa: PLR2004 - a variance needs two
        return None
    sizes_G = np.asarray(_cluster_sums([1.0] * len(keys), keys), dtype=np.float64)
    deviations_G = sums_G - sizes_G * float(np.mean(differences))
    variance = n_clusters / (n_clusters - 1) * float((deviations_G**2).sum()) / len(keys) ** 2
    return _power_factor(0.05, 0.8) * math.sqrt(variance)


def sign_flip_p(differences: Sequence[float], *, seed: int = 0) -> tuple[float | None, str]:
    """Return the two-sided p-value of a zero mean under random signs, and how it was computed.

    Exact by enumeration for few non-zero differences, exact by the binomial when all have one size (McNemar),
    else from seeded draws with the (1 + hits) / (1 + draws) form, which is never 0.

    Args:
        differences: independent under the null; tasks, or sums over clusters.
        seed: of the draws.

    Source: Fisher 1935, "The Design of Experiments", section 21; Phipson and Smyth 2010 for the drawn form.
    """
    if not differences:
        return None, "nothing to compare"
    sizes = np.abs(np.asarray(differences, dtype=np.float64))
    nonzero = sizes > _TIE * max(1e-300, float(sizes.max()))
    sizes_N = sizes[nonzero]
    if len(sizes_N) == 0:
        return 1.0, "exact: no task differs"
    observed = abs(float(np.asarray(differences, dtype=np.float64)[nonzero].sum()))
    limit = observed - _TIE * float(sizes_N.sum())
    if np.ptp(sizes_N) <= _TIE * float(sizes_N.max()):
        n_tasks = len(sizes_N)
        return _binomial_p(n_tasks, round((n_tasks + observed / float(sizes_N[0])) / 2)), "exact binomial (McNemar)"
    if len(sizes_N) <= _EXACT_UP_TO:
        sums = np.zeros(1)
        for size in sizes_N:
            sums = np.concatenate([sums + size, sums - size])
        return float((np.abs(sums) >= limit).mean()), "exact sign-flip"
    hits = _drawn_hits(sizes_N, limit, seed)
    return (1 + hits) / (1 + _N_DRAWS), f"sign-flip, {_N_DRAWS} draws"


def _binomial_p(n_trials: int, n_larger: int) -> float:
    tail = sum(math.comb(n_trials, i) for i in range(n_larger, n_trials + 1))
    return min(1.0, 2 * tail / 2**n_trials)


def _drawn_hits(sizes_N: NDArray[np.float64], limit: float, seed: int) -> int:
    generator = np.random.default_rng(seed)
    hits = 0
    for _ in range(_N_DRAWS // _DRAWS_AT_ONCE):
        signs = generator.integers(0, 2, size=(_DRAWS_AT_ONCE, len(sizes_N)), dtype=np.int8) * 2.0 - 1.0
        hits += int((np.abs(signs @ sizes_N) >= limit).sum())
    return hits


def within_task_variance(tasks: Sequence[TaskScores]) -> float | None:
    """Return the mean unbiased variance of scores inside a task; None without a task of two attempts."""
    variances = [float(np.var(task.scores, ddof=1)) for task in tasks if len(task.scores) > 1]
    return math.fsum(variances) / len(variances) if variances else None


def minimum_detectable_difference(
    *,
    n_tasks: int,
    omega2: float,
    sigma2_a: float,
    sigma2_b: float,
    attempts_a: int,
    attempts_b: int,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """Return the smallest true difference of means that a paired design finds.

    Args:
        n_tasks: tasks on both sides.
        omega2: variance over tasks of the true difference.
        sigma2_a: mean within-task variance of A.
        sigma2_b: of B.
        attempts_a: attempts at each task by A.
        attempts_b: by B.
        alpha: two-sided error.
        power: chance to find it.

    Source: Miller 2024 (arXiv 2411.00640), section 5.
    """
    variance = omega2 + sigma2_a / attempts_a + sigma2_b / attempts_b
    return _power_factor(alpha, power) * math.sqrt(variance / n_tasks)


def tasks_needed(
    *,
    difference: float,
    omega2: float,
    sigma2_a: float,
    sigma2_b: float,
    attempts_a: int,
    attempts_b: int,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return how many tasks find a true ``difference``; arguments as in :func:`minimum_detectable_difference`."""
    variance = omega2 + sigma2_a / attempts_a + sigma2_b / attempts_b
    return math.ceil(_power_factor(alpha, power) ** 2 * variance / difference**2)


def _power_factor(alpha: float, power: float) -> float:
    return normal_quantile(1 - alpha / 2) + normal_quantile(power)
