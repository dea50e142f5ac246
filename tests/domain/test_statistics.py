"""Estimates: exact small cases, comparison with scipy, coverage of intervals by simulation, never NaN."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from domain.errors import ConfigurationError
from domain.maths.distributions import incomplete_beta, normal_quantile, t_quantile
from domain.maths.scores import TaskScores, coverage_of, scores_by_task
from domain.maths.statistics import (
    Estimate,
    clustered_estimate,
    mean_score,
    pass_at_k,
    pass_at_k_over_tasks,
    pass_hat_k,
    pass_hat_k_over_tasks,
    t_estimate,
    wilson_estimate,
)
from domain.records.assessment import AssessmentOutcome
from tests.domain.making import TASK, make_assessment, make_trial

stats: Any = scipy_stats
"""Not annotated enough to check against."""


def _task(name: str, *scores: float, ungraded: int = 0, fail_closed: int = 0, family: str | None = None) -> TaskScores:
    return TaskScores(task=name, scores=scores, n_ungraded=ungraded, n_fail_closed=fail_closed, family=family)


def _binary(n_attempts: int, n_success: int) -> TaskScores:
    return _task("t", *([1.0] * n_success + [0.0] * (n_attempts - n_success)))


# --- quantiles against scipy -------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [1, 2, 3, 4.5, 10, 29, 199, 9_999, 10_001, 1e6, 1e9])
@pytest.mark.parametrize("probability", [0.001, 0.05, 0.3, 0.5, 0.8, 0.95, 0.975, 0.995, 0.9999])
def test_t_quantiles_match_scipy(degrees: float, probability: float) -> None:
    """To 1e-9, in both tails and over all degrees of freedom."""
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9, abs=1e-10)


@settings(deadline=None)
@given(st.floats(0.1, 200), st.floats(0.1, 200), st.floats(0, 1))
def test_the_incomplete_beta_matches_scipy(a: float, b: float, x: float) -> None:
    """Over the whole square."""
    assert incomplete_beta(a, b, x) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.5, 0), (float("nan"), 3)])
def test_quantiles_refuse_what_has_none(probability: float, degrees: float) -> None:
    """Outside (0, 1), or without degrees of freedom."""
    with pytest.raises(ValueError, match="t_quantile"):
        t_quantile(probability, degrees)


# --- pass@k and pass^k -------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c", "k"), [(n, c, k) for n in range(1, 7) for c in range(n + 1) for k in range(1, 8)])
def test_pass_at_k_and_pass_hat_k_by_enumeration(n: int, c: int, k: int) -> None:
    """Equal to the share of k-subsets with any, and with all successes; None when k attempts are not there."""
    task = _binary(n, c)
    if n < k:
        assert pass_at_k(task, k) is None
        assert pass_hat_k(task, k) is None
        return
    subsets = list(combinations(task.scores, k))
    assert pass_at_k(task, k) == pytest.approx(sum(any(subset) for subset in subsets) / len(subsets))
    assert pass_hat_k(task, k) == pytest.approx(sum(all(subset) for subset in subsets) / len(subsets))


@pytest.mark.parametrize("k", [1, 10, 500, 1000])
def test_large_counts_stay_inside_zero_and_one(k: int) -> None:
    """Products, not factorials."""
    for measure in (pass_at_k, pass_hat_k):
        value = measure(_binary(1000, 3), k)
        assert value is not None
        assert 0 <= value <= 1


def test_pass_at_k_is_unbiased() -> None:
    """With p = 0.5, n = 5, k = 3 the mean is 0.875 and 0.125. Source: facts/peers-and-statistics.md section D."""
    weights = [math.comb(5, c) / 32 for c in range(6)]
    at_k = [pass_at_k(_binary(5, c), 3) or 0.0 for c in range(6)]
    hat_k = [pass_hat_k(_binary(5, c), 3) or 0.0 for c in range(6)]
    assert np.dot(weights, at_k) == pytest.approx(0.875)
    assert np.dot(weights, hat_k) == pytest.approx(0.125)


def test_a_threshold_makes_graded_scores_binary() -> None:
    """A success is a score of at least ``success``."""
    task = _task("t", 0.4, 0.6, 0.9)
    assert pass_at_k(task, 1) == 0.0
    assert pass_at_k(task, 1, success=0.5) == pytest.approx(2 / 3)


def test_tasks_with_too_few_attempts_are_left_out_and_counted() -> None:
    """They are not clamped, not any-pass, not 0 and not 1."""
    tasks = [_task("a", 1.0, 0.0, 0.0, 0.0), _task("b", 1.0, ungraded=3), _task("c", ungraded=4)]
    estimate = pass_at_k_over_tasks(tasks, 2)
    assert estimate.value == pytest.approx(0.5)
    assert (estimate.n_tasks, estimate.n_left_out, estimate.n_attempts) == (1, 2, 4)
    assert (estimate.low, estimate.high) == (None, None)
    assert estimate.errors_as_zero == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert estimate.errors_as_best == pytest.approx((0.5 + 1.0 + 1.0) / 3)
    assert pass_hat_k_over_tasks(tasks, 9).value is None


# --- means -------------------------------------------------------------------------------------------


def test_every_task_weighs_the_same() -> None:
    """Mean of task means, not of attempts; the interval is scipy's over task means, which may exceed 1 here."""
    tasks = [_task("a", 4.0, 4.0, 4.0, 0.0), _task("b", 0.0), _task("c", 2.0, 0.0)]
    estimate = mean_score(tasks)
    means = [3.0, 0.0, 1.0]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(means), scale=stats.sem(means))
    assert estimate.value == pytest.approx(4 / 3)
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))
    assert (estimate.n_tasks, estimate.n_attempts, estimate.method) == (3, 7, "t over tasks")


