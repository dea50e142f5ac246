"""The reference's recorded vectors: rows, advantages, drift and losses. Source: tests/golden/learning_vectors.json."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domain.errors import DatumError
from domain.maths.advantage import group_advantages, has_spread
from domain.maths.objectives import LossSettings, LossTerms, drift_metrics, evaluate_loss
from domain.maths.packing import pack
from domain.maths.qualification import qualify
from domain.maths.row_checks import check_datums
from domain.records.assessment import Datum, ExclusionReason, QualifiedGroup
from domain.records.trial import Interaction, Purpose
from tests.domain.making import POLICY, TASK, UNIT, make_assessment, make_interaction, make_trial

_ROOT = Path(__file__).parents[2]
_Json = dict[str, Any]

_NOT_MATCHED = {
    "nan_reward",
    "integer_rewards_error",
    "missing_logprobs_error",
    "single_token_total_error",
    "synthetic_overflow_transition",
    "empty_prompt_action_only",
    "parse_error_masked_turn",
    "remove_constant_reward_groups_all_constant",
    "image_chunk_prefix_extension",
    "image_chunk_changed_breaks_prefix",
    "image_last_error",
}


@cache
def _vectors() -> _Json:
    return json.loads((_ROOT / "tests/golden/learning_vectors.json").read_text())


def _names(section: str) -> list[str]:
    return [entry["name"] for entry in _vectors()[section]]


def _entry(section: str, name: str) -> _Json:
    return next(entry for entry in _vectors()[section] if entry["name"] == name)


def _number(value: float | str) -> float:
    return float(value)


def _calls(trajectory: _Json, trial_id: str) -> list[Interaction]:
    return [
        make_interaction(
            sequence,
            turn["ob"],
            turn["action_tokens"],
            turn["action_logprobs"] or [],
            trial_id=trial_id,
            purpose=Purpose.OTHER if turn["metrics"].get("parse_error_masked") else Purpose.AGENT,
        )
        for sequence, turn in enumerate(trajectory["transitions"])
    ]


def _rewards(group: _Json) -> list[float]:
    return [
        sum(_number(turn["reward"]) for turn in trajectory["transitions"]) + _number(trajectory["final_reward"])
        for trajectory in group["trajectories"]
    ]


def _qualified(case: _Json, index: int = 0) -> QualifiedGroup:
    """Qualify group ``index`` of a case as a training would."""
    group = case["input"]["groups"][index]
    trials = [make_trial(attempt) for attempt in range(len(group["trajectories"]))]
    return qualify(
        unit=UNIT,
        group=0,
        task=TASK,
        trials=trials,
        assessments={
            trial.trial_id: make_assessment(trial.trial_id, reward)
            for trial, reward in zip(trials, _rewards(group), strict=True)
        },
        interactions={
            trial.trial_id: _calls(trajectory, trial.trial_id)
            for trial, trajectory in zip(trials, group["trajectories"], strict=True)
        },
        policy=POLICY,
        require_evidence=True,
    )


def _packed(case: _Json) -> list[tuple[int, int, Datum]]:
    """Pack a case as the reference does: groups filtered on request, indices into the groups that are left."""
    groups = case["input"]["groups"]
    if case["input"].get("remove_constant_reward_groups"):
        groups = [group for group in groups if has_spread(_rewards(group))]
    rows: list[tuple[int, int, Datum]] = []
    for group_index, group in enumerate(groups):
        rewards = _rewards(group)
        advantages = group_advantages(rewards, [f"t{i}" for i in range(len(rewards))])
        for index, (trajectory, advantage) in enumerate(zip(group["trajectories"], advantages, strict=True)):
            calls = _calls(trajectory, f"t{index}")
            datums = pack(calls, advantage=float(advantage), trial_id=f"t{index}", group=group_index)
            check_datums(datums, calls)
            rows += [(group_index, index, datum) for datum in datums]
    return rows


def _assert_same(datum: Datum, expected: _Json, *, logprobs: bool = True) -> None:
    assert datum.input_ids.tolist() == expected["input_tokens"]
    assert datum.target_ids.tolist() == expected["target_tokens"]
    assert datum.mask.tolist() == expected["mask"]
    np.testing.assert_allclose(datum.advantages, expected["advantages"], rtol=1e-6)
    if logprobs:
        np.testing.assert_array_equal(datum.logprobs, np.float32(expected["logprobs"]))


@pytest.mark.parametrize("name", sorted(set(_names("cases")) - _NOT_MATCHED))
def test_rows_and_advantages_match_the_reference(name: str) -> None:
    """Every vector that is not a listed divergence gives the same rows, in the same order, value for value."""
    case = _entry("cases", name)
    rows = _packed(case)
    expected = case["output"]["datums"]
    assert [(group, trial) for group, trial, _ in rows] == [(row["group_idx"], row["traj_idx"]) for row in expected]
    for (_, _, datum), row in zip(rows, expected, strict=True):
        _assert_same(datum, row)


@pytest.mark.parametrize("name", sorted(set(_names("cases")) - _NOT_MATCHED))
def test_qualified_advantages_match_the_reference(name: str) -> None:
    """Qualification keeps every trial of a well-formed group and gives it the reference's advantage."""
    case = _entry("cases", name)
    kept = case["output"]["kept_group_indices_after_remove_constant"]
    for position, index in enumerate(kept):
        group = _qualified(case, index)
        assert group.excluded == ()
        advantages = [member.advantage for member in group.members]
        np.testing.assert_allclose(advantages, case["output"]["advantages_per_group"][position], rtol=1e-6)


