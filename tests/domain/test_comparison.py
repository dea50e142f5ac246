"""Comparisons: pairing, exact tests against scipy, power, and what fell out."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from domain.errors import ConfigurationError
from domain.maths.comparison import (
    minimum_detectable_difference,
    paired_difference,
    sign_flip_p,
    tasks_needed,
    within_task_variance,
)
from domain.maths.scores import TaskScores
from domain.maths.statistics import wilson_estimate

stats: Any = scipy_stats
"""Not annotated enough to check against."""


def _side(*means: float | None, family_size: int = 0) -> list[TaskScores]:
    return [
        TaskScores(
            task=f"t{i}",
            scores=() if mean is None else (mean,),
            n_ungraded=int(mean is None),
            family=f"f{i // family_size}" if family_size else None,
        )
        for i, mean in enumerate(means)
    ]


def test_the_difference_is_paired_by_task() -> None:
    """Value and interval are scipy's paired t over tasks, the correlation is Pearson's."""
    a, b = [0.9, 0.5, 0.7, 0.2, 0.6], [0.6, 0.5, 0.3, 0.1, 0.2]
    comparison = paired_difference(_side(*a), _side(*b))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert comparison.difference.value == pytest.approx(np.mean(a) - np.mean(b))
    assert comparison.difference.low == pytest.approx(expected.low)
    assert comparison.difference.high == pytest.approx(expected.high)
    assert comparison.correlation == pytest.approx(stats.pearsonr(a, b).statistic)
    assert comparison.difference.method == "paired t over tasks"


def test_tasks_without_a_score_on_one_side_fall_out_and_are_counted() -> None:
    """Only tasks scored on both sides enter, whatever their order."""
    side_a = [*_side(1.0, None, 1.0, 0.5), TaskScores(task="only-a", scores=(1.0,))]
    side_b = list(reversed(_side(0.0, 1.0, 0.5, None)))
    comparison = paired_difference(side_a, side_b)
    assert comparison.difference.value == pytest.approx(0.75)
    assert (comparison.difference.n_tasks, comparison.difference.n_left_out) == (2, 3)
    assert (comparison.n_missing_a, comparison.n_missing_b) == (1, 2)
    assert comparison.difference.coverage.n_ungraded == 2


@pytest.mark.parametrize("family_size", [0, 2])
def test_systems_that_never_differ_have_no_certain_difference(family_size: int) -> None:
    """None of the independent tasks differed: Wilson's limit says how many might, in either direction."""
    side = _side(1.0, 0.0, 1.0, 0.0, family_size=family_size)
    n_independent = 2 if family_size else 4
    unseen = wilson_estimate(0, n_independent).high
    assert unseen is not None
    difference = paired_difference(side, side).difference
    assert (difference.low, difference.value, difference.high) == (pytest.approx(-unseen), 0.0, pytest.approx(unseen))
    beyond = _side(5.0, 0.0, 1.0, 0.0)
    assert paired_difference(beyond, beyond).difference.method == "paired t over tasks"


def test_disjoint_sides_have_no_difference() -> None:
    """No value, no p, no correlation, and no error."""
    comparison = paired_difference(_side(1.0, None), _side(None, 1.0))
    assert comparison.difference.value is None
    assert (comparison.p_value, comparison.correlation, comparison.minimum_detectable) == (None, None, None)


def test_a_task_twice_on_one_side_is_refused() -> None:
    """It would be paired with itself."""
    with pytest.raises(ConfigurationError, match="side B"):
        paired_difference(_side(1.0), [*_side(1.0), *_side(0.0)])


def _mean_difference(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.mean(left - right))


@pytest.mark.parametrize("seed", range(5))
def test_sign_flips_match_scipys_exact_permutation(seed: int) -> None:
    """For a dozen tasks every sign pattern is counted."""
    differences = np.random.default_rng(seed).normal(0.3, 1, size=10)
    expected = stats.permutation_test(
        (differences, np.zeros(10)), _mean_difference, permutation_type="samples", n_resamples=2**11
    )
    p_value, method = sign_flip_p(differences.tolist())
    assert method == "exact sign-flip"
    assert p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("n_better", "n_worse"), [(1, 0), (8, 2), (5, 5), (60, 30)])