def test_coverage_and_bounds_stand_beside_the_mean() -> None:
    """Ungraded attempts are in no mean; the bounds say what they could have been."""
    tasks = [_task("a", 1.0, 0.0, ungraded=2, fail_closed=1), _task("b", 1.0), _task("c", ungraded=1)]
    estimate = mean_score(tasks)
    counts = estimate.coverage
    assert (counts.n_scored, counts.n_fail_closed, counts.n_ungraded, counts.n_total) == (2, 1, 3, 6)
    assert (estimate.n_tasks, estimate.n_left_out) == (2, 1)
    assert estimate.value == pytest.approx(0.75)
    assert estimate.errors_as_zero == pytest.approx((0.25 + 1.0 + 0.0) / 3)
    assert estimate.errors_as_best == pytest.approx((0.75 + 1.0 + 1.0) / 3)
    assert estimate.headline(0.5) == estimate.value
    assert estimate.headline(0.05) is None


def test_nothing_scored_is_none() -> None:
    """Neither 0 nor NaN; only the bounds exist."""
    for estimate in (mean_score([]), mean_score([_task("a", ungraded=2)]), pass_at_k_over_tasks([], 1)):
        assert (estimate.value, estimate.low, estimate.high, estimate.n_tasks) == (None, None, None, 0)
    assert mean_score([_task("a", ungraded=2)]).errors_as_best == 1.0
    assert mean_score([]).errors_as_zero is None
    assert wilson_estimate(0, 0).value is None
    assert coverage_of([]).ungraded_share == 0.0


def test_one_task_has_no_interval() -> None:
    """However many attempts it has."""
    estimate = mean_score([_task("a", *[0.0, 1.0] * 50)])
    assert (estimate.value, estimate.low, estimate.high) == (0.5, None, None)


@pytest.mark.parametrize(("n_success", "n_trials"), [(0, 5), (5, 5), (1, 20), (37, 100)])
def test_wilson_matches_scipy(n_success: int, n_trials: int) -> None:
    """The score interval without continuity correction."""
    expected = stats.binomtest(n_success, n_trials).proportion_ci(0.95, method="wilson")
    estimate = wilson_estimate(n_success, n_trials)
    assert estimate.low == pytest.approx(expected.low, abs=1e-12)
    assert estimate.high == pytest.approx(expected.high, abs=1e-12)


@pytest.mark.parametrize(
    ("tasks", "method"),
    [
        ([_task(str(i), float(i < 3)) for i in range(10)], "wilson"),
        ([_task(str(i), float(i < 2)) for i in range(100)], "wilson"),
        ([_task(str(i), 1.0, 1.0) for i in range(100)], "wilson"),
        ([_task(str(i), float(i < 50)) for i in range(100)], "t over tasks"),
        ([_task(str(i), float(i < 3), 0.0) for i in range(10)], "t over tasks"),
        ([_task(str(i), float(i < 3), family="abc"[i % 3]) for i in range(10)], "t over 3 clusters"),
        ([_task(str(i), float(i < 3), family="all") for i in range(10)], "no interval: one cluster"),
    ],
)
def test_the_interval_fits_the_data(tasks: list[TaskScores], method: str) -> None:
    """Clusters when families repeat, Wilson for small or extreme shares, else t."""
    assert mean_score(tasks).method == method


