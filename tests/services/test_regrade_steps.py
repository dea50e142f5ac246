"""Deadlines and regrades of tasks whose phases are verified while their trial runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapters.verifiers.script import ScriptVerifier
from domain.errors import AdmissionError, ConfigurationError
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import ExperimentKind
from domain.records.manifest import AssessmentManifest, TrialManifest
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.records.trial import TrialOutcome
from domain.service.accept import Submission, accept
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.regrade import accept_regrade, regrade_unit
from domain.service.units import Stage, run_unit
from domain.service.vetting import vet
from tests.fakes.platform import make_platform
from tests.services.test_harbor_import import OUT, SEPARATE, SHARED, TWO, silent, steps_files, write_task

REFERENCE = parse_reference("team/steps@v1", field="test")
SCORED = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
HALVES = steps_files("echo 1 > /app/out\n", "echo 0.5 > /app/out\n")


def publish(directory: Path) -> Platform:
    """Return a platform that knows the tasks below ``directory/tasks``."""
    platform = make_platform(directory / "home")
    publish_task_set(platform, REFERENCE, str(directory / "tasks"))
    return platform


def submit(platform: Platform, plan: Plan, engine: str = "oracle") -> str:
    """Accept an evaluation of all tasks."""
    submission = Submission(
        kind=ExperimentKind.EVALUATION, task_set=str(REFERENCE), actor=Profile(name="a", engine=engine), plan=plan
    )
    return accept(platform, submission).experiment.experiment_id


async def run(platform: Platform, plan: Plan) -> tuple[str, TrialManifest]:
    """Run an evaluation to its end."""
    experiment_id = submit(platform, plan)
    (launch,) = dispatch(platform).launches
    result = await run_unit(platform, launch.unit, "worker", SCORED, silent)
    conclude_evaluation(platform, experiment_id, succeeded=True)
    return experiment_id, result.trials


async def regrade(platform: Platform, experiment_id: str) -> dict[str, Assessment]:
    """Return the verdicts of a regrade by task."""
    identity = accept_regrade(platform, experiment_id).experiment.experiment_id
    _, manifest = await regrade_unit(platform, identity, f"{experiment_id}.s000", "worker", silent)
    with platform.ledger.snapshot() as tx:
        names = {trial.trial_id: trial.task_name for trial in tx.trials.of_experiment(experiment_id)}
    assert isinstance(manifest, AssessmentManifest)
    return {names[item.trial_id]: item for item in manifest.assessments}


def test_a_deadline_that_would_end_an_agent_within_its_limits_is_refused(tmp_path: Path) -> None:
    """Three steps of 120 s for the agent and 120 s for the verifier do not fit into 600 s; the task's limits count."""
    more = {"steps/c/instruction.md": "C.\n", "steps/c/solution/solve.sh": "true\n"}
    three = TWO.format(gate="") + '[[steps]]\nname = "c"\n'
    write_task(tmp_path / "tasks", "steps", SEPARATE + three, {**HALVES, **more}, top=OUT)
    write_task(tmp_path / "tasks", "quick", "[agent]\ntimeout_sec = 60.0\n" + SEPARATE, {"solution/solve.sh": "true\n"})
    platform = publish(tmp_path)
    words = r"t/steps: trial_deadline_s: agent and verifier may take 720 s in 3 steps, the plan has 600"
    with pytest.raises(AdmissionError, match=words):
        submit(platform, Plan(sandbox="local"))
    assert submit(platform, Plan(sandbox="local", trial_deadline_s=720.0))
    with pytest.raises(AdmissionError, match=r"t/quick: trial_deadline_s: the agent may take 60 s, the plan has 50"):
        submit(platform, Plan(sandbox="local", trial_deadline_s=50.0))


async def test_a_step_has_its_own_limit_and_the_next_ones_theirs(tmp_path: Path) -> None:
    """A step that runs out of time is the agent's; it is graded, and the next step runs."""
    files = steps_files("echo 1 > /app/out; sleep 60\n", "echo 0.5 > /app/out\n")
    write_task(
        tmp_path / "tasks",
        "slow",
        SEPARATE + TWO.format(gate="") + "[steps.agent]\ntimeout_sec = 5.0\n",
        files,
        top=OUT,
    )
    platform = publish(tmp_path)
    plan = Plan(sandbox="local", agent_timeout_s=1.0, verifier_timeout_s=20.0, trial_deadline_s=42.0)
    _, manifest = await run(platform, plan)
    (trial,) = manifest.trials
    assert trial.outcome is TrialOutcome.AGENT_TIMEOUT
    assert [(step.outcome.value, step.assessment and step.assessment.reward) for step in trial.steps] == [
        ("agent_timeout", 1.0),
        ("completed", 0.5),
    ]