def test_single_binary_attempts_give_exact_mcnemar(n_better: int, n_worse: int) -> None:
    """The binomial test of the discordant tasks, at any number of them."""
    differences = [1.0] * n_better + [-1.0] * n_worse + [0.0] * 20
    p_value, method = sign_flip_p(differences)
    assert method == "exact binomial (McNemar)"
    assert p_value == pytest.approx(stats.binomtest(n_better, n_better + n_worse).pvalue)


def test_many_tasks_are_drawn_and_never_zero() -> None:
    """Beyond enumeration p comes from seeded draws, close to the t test and reproducible."""
    differences = np.random.default_rng(3).normal(0.15, 1, size=200).tolist()
    p_value, method = sign_flip_p(differences, seed=1)
    assert method == "sign-flip, 20000 draws"
    assert p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.02)
    assert (p_value, method) == sign_flip_p(differences, seed=1)
    certain, _ = sign_flip_p([1.0 + 0.01 * i for i in range(50)])
    assert certain == pytest.approx(1 / 20_001)


def test_float_noise_is_no_difference() -> None:
    """0.1 + 0.2 against 0.3 on every task has the p-value 1 only if nothing else differs."""
    assert sign_flip_p([0.0, 0.0]) == (1.0, "exact: no task differs")
    p_value, _ = sign_flip_p([1.0, -1.0, 1e-17, 1e-17])
    assert p_value == 1.0


def test_families_are_flipped_and_estimated_together() -> None:
    """Ten tasks of two families are two independent observations, not ten."""
    comparison = paired_difference(_side(*[0.9, 0.8] * 5, family_size=5), _side(*[0.1, 0.2] * 5, family_size=5))
    assert comparison.p_value is not None
    assert comparison.p_value >= 0.5
    assert comparison.difference.method == "paired t over 2 clusters"


def test_identical_systems_are_never_significant() -> None:
    """A system against itself: difference 0, p 1."""
    comparison = paired_difference(_side(0.1, 0.5, 1.0), _side(0.1, 0.5, 1.0))
    assert (comparison.difference.value, comparison.p_value) == (0.0, 1.0)
    assert comparison.minimum_detectable == 0.0


@pytest.mark.parametrize(
    ("delta", "attempts", "n_tasks"),
    [(0.03, 1, 2268), (0.03, 4, 698), (0.03, 16, 306), (0.05, 1, 817), (0.05, 4, 252), (0.1, 1, 205), (0.1, 16, 28)],
)
def test_power_matches_the_published_table(delta: float, attempts: int, n_tasks: int) -> None:
    """omega^2 = 0.02, sigma^2 = 0.12, 5 %, 80 %. Source: facts/peers-and-statistics.md section D, "Power"."""
    needed = tasks_needed(
        difference=delta, omega2=0.02, sigma2_a=0.12, sigma2_b=0.12, attempts_a=attempts, attempts_b=attempts
    )
    assert abs(needed - n_tasks) <= 1
    detectable = minimum_detectable_difference(
        n_tasks=needed, omega2=0.02, sigma2_a=0.12, sigma2_b=0.12, attempts_a=attempts, attempts_b=attempts
    )
    assert detectable == pytest.approx(delta, rel=0.02)
    assert detectable <= delta


def test_the_detectable_difference_of_a_comparison_follows_its_error() -> None:
    """2.80 standard errors of the paired difference."""
    a, b = [0.9, 0.5, 0.7, 0.2, 0.6], [0.6, 0.5, 0.3, 0.1, 0.2]
    error = stats.sem(np.array(a) - np.array(b))
    comparison = paired_difference(_side(*a), _side(*b))
    assert comparison.minimum_detectable == pytest.approx((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * error)


def test_the_sign_flip_test_holds_its_level() -> None:
    """Under the null at most 5 % of 600 comparisons are significant at 5 %, up to simulation error."""
    generator = np.random.default_rng(11)
    rejected = sum((sign_flip_p(generator.normal(size=10).tolist())[0] or 0.0) <= 0.05 for _ in range(600))
    assert rejected / 600 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_variance_inside_tasks() -> None:
    """The unbiased variance, over tasks with two attempts or more."""
    tasks = [TaskScores(task="a", scores=(0.0, 1.0)), TaskScores(task="b", scores=(1.0,))]
    assert within_task_variance(tasks) == pytest.approx(0.5)
    assert within_task_variance(tasks[1:]) is None