def test_singleton_clusters_give_the_plain_interval() -> None:
    """With one task in each cluster the robust form is the ordinary one."""
    values = [0.1, 0.7, 0.4, 0.9, 0.0]
    plain = t_estimate(values)
    robust = clustered_estimate(values, list("abcde"))
    assert (robust.low, robust.high) == (pytest.approx(plain.low), pytest.approx(plain.high))


def test_the_cluster_form_by_hand() -> None:
    """SE^2 = G/(G-1) x sum of squared cluster sums / T^2. Source: inspect_ai scorer/_metrics/std.py."""
    estimate = clustered_estimate([1.0, 1.0, 0.0, 0.0, 0.5], ["a", "a", "b", "b", "c"])
    error = math.sqrt(3 / 2 * (1.0**2 + 1.0**2 + 0.0**2)) / 5
    assert estimate.high == pytest.approx(0.5 + stats.t.ppf(0.975, 2) * error)


@pytest.mark.parametrize(
    ("sizes", "n_independent"),
    [([2, 2, 2, 2, 2], 5), ([4] * 16, 16), ([3, 1], 16 / 10), ([1, 1, 2], 16 / 6)],
)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_families_that_all_succeed_or_fail_have_width(sizes: list[int], n_independent: float, value: float) -> None:
    """Wilson's with each family as one trial when they are of one size; by hand z^2 / (n + z^2) wide."""
    tasks = [
        _task(f"{family}-{i}", value, value, family=str(family))
        for family, size in enumerate(sizes)
        for i in range(size)
    ]
    z = stats.norm.ppf(0.975)
    width = z**2 / (n_independent + z**2)
    for estimate in (mean_score(tasks), pass_at_k_over_tasks(tasks, 1), pass_hat_k_over_tasks(tasks, 2)):
        assert estimate.method == f"wilson, no spread over {len(sizes)} clusters"
        assert estimate.value == value
        assert estimate.low == pytest.approx(1 - width if value else 0.0)
        assert estimate.high == pytest.approx(1.0 if value else width)
    if len(set(sizes)) == 1:
        expected = stats.binomtest(round(value * len(sizes)), len(sizes)).proportion_ci(0.95, method="wilson")
        assert (mean_score(tasks).low, mean_score(tasks).high) == (
            pytest.approx(expected.low, abs=1e-12),
            pytest.approx(expected.high, abs=1e-12),
        )


def test_equal_scores_between_the_edges_keep_an_interval() -> None:
    """0 of 4 tasks showed another value: the rest could lie anywhere in [0, 1]. Beyond [0, 1] nothing is known."""
    unseen = wilson_estimate(0, 4).high
    assert unseen is not None
    estimate = mean_score([_task(str(i), 0.25) for i in range(4)])
    assert (estimate.low, estimate.high) == (pytest.approx(0.25 - unseen * 0.25), pytest.approx(0.25 + unseen * 0.75))
    assert estimate.method == "wilson, no spread over 4 tasks"
    assert mean_score([_task(str(i), 2.5) for i in range(4)]).method == "t over tasks"