def saying(platform: Platform, word: str) -> Platform:
    """Return the platform with verifiers that are told another word."""
    given = {"WORD": word}
    verifiers = {
        name: ScriptVerifier(sandbox, platform.store, platform.clock, variables=given)
        for name, sandbox in platform.sandboxes.items()
    }
    return replace(platform, verifiers=verifiers, variables=given)


async def test_a_regrade_verifies_every_step_anew(tmp_path: Path) -> None:
    """New verdicts and new gates over the same trial; what no trial ever did is ungraded, not guessed."""
    says = {**HALVES, "tests/test.sh": 'echo "$V" > /logs/verifier/reward.txt\n'}
    environment = SEPARATE + '[verifier.env]\nV = "${WORD}"\n'
    for name, gate in {"open": "", "gated": "min_reward = 0.5\n"}.items():
        write_task(tmp_path / "tasks", name, environment + TWO.format(gate=gate), says, top=OUT)
    platform = publish(tmp_path)
    high, low = saying(platform, "1"), saying(platform, "0.25")
    experiment_id, manifest = await run(high, Plan(sandbox="local"))
    assert [len(trial.steps) for trial in manifest.trials] == [2, 2]
    found = await regrade(low, experiment_id)
    assert (found["t/open"].reward, found["t/gated"].reward) == (0.25, 0.125)
    experiment_id, manifest = await run(low, Plan(sandbox="local"))
    assert [len(trial.steps) for trial in manifest.trials] == [1, 2]
    found = await regrade(high, experiment_id)
    assert (found["t/open"].reward, found["t/gated"].reward) == (1.0, None)
    assert "step 'b' did not run" in found["t/gated"].reason


async def test_a_shared_verifier_is_not_run_again_and_says_so(tmp_path: Path) -> None:
    """Beside others its trials are ungraded by name; alone, the regrade is refused."""
    solve = {"solution/solve.sh": "echo 1 > /app/out\n"}
    write_task(tmp_path / "tasks", "shared", SHARED, solve)
    platform = publish(tmp_path)
    experiment_id, _ = await run(platform, Plan(sandbox="local"))
    with pytest.raises(ConfigurationError, match=r"t/shared: verifier.environment_mode = 'shared'"):
        accept_regrade(platform, experiment_id)
    other = tmp_path / "other"
    write_task(other / "tasks", "shared", SHARED, solve)
    write_task(
        other / "tasks",
        "mixed",
        SEPARATE + TWO.format(gate="") + "[steps.verifier]\n" + SHARED.partition("\n")[2],
        HALVES,
    )
    write_task(other / "tasks", "sep", SEPARATE, solve, top=OUT)
    platform = publish(other)
    experiment_id, _ = await run(platform, Plan(sandbox="local"))
    found = await regrade(platform, experiment_id)
    assert found["t/sep"].reward == 1.0
    for name, field in {"t/shared": "verifier", "t/mixed": "steps.b.verifier"}.items():
        assert found[name].outcome is AssessmentOutcome.UNGRADED
        assert found[name].reason.startswith(f"{field}.environment_mode = 'shared'")


async def test_vetting_repeats_the_verdicts_of_steps_and_of_shared_verifiers(tmp_path: Path) -> None:
    """A verifier that rolls dice is found wherever it runs."""
    dice = {"tests/test.sh": 'echo "$(( $(date +%s%N) / 1000 % 100000 ))" > /logs/verifier/reward.txt\n'}
    write_task(tmp_path / "tasks", "steps", SEPARATE + TWO.format(gate=""), {**HALVES, **dice}, top=OUT)
    write_task(tmp_path / "tasks", "shared", SHARED, {"solution/solve.sh": "true\n", **dice})
    write_task(tmp_path / "tasks", "calm", SEPARATE + TWO.format(gate=""), HALVES, top=OUT)
    platform = publish(tmp_path)
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(REFERENCE)
    found = await vet(platform, task_set, "local", 0, holder="test")
    assert {line.partition(":")[0] for line in found.wrong["verifier_is_deterministic"]} == {"t/steps", "t/shared"}
