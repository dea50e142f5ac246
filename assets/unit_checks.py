"""Asset checks of a unit's products: what must hold whatever the experiment finds."""

import math
from collections.abc import Awaitable, Callable, Iterable

import dagster as dg
import numpy as np

from assets.stamps import Facts
from domain.records.trial import TrialRecord
from domain.service.platform import Platform
from domain.service.units import Stage, UnitResult

_MOST_TRIALS = 32
"""Trials whose interactions a check reads; they are spread over the unit."""
_TOLERANCE = 1e-6
"""Of an advantage sum, for each member: rewards are O(1) in double precision."""

_Verdict = tuple[bool, Facts]


async def _logprobs_match(platform: Platform, result: UnitResult) -> _Verdict:
    sampled = [trial for trial in result.trials.trials if trial.evidence is not None]
    chosen = sampled[:: max(1, math.ceil(len(sampled) / _MOST_TRIALS))]
    wrong = [trial.trial_id for trial in chosen if not await _trial_matches(platform, trial)]
    return not wrong, {"n_trials_checked": len(chosen), "n_trials_with_model": len(sampled), "wrong": wrong[:10]}


async def _trial_matches(platform: Platform, trial: TrialRecord) -> bool:
    if trial.evidence is None:
        return True
    interactions = await platform.model.read(trial.evidence)
    return len(interactions) == trial.evidence.n_interactions and all(
        len(item.logprobs) == len(item.sampled_ids)
        and all(math.isfinite(value) and value <= _TOLERANCE for value in item.logprobs)
        for item in interactions
    )


async def _rewards_are_finite(_: Platform, result: UnitResult) -> _Verdict:
    assessments = result.assessments.assessments if result.assessments else ()
    wrong = [
        item.trial_id
        for item in assessments
        if not all(math.isfinite(value) for value in (*item.panel.values(), *([item.reward] if item.reward else [])))
    ]
    return not wrong, {"n_assessments_checked": len(assessments), "wrong": wrong[:10]}


async def _advantages_sum_to_zero(_: Platform, result: UnitResult) -> _Verdict:
    groups = result.groups.groups if result.groups else ()
    sums = {group.group_id: math.fsum(member.advantage for member in group.members) for group in groups}
    wrong = [group.group_id for group in groups if abs(sums[group.group_id]) > _TOLERANCE * max(1, len(group.members))]
    largest = max((abs(value) for value in sums.values()), default=0.0)
    return not wrong, {"n_groups_checked": len(groups), "largest_sum": largest, "wrong": wrong[:10]}


async def _datums_align(platform: Platform, result: UnitResult) -> _Verdict:
    tables = result.datums.tables if result.datums else ()
    n_rows = 0
    wrong: list[str] = []
    for item in tables:
        for row in platform.datum_tables.read(item.table):
            n_rows += 1
            trained = row.mask > 0
            aligned = row.logprobs.shape == row.target_ids.shape == row.mask.shape
            finite = bool(np.isfinite(row.logprobs).all() and np.isfinite(row.advantages).all())
            if not (aligned and finite and not row.logprobs[~trained].any() and trained.any()):
                wrong.append(row.trial_id)
    return not wrong, {"n_datums_checked": n_rows, "wrong": wrong[:10]}


_CHECKS: dict[str, tuple[Stage, str, Callable[[Platform, UnitResult], Awaitable[_Verdict]]]] = {
    "logprobs_match_sampled_ids": (
        Stage.TRIALS,
        "Every sampled id of the trials read has one finite log-probability.",
        _logprobs_match,
    ),
    "rewards_are_finite": (Stage.ASSESSMENTS, "Every reward and panel value is a finite number.", _rewards_are_finite),
    "advantages_sum_to_zero": (
        Stage.QUALIFIED_GROUPS,
        "The advantages of each group's members sum to zero.",
        _advantages_sum_to_zero,
    ),
    "datums_align": (
        Stage.DATUMS,
        "Arrays of a row have one length, are finite, and carry nothing outside the mask.",
        _datums_align,
    ),
}

CHECKS = [
    dg.AssetCheckSpec(name, asset=stage.value, description=description)
    for name, (stage, description, _) in _CHECKS.items()
]


async def results_of(
    platform: Platform, result: UnitResult, selected: Iterable[dg.AssetCheckKey]
) -> list[dg.AssetCheckResult]:
    """Return the results of the selected checks whose product exists."""
    found: list[dg.AssetCheckResult] = []
    for key in sorted(selected):
        stage, _, check = _CHECKS[key.name]
        if stage in result.refs:
            passed, facts = await check(platform, result)
            found.append(
                dg.AssetCheckResult(
                    passed=passed,
                    asset_key=key.asset_key,
                    check_name=key.name,
                    metadata={"unit": result.unit.unit, **facts},
                )
            )
    return found
