"""Small true records for report tests: two families of two tasks, a conversation, a training of two batches."""

from adapters.reports.content import ExperimentContent, LabelledEvaluation
from domain.maths.comparison import paired_difference
from domain.maths.scores import TaskScores
from domain.maths.statistics import mean_score
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState
from domain.records.model import Checkpoint, PolicyVersion, Update, UpdateState
from domain.records.names import Reference
from domain.records.profile import Plan, Profile
from domain.records.trial import AttemptKey, Interaction, Purpose, StopReason, TrialOutcome, TrialRecord, Usage
from domain.service.evaluate import BatchPoint, EvaluationReport
from domain.service.inspection import ExperimentView

N_ATTEMPTS = 4
TRAINING = "trn-test"
_POLICY = PolicyVersion(name="base-0", base="b")


def interactions() -> tuple[Interaction, Interaction]:
    """Return two calls of one agent: a command, then an answer to its output."""
    first = Interaction(
        interaction_id="i0",
        trial_id="t",
        sequence=0,
        agent="main",
        segment=0,
        purpose=Purpose.AGENT,
        sampler_version="base-0",
        prompt_ids=(1, 2, 3, 4),
        sampled_ids=(5, 6, 7),
        logprobs=(-0.25, -0.5, -0.75),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=1,
        request={"system": "Be brief.", "messages": [{"role": "user", "content": "Write hello."}]},
        response={
            "content": [
                {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "echo <b>hello</b> > out.txt"}}
            ]
        },
    )
    second = Interaction(
        interaction_id="i1",
        trial_id="t",
        sequence=1,
        agent="main",
        segment=0,
        purpose=Purpose.AGENT,
        sampler_version="base-0",
        prompt_ids=(1, 2, 3, 4, 5, 6, 7, 8),
        sampled_ids=(9,),
        logprobs=(-0.5,),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=2,
        request={
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}]
        },
        response={"content": [{"type": "text", "text": "done"}]},
    )
    return first, second


def trial(trial_id: str, task: int, attempt: int = 0) -> TrialRecord:
    """Return a completed trial."""
    return TrialRecord(
        trial_id=trial_id,
        key=AttemptKey(unit=f"{TRAINING}.b00000", group=task, attempt=attempt),
        experiment_id=TRAINING,
        task_name=f"tests/task-{task}",
        task_digest=f"d{task}",
        profile_digest="p",
        policy="base-0",
        outcome=TrialOutcome.COMPLETED,
        started_ms=1_000,
        ended_ms=3_000,
        usage=Usage(wall_s=2.0, n_calls=2, n_prompt_tokens=12, n_sampled_tokens=4),
    )


def assessment(trial_id: str, reward: float) -> Assessment:
    """Return a scored assessment."""
    return Assessment(
        trial_id=trial_id, assessor="verifier:0", outcome=AssessmentOutcome.SCORED, panel={"r": reward}, reward=reward
    )


def _rewards(share: float) -> list[float]:
    return [1.0] * round(share * N_ATTEMPTS) + [0.0] * round((1 - share) * N_ATTEMPTS)


def trials(share: float) -> tuple[tuple[TrialRecord, Assessment | None], ...]:
    """Return four tasks x four attempts of which ``share`` succeed."""
    return tuple(
        (trial(name, task, attempt), assessment(name, reward))
        for task in range(4)
        for attempt, reward in enumerate(_rewards(share))
        for name in (f"{share}-{task}-{attempt}",)
    )


def _tasks(share: float) -> tuple[TaskScores, ...]:
    return tuple(
        TaskScores(task=f"d{task}", scores=tuple(_rewards(share)), family="ab"[task // 2]) for task in range(4)
    )


def report(share: float) -> EvaluationReport:
    """Return the report of those trials."""
    tasks = _tasks(share)
    return EvaluationReport(
        experiment=_experiment(ExperimentKind.EVALUATION, Plan(attempts=N_ATTEMPTS)),
        sources=("s",),
        mean=mean_score(tasks),
        headline=share,
        pass_at={},
        pass_hat={},
        tasks=tasks,
        task_names={f"d{task}": f"tests/task-{task}" for task in range(4)},
        families={name: mean_score([task for task in tasks if task.family == name]) for name in "ab"},
        outcomes={"completed": 16},
        n_tampered=0,
        n_prompt_tokens=192,
        n_sampled_tokens=64,
        sandbox_s=32.0,
    )


def _experiment(kind: ExperimentKind, plan: Plan) -> Experiment:
    return Experiment(
        experiment_id=TRAINING,
        spec=ExperimentSpec(
            kind=kind,
            task_set=Reference(team="team", name="practice", version=1),
            task_set_digest="t",
            actor_digest="p" * 64,
            assessor="verifier",
            plan=plan,
            policy=_POLICY,
        ),
        spec_digest="s" * 64,
        state=ExperimentState.SUCCEEDED,
        n_units=2,
        created_ms=0,
    )


def _view(experiment: Experiment, planned: int, assessed: dict[str, int]) -> ExperimentView:
    return ExperimentView(
        actor=Profile(name="agent", engine="mini", model="base:b"),
        experiment=experiment,
        units=(),
        n_trials_planned=planned,
        outcomes={"completed": planned},
        assessed=assessed,
        mean=None,
        n_scored=sum(assessed.values()),
        checkpoints=(),
    )


def unscored() -> ExperimentContent:
    """Return an unscored run of two trials."""
    experiment = _experiment(ExperimentKind.UNSCORED, Plan())
    found = (trial("u0", 0), trial("u1", 1))
    return ExperimentContent(
        view=_view(experiment, 2, {}),
        profile=Profile(name="agent", engine="mini"),
        made_ms=0,
        trials=tuple((item, None) for item in found),
    )


def _point(index: int, share: float) -> BatchPoint:
    unit = f"{TRAINING}.b{index:05d}"
    checkpoint = Checkpoint(
        checkpoint_id=f"ckpt-{index}",
        experiment_id=TRAINING,
        unit=unit,
        version=_POLICY,
        state=(),
        next_batch=index + 1,
        parent="base-0",
        groups=(f"{unit}/g000",),
        metrics={"loss_sum": -1.5, "n_trained_tokens": 64.0, "grad_norm": 2.5, "kl_v1": 1e-9},
    )
    update = Update(
        update_id=unit,
        experiment_id=TRAINING,
        unit=unit,
        index=index,
        state=UpdateState.APPLIED,
        parent=_POLICY,
    )
    return BatchPoint(
        index=index,
        unit=unit,
        mean=mean_score(_tasks(share)),
        update=update,
        checkpoint=checkpoint,
        n_groups=4,
        n_groups_with_signal=3,
    )


def training(base: LabelledEvaluation, last: LabelledEvaluation) -> ExperimentContent:
    """Return a training of two batches with two evaluations."""
    plan = Plan(attempts=N_ATTEMPTS, batches=2, groups_per_batch=4)
    return ExperimentContent(
        view=_view(_experiment(ExperimentKind.TRAINING, plan), 32, {"scored": 32}),
        profile=Profile(name="agent", engine="mini", model="base:demo"),
        made_ms=0,
        trials=trials(0.5),
        curve=(_point(0, 0.25), _point(1, 0.5)),
        evaluations=(base, last),
        comparison=paired_difference(last.report.tasks, base.report.tasks),
        links={trial.trial_id: f"transcripts/{trial.trial_id}.html" for trial, _ in base.trials},
    )
