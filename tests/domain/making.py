"""Small real records for the tests of the numbers."""

from collections.abc import Sequence

from hypothesis import strategies as st

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


@st.composite
def conversations(draw: st.DrawFn) -> list[Interaction]:
    """Calls of one trial by one to three agents that take turns; prompts extend, restart or come from elsewhere."""
    token = st.integers(0, 5)
    histories: dict[str, list[int]] = {}
    segments: dict[str, int] = {}
    calls: list[Interaction] = []
    for sequence in range(draw(st.integers(0, 9))):
        agent = draw(st.sampled_from(["main", "sub-1", "sub-2"]))
        history = histories.get(agent, [])
        move = draw(st.sampled_from(["extend", "extend", "extend", "rewrite", "segment"]))
        if move == "segment":
            segments[agent] = segments.get(agent, 0) + 1
        kept = history if move != "rewrite" else history[: draw(st.integers(0, len(history)))]
        prompt = [*kept, *draw(st.lists(token, min_size=0 if kept else 1, max_size=4))]
        sampled = draw(st.lists(token, max_size=4))
        logprobs = draw(st.lists(st.floats(-50, 0), min_size=len(sampled), max_size=len(sampled)))
        purpose = draw(st.sampled_from([Purpose.AGENT] * 5 + [Purpose.COUNT]))
        segment = segments.get(agent, 0)
        call = make_interaction(sequence, prompt, sampled, logprobs, agent=agent, segment=segment, purpose=purpose)
        calls.append(call)
        histories[agent] = [*prompt, *sampled]
    return calls