def test_families_whose_deviations_cancel_are_read_task_by_task() -> None:
    """One solved and one failed task in each family: the robust error is 0, though the tasks differ."""
    tasks = [_task(f"{i}", float(i % 2), family=str(i // 2)) for i in range(8)]
    assert mean_score(tasks).method == "t over tasks"
    assert mean_score(tasks).low == pytest.approx(t_estimate([0.0, 1.0] * 4).low)


@pytest.mark.parametrize("keys", [["a", None], ["a"]])
def test_a_missing_cluster_key_fails_loudly(keys: list[str | None]) -> None:
    """It is not silently its own cluster when clusters were asked for."""
    with pytest.raises(ConfigurationError, match="one key for each"):
        clustered_estimate([0.0, 1.0], keys)


def _covers(estimate: Estimate, truth: float) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high


def _mean_over_tasks(scores: np.ndarray) -> Estimate:
    return mean_score([_task(str(i), *map(float, row)) for i, row in enumerate(scores)])


def _mean_over_families(scores: np.ndarray) -> Estimate:
    return mean_score([_task(str(i), *map(float, row), family=str(i // 4)) for i, row in enumerate(scores)])


@pytest.mark.parametrize(
    ("n_tasks", "n_attempts", "family_size", "measure"),
    [(50, 5, 1, _mean_over_tasks), (100, 4, 1, _mean_over_tasks), (120, 2, 4, _mean_over_families)],
)
def test_intervals_cover_what_they_promise(
    n_tasks: int, n_attempts: int, family_size: int, measure: Callable[[np.ndarray], Estimate]
) -> None:
    """95 % intervals over tasks of Beta(0.5, 0.5) difficulty cover the truth in 93.5 to 96.5 % of 2,000 evaluations."""
    generator = np.random.default_rng(20260801)
    n_simulations = 2000
    hits = 0
    for _ in range(n_simulations):
        difficulty = np.repeat(generator.beta(0.5, 0.5, size=n_tasks // family_size), family_size)
        hits += _covers(measure(generator.binomial(1, difficulty[:, None], size=(n_tasks, n_attempts))), 0.5)
    assert 0.935 <= hits / n_simulations <= 0.965


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.floats(-1e6, 1e6), max_size=4), st.integers(0, 3), st.sampled_from([None, "a", "b"])),
        max_size=8,
    )
)
def test_no_estimate_is_ever_nan(rows: list[tuple[list[float], int, str | None]]) -> None:
    """Whatever was scored, each number is finite or None and the interval holds the value."""
    tasks = [
        _task(str(i), *scores, ungraded=ungraded, family=family) for i, (scores, ungraded, family) in enumerate(rows)
    ]
    for estimate in (mean_score(tasks), pass_at_k_over_tasks(tasks, 2), pass_hat_k_over_tasks(tasks, 2)):
        numbers = [estimate.value, estimate.low, estimate.high, estimate.errors_as_zero, estimate.errors_as_best]
        assert all(number is None or math.isfinite(number) for number in numbers)
        if estimate.value is not None and estimate.low is not None and estimate.high is not None:
            assert estimate.low - 1e-6 <= estimate.value <= estimate.high + 1e-6
        counts = estimate.coverage
        assert counts.n_total == counts.n_scored + counts.n_fail_closed + counts.n_ungraded


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 1), max_size=4), st.integers(0, 3), st.sampled_from([None, "a", "b"])),
        max_size=8,
    )
)
def test_an_interval_of_shares_is_one_of_shares(rows: list[tuple[list[float], int, str | None]]) -> None:
    """Where every score lies in [0, 1], so does the interval, however few tasks or families there are."""
    tasks = [
        _task(str(i), *scores, ungraded=ungraded, family=family) for i, (scores, ungraded, family) in enumerate(rows)
    ]
    for estimate in (mean_score(tasks), pass_at_k_over_tasks(tasks, 2), pass_hat_k_over_tasks(tasks, 2)):
        if estimate.low is not None and estimate.high is not None:
            assert 0 <= estimate.low <= estimate.high <= 1


# --- from records ------------------------------------------------------------------------------------


def test_scores_come_from_records_with_the_unplanned_gaps_counted() -> None:
    """Missing, ungraded and non-finite assessments and attempts that never ended count as ungraded."""
    trials = [make_trial(attempt) for attempt in range(5)]
    assessments = {
        "t0": make_assessment("t0", 1.0),
        "t1": make_assessment("t1", 0.0, outcome=AssessmentOutcome.FAIL_CLOSED),
        "t2": make_assessment("t2", None, outcome=AssessmentOutcome.UNGRADED),
        "t3": make_assessment("t3", float("nan")),
    }
    tasks = scores_by_task(
        trials, assessments, families={TASK.digest: "family"}, planned={TASK.digest: 6, "never-started": 2}
    )
    assert tasks == (
        TaskScores(task=TASK.digest, scores=(1.0, 0.0), n_ungraded=4, n_fail_closed=1, family="family"),
        TaskScores(task="never-started", scores=(), n_ungraded=2),
    )
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054)