@pytest.mark.parametrize("name", sorted(set(_names("cases")) - _NOT_MATCHED))
def test_drift_matches_the_reference(name: str) -> None:
    """The drift metrics over a batch agree for the synthetic trainer logprobs of the vectors."""
    case = _entry("cases", name)
    if "kl_sample_train" not in case:
        pytest.fail(f"{name} has no drift vector")
    datums = [datum for _, _, datum in _packed(case)]
    sampler = np.concatenate([datum.logprobs for datum in datums]).astype(np.float64)
    shift = np.concatenate([0.05 * (np.arange(len(datum.mask)) + 1) for datum in datums])
    mask = np.concatenate([datum.mask for datum in datums]).astype(np.float64)
    terms = LossTerms(target_logprobs=sampler - shift, sampler_logprobs=sampler, advantages=mask, mask=mask)
    drift = drift_metrics(terms)
    expected = case["kl_sample_train"]["metrics"]
    assert drift["kl_v1"] == pytest.approx(expected["optim/kl_sample_train_v1"], rel=1e-5)
    assert drift["kl_v2"] == pytest.approx(expected["optim/kl_sample_train_v2"], rel=1e-5)
    assert drift["entropy"] == pytest.approx(expected["optim/entropy"], rel=1e-5)


def test_the_table_of_divergences_is_complete() -> None:
    """DIVERGENCES.md names exactly the vectors that are not matched value for value."""
    table = (_ROOT / "domain/maths/DIVERGENCES.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == _NOT_MATCHED
    assert set(_names("cases")) >= _NOT_MATCHED


@pytest.mark.parametrize(
    ("name", "trial_id", "reason"),
    [
        ("nan_reward", None, ExclusionReason.NON_FINITE),
        ("missing_logprobs_error", "t0", ExclusionReason.MISALIGNED),
        ("single_token_total_error", "t0", ExclusionReason.NO_SAMPLED_TOKENS),
        ("synthetic_overflow_transition", "t0", ExclusionReason.NO_SAMPLED_TOKENS),
        ("empty_prompt_action_only", "t0", ExclusionReason.MISALIGNED),
    ],
)
def test_a_bad_trial_is_excluded_before_the_mean(name: str, trial_id: str | None, reason: ExclusionReason) -> None:
    """Where the reference trains garbage or loses the batch, the one bad trial is excluded with its reason."""
    group = _qualified(_entry("cases", name))
    assert group.excluded[0].reason is reason
    assert trial_id is None or group.excluded[0].trial_id == trial_id
    assert all(np.isfinite(member.advantage) for member in group.members)
    assert abs(sum(member.advantage for member in group.members)) < 1e-6


def test_a_nan_reward_is_refused_by_name() -> None:
    """``nan_reward``: advantages name the trial instead of spreading NaN."""
    group = _entry("cases", "nan_reward")["input"]["groups"][0]
    rewards = _rewards(group)
    bad = next(i for i, reward in enumerate(rewards) if not np.isfinite(reward))
    with pytest.raises(DatumError, match=f"trial t{bad}"):
        group_advantages(rewards, [f"t{i}" for i in range(len(rewards))])


def test_integer_rewards_are_centred() -> None:
    """``integer_rewards_error``: integers are rewards like any other."""
    group = _qualified(_entry("cases", "integer_rewards_error"))
    assert [member.advantage for member in group.members] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("name", "message"), [("missing_logprobs_error", "no logprobs"), ("empty_prompt_action_only", "no prompt")]
)
def test_packing_refuses_by_name(name: str, message: str) -> None:
    """A trial that qualification would exclude cannot be packed by mistake either."""
    trajectory = _entry("cases", name)["input"]["groups"][0]["trajectories"][0]
    with pytest.raises(DatumError, match=rf"interaction t0-main-0: {message}"):
        pack(_calls(trajectory, "t0"), advantage=0.5, trial_id="t0", group=0)


