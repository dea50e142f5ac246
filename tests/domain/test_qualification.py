"""Qualification: eligibility is decided before the mean, one reason for each trial that is left out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from domain.errors import DatumError
from domain.maths.qualification import qualify
from domain.records.assessment import Assessment, AssessmentOutcome, ExclusionReason, QualifiedGroup
from domain.records.trial import Interaction, Purpose, TrialOutcome, TrialRecord, Usage
from tests.domain.making import POLICY, TASK, UNIT, make_assessment, make_interaction, make_trial


class Group:
    """Four good trials with rewards 0, 1, 1, 0 whose parts a test replaces."""

    def __init__(self) -> None:
        """Build the records."""
        self.trials = {f"t{i}": make_trial(i) for i in range(4)}
        self.assessments = {name: make_assessment(name, float(i in {1, 2})) for i, name in enumerate(self.trials)}
        self.interactions: dict[str, list[Interaction]] = {
            name: [make_interaction(0, [1, 2], [3, 4], trial_id=name)] for name in self.trials
        }

    def qualify(self, *, require_evidence: bool = True, captured: bool = True) -> QualifiedGroup:
        """Qualify what is there."""
        return qualify(
            unit=UNIT,
            group=0,
            task=TASK,
            trials=list(self.trials.values()),
            assessments=self.assessments,
            interactions=self.interactions if captured else None,
            policy=POLICY,
            require_evidence=require_evidence,
        )


def test_a_good_group_keeps_all() -> None:
    """Members carry reward, advantage and token count; the group says that it has a signal."""
    group = Group().qualify()
    assert group.group_id == f"{UNIT}/g000"
    assert (group.task_name, group.task_digest, group.policy) == (TASK.name, TASK.digest, POLICY)
    assert [member.advantage for member in group.members] == [-0.5, 0.5, 0.5, -0.5]
    assert [member.n_sampled_tokens for member in group.members] == [2, 2, 2, 2]
    assert group.excluded == ()
    assert group.has_signal


def _trial(**changes: object) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        group.trials["t0"] = replace(group.trials["t0"], **changes)

    return change


def _assessment(**changes: object) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        group.assessments["t0"] = replace(group.assessments["t0"], **changes)

    return change


def _calls(*calls: Interaction) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        group.interactions["t0"] = list(calls)

    return change


def _without_assessment(group: Group) -> None:
    del group.assessments["t0"]


_ANYWAY: dict[str, tuple[Callable[[Group], None], ExclusionReason]] = {
    "infrastructure": (_trial(outcome=TrialOutcome.INFRA_ERROR), ExclusionReason.NOT_ASSESSABLE),
    "cancelled": (_trial(outcome=TrialOutcome.CANCELLED), ExclusionReason.NOT_ASSESSABLE),
    "no assessment": (_without_assessment, ExclusionReason.UNGRADED),
    "ungraded": (_assessment(outcome=AssessmentOutcome.UNGRADED, reward=None), ExclusionReason.UNGRADED),
    "ungraded with a stray reward": (_assessment(outcome=AssessmentOutcome.UNGRADED), ExclusionReason.UNGRADED),
    "scored without reward": (_assessment(reward=None), ExclusionReason.UNGRADED),
    "NaN reward": (_assessment(reward=float("nan")), ExclusionReason.NON_FINITE),
}
_TRAINING: dict[str, tuple[Callable[[Group], None], ExclusionReason]] = {
    "tampered": (_assessment(tampered=True), ExclusionReason.TAMPERED),
    "no interactions": (_calls(), ExclusionReason.NO_EVIDENCE),
    "misaligned": (_calls(make_interaction(0, [1], [2, 3], [-1.0])), ExclusionReason.MISALIGNED),
    "another trial's": (_calls(make_interaction(0, [1], [2], trial_id="t1")), ExclusionReason.MISALIGNED),
    "infinite logprob": (_calls(make_interaction(0, [1], [2], [float("-inf")])), ExclusionReason.NON_FINITE),
    "stale": (_calls(make_interaction(0, [1], [2], version="ckpt-old")), ExclusionReason.STALE_POLICY),
    "nothing sampled": (_calls(make_interaction(0, [1], [])), ExclusionReason.NO_SAMPLED_TOKENS),
    "only counted": (_calls(make_interaction(0, [1], [2], purpose=Purpose.COUNT)), ExclusionReason.NO_SAMPLED_TOKENS),
}


@pytest.mark.parametrize("case", [*_ANYWAY, *_TRAINING])
def test_one_bad_trial_leaves_before_the_mean(case: str) -> None:
    """The others are centred on their own mean; the bad one has its reason."""
    change, reason = (_ANYWAY | _TRAINING)[case]
    material = Group()
    change(material)
    group = material.qualify()
    assert [(gone.trial_id, gone.attempt, gone.reason) for gone in group.excluded] == [("t0", 0, reason)]
    assert [member.trial_id for member in group.members] == ["t1", "t2", "t3"]
    assert [member.advantage for member in group.members] == pytest.approx([1 / 3, 1 / 3, -2 / 3])


@pytest.mark.parametrize("case", _TRAINING)
def test_evaluations_look_at_no_tokens(case: str) -> None:
    """Without the demand for evidence only outcome and score count; tampering is a zero, not an exclusion."""
    material = Group()
    _TRAINING[case][0](material)
    assert material.qualify(require_evidence=False).excluded == ()


@pytest.mark.parametrize("case", _ANYWAY)
def test_evaluations_exclude_what_has_no_score(case: str) -> None:
    """An unscored trial is in no mean, of any experiment."""
    change, reason = _ANYWAY[case]
    material = Group()
    change(material)
    assert [gone.reason for gone in material.qualify(require_evidence=False).excluded] == [reason]


@pytest.mark.parametrize("outcome", [TrialOutcome.AGENT_ERROR, TrialOutcome.AGENT_TIMEOUT])
def test_an_agents_failure_is_a_score(outcome: TrialOutcome) -> None:
    """The agent, not the platform, ended it: the trial stays, with what it sampled."""
    material = Group()
    material.trials["t0"] = replace(material.trials["t0"], outcome=outcome)
    assert material.qualify().excluded == ()


def test_a_fail_closed_score_counts() -> None:
    """A criterion that failed closed is in the mean. Source: the outcome table of the worlds page, section 5.2."""
    material = Group()
    material.assessments["t0"] = make_assessment("t0", 0.0, outcome=AssessmentOutcome.FAIL_CLOSED)
    assert len(material.qualify().members) == 4


def test_without_captured_interactions_tokens_come_from_usage() -> None:
    """An evaluation that hands over no interactions still shows how much was sampled."""
    material = Group()
    material.trials["t0"] = replace(material.trials["t0"], usage=Usage(n_sampled_tokens=7))
    group = material.qualify(require_evidence=False, captured=False)
    assert group.members[0].n_sampled_tokens == 7
    assert [gone.reason for gone in material.qualify(captured=False).excluded] == [ExclusionReason.NO_EVIDENCE] * 4


@pytest.mark.parametrize("n_good", [0, 1])
def test_fewer_than_two_members_have_no_signal(n_good: int) -> None:
    """A lone member has the advantage 0."""
    material = Group()
    for name in list(material.trials)[n_good:]:
        del material.assessments[name]
    group = material.qualify()
    assert not group.has_signal
    assert [member.advantage for member in group.members] == [0.0] * n_good


def test_the_order_of_trials_does_not_matter() -> None:
    """Records come in any order; members and exclusions are in order of attempt."""
    material = Group()
    material.trials = dict(reversed(material.trials.items()))
    assert material.qualify() == Group().qualify()


@pytest.mark.parametrize(
    ("stranger", "message"),
    [
        (make_trial(4, group=1), "not of group"),
        (make_trial(0, trial_id="t4"), "both are attempt"),
    ],
)
def test_strangers_are_refused(stranger: TrialRecord, message: str) -> None:
    """A trial of another group, or a second record of one attempt, is a fault of the caller."""
    material = Group()
    material.trials["t4"] = stranger
    with pytest.raises(DatumError, match=message):
        material.qualify()


def test_assessments_of_other_trials_are_ignored() -> None:
    """The mapping may hold a whole unit's."""
    material = Group()
    material.assessments["elsewhere"] = Assessment(
        trial_id="elsewhere", assessor="verifier:000000000000", outcome=AssessmentOutcome.SCORED, reward=9.0
    )
    assert len(material.qualify().members) == 4
