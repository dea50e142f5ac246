"""Small real records for the tests of the numbers."""

from collections.abc import Sequence

from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.task import ObjectRef, TaskEntry
from domain.records.trial import AttemptKey, Interaction, Purpose, StopReason, TrialOutcome, TrialRecord

POLICY = "base-000000000000"
UNIT = "trn-test.b00000"
TASK = TaskEntry(name="org/task", digest="d" * 64, record=ObjectRef(digest="e" * 64, size_bytes=1))


def make_interaction(
    sequence: int,
    prompt: Sequence[int],
    sampled: Sequence[int],
    logprobs: Sequence[float] | None = None,
    *,
    trial_id: str = "t0",
    agent: str = "main",
    segment: int = 0,
    purpose: Purpose = Purpose.AGENT,
    version: str = POLICY,
) -> Interaction:
    """Return a call; without logprobs each sampled id gets -0.1 x its place in the whole trial."""
    given = [-0.1 * (i + 1) - sequence for i in range(len(sampled))] if logprobs is None else logprobs
    return Interaction(
        interaction_id=f"{trial_id}-{agent}-{sequence}",
        trial_id=trial_id,
        sequence=sequence,
        agent=agent,
        segment=segment,
        purpose=purpose,
        sampler_version=version,
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        logprobs=tuple(given),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=0,
    )


def make_trial(
    attempt: int, *, trial_id: str | None = None, outcome: TrialOutcome = TrialOutcome.COMPLETED, group: int = 0
) -> TrialRecord:
    """Return a terminal record of attempt ``attempt``; trial ``t<attempt>``."""
    return TrialRecord(
        trial_id=trial_id or f"t{attempt}",
        key=AttemptKey(unit=UNIT, group=group, attempt=attempt),
        experiment_id="trn-test",
        task_name=TASK.name,
        task_digest=TASK.digest,
        profile_digest="f" * 64,
        policy=POLICY,
        outcome=outcome,
    )


def make_assessment(
    trial_id: str,
    reward: float | None,
    *,
    outcome: AssessmentOutcome = AssessmentOutcome.SCORED,
    tampered: bool = False,
) -> Assessment:
    """Return an assessment by one verifier."""
    return Assessment(
        trial_id=trial_id, assessor="verifier:000000000000", outcome=outcome, reward=reward, tampered=tampered
    )