def test_a_lone_prompt_token_makes_no_row() -> None:
    """``single_token_total_error``: the batch goes on without it."""
    trajectories = _entry("cases", "single_token_total_error")["input"]["groups"][0]["trajectories"]
    packed = [pack(_calls(trajectory, "t0"), advantage=0.5, trial_id="t0", group=0) for trajectory in trajectories]
    assert [len(datums) for datums in packed] == [0, 1]


def test_a_call_that_may_not_train_is_context() -> None:
    """``parse_error_masked_turn``: same tokens, mask and advantages, but no logprobs where nothing trains."""
    case = _entry("cases", "parse_error_masked_turn")
    for (_, _, datum), row in zip(_packed(case), case["output"]["datums"], strict=True):
        _assert_same(datum, row, logprobs=False)
        np.testing.assert_array_equal(datum.logprobs, np.float32(row["logprobs"]) * datum.mask)


def test_constant_groups_have_no_signal() -> None:
    """``remove_constant_reward_groups_all_constant``: none is trained, not even the first."""
    case = _entry("cases", "remove_constant_reward_groups_all_constant")
    groups = [_qualified(case, index) for index in range(len(case["input"]["groups"]))]
    assert not any(group.has_signal for group in groups)
    assert _packed(case) == []


@pytest.mark.parametrize(
    "name", ["image_chunk_prefix_extension", "image_chunk_changed_breaks_prefix", "image_last_error"]
)
def test_image_chunks_are_refused(name: str) -> None:
    """Ids that are not integers are refused by name rather than packed as something else."""
    trajectory = _entry("cases", name)["input"]["groups"][0]["trajectories"][0]
    with pytest.raises(DatumError, match="token ids hold dict"):
        pack(_calls(trajectory, "t0"), advantage=0.5, trial_id="t0", group=0)


@pytest.mark.parametrize("name", _names("losses"))
def test_losses_match_the_reference(name: str) -> None:
    """Value per token, sum and gradient of every recorded loss."""
    vector = _entry("losses", name)
    target = np.array(vector["target_logprobs"])
    config = vector["loss_fn_config"]
    terms = LossTerms(
        target_logprobs=target,
        sampler_logprobs=np.array(vector.get("sampling_logprobs", np.zeros_like(target))),
        advantages=np.array(vector.get("advantages", vector.get("weights")), dtype=np.float64),
        mask=np.array(vector.get("sequence_ratio_mask", np.ones_like(target)), dtype=np.float64),
    )
    settings = None
    if config:
        settings = LossSettings(
            clip_low=config.get("clip_low_threshold", 0.8),
            clip_high=config.get("clip_high_threshold", 1.2),
            beta=config.get("beta", 0.05),
        )
    loss = evaluate_loss(vector["loss_fn"], terms, settings)
    np.testing.assert_allclose(loss.elementwise, vector["elementwise_loss"], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(loss.gradient, vector["grad_wrt_target_logprobs"], rtol=1e-12, atol=1e-15)
    assert loss.total == pytest.approx(vector["loss_sum"], rel=1e-12, abs=1e-12)
    assert loss.n_clamped == 0
