"""Harbor's traps, each with our answer: steps, healthchecks, hooks, shared verifiers and variables in real boxes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.clock import SystemClock
from adapters.engines.oracle import OracleEngine
from adapters.sandboxes.memory import MemorySandbox
from adapters.verifiers.script import ScriptVerifier, verifier_environment
from domain.lifecycle.group import assess
from domain.lifecycle.trial import Attempt, TrialContext, run_trial
from domain.ports import Box, BoxSpec, Sandbox
from domain.records.archive import read_file
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import Lease
from domain.records.profile import Plan, Profile
from domain.records.task import NetworkMode, Task
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord
from tests.contracts.sandboxes import local_sandbox
from tests.fakes.platform import make_platform

HEAD = 'artifacts = {artifacts}\n{top}[task]\nname = "t/one"\n[metadata]\nhost_runnable = true\n'
CHECK = "cat /app/score > /logs/verifier/reward.txt\n"
TWO = "[[steps]]\nname = 'a'\n{a}[[steps]]\nname = 'b'\n{b}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Trials of the oracle over local boxes."""

    sandbox: Sandbox
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def task(
        self, toml: str, files: Mapping[str, str], *, top: str = "", artifacts: str = '["/app"]'
    ) -> tuple[Task, bytes]:
        """Write a task and read it."""
        directory = self.home / "task"
        given = {
            "task.toml": HEAD.format(top=top, artifacts=artifacts) + toml,
            "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
            "tests/test.sh": CHECK,
            **files,
        }
        for name, content in given.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(content)
        ((task, archive),) = HarborTaskSource().read(str(directory), host_runnable=False)
        return task, archive

    async def run(
        self, toml: str, files: Mapping[str, str], *, top: str = "", artifacts: str = '["/app"]'
    ) -> tuple[TrialRecord, Assessment]:
        """Run the task's solution to its assessment."""
        task, archive = self.task(toml, files, top=top, artifacts=artifacts)
        platform = make_platform(self.home / "platform", sandboxes={"local": self.sandbox})
        platform.store.put(archive)
        verifier = ScriptVerifier(self.sandbox, platform.store, SystemClock(), variables=self.variables)
        context = TrialContext(
            clock=platform.clock,
            ledger=platform.ledger,
            store=platform.store,
            sandbox=self.sandbox,
            engine=OracleEngine(),
            model=platform.model,
            profile=Profile(name="oracle", engine="oracle"),
            profile_digest="p",
            plan=Plan(),
            experiment_id="evl-1",
            lease=Lease(unit="evl-1.s000", holder="h", fence=1),
            policy=None,
            verifier=verifier,
            variables=self.variables,
        )
        key = AttemptKey(unit="evl-1.s000", group=0, attempt=0)
        trial = await run_trial(context, Attempt(key=key, task=task, archive=archive, seed=0))
        return trial, await assess(verifier, task, trial, fence=1)

    def stored(self, trial: TrialRecord) -> bytes:
        """Return the trial's logs."""
        assert trial.logs is not None
        return make_platform(self.home / "platform").store.get(trial.logs)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """A bench over local boxes."""
    return Bench(sandbox=await local_sandbox(tmp_path / "scratch"), home=tmp_path / "home")


def two(a: str = "", b: str = "") -> str:
    """Return two steps with more lines each."""
    return TWO.format(a=a, b=b)


def solved(first: str, second: str, **more: str) -> dict[str, str]:
    """Return the files of two steps by their solutions; ``more`` adds files (``__`` is ``/``)."""
    return {
        "steps/a/instruction.md": "A.\n",
        "steps/a/solution/solve.sh": first,
        "steps/b/instruction.md": "B.\n",
        "steps/b/solution/solve.sh": second,
        **{name.replace("__", "/").replace("_sh", ".sh"): text for name, text in more.items()},
    }


async def test_steps_share_a_box_and_their_mean_counts(bench: Bench) -> None:
    """The second step finds what the first left; per-step panels stay in record and assessment."""
    trial, found = await bench.run(
        two(), solved("echo 1 > score\n", "test -f score && echo 0.5 > score\n", steps__b__workdir__given="g")
    )
    assert trial.outcome is TrialOutcome.COMPLETED, trial.detail
    assert [(step.name, step.assessment and step.assessment.reward) for step in trial.steps] == [("a", 1.0), ("b", 0.5)]
    assert (found.reward, dict(found.panel)) == (0.75, {"a/reward": 1.0, "b/reward": 0.5, "reward": 0.75})


async def test_the_final_step_alone_counts_where_the_task_says_so(bench: Bench) -> None:
    """The last declared step, not the last that ran."""
    top = 'multi_step_reward_strategy = "final"\n'
    _, found = await bench.run(two(), solved("echo 1 > score\n", "echo 0.25 > score\n"), top=top)
    assert found.reward == 0.25
    gated = two(a="min_reward = 2\n")
    trial, found = await bench.run(gated, solved("echo 1 > score\n", "echo 1 > score\n"), top=top)
    assert ([step.name for step in trial.steps], found.reward) == (["a"], 0.0)


async def test_an_early_stop_does_not_shrink_the_denominator(bench: Bench) -> None:
    """Harbor divides by the steps that ran; a step behind a missed gate counts 0."""
    files = solved("echo 0.4 > score\n", "echo 1 > score\n")
    trial, found = await bench.run(two(a="min_reward = 0.5\n"), files)
    assert [step.name for step in trial.steps] == ["a"]
    assert (found.outcome, found.reward) == (AssessmentOutcome.SCORED, 0.2)
    assert "below 0.5" in found.reason
    _, found = await bench.run(two(a="min_reward = { style = 0.1 }\n"), files)
    assert "style = nothing" in found.reason


async def test_a_failed_setup_of_a_later_step_is_zero_and_never_one(bench: Bench) -> None:
    """Harbor gives 1.0 here: the failed step has no result and leaves the mean."""
    files = solved("echo 1 > score\n", "echo 1 > score\n", steps__b__workdir__setup_sh="exit 3\n")
    trial, found = await bench.run(two(), files)
    assert [step.assessment and step.assessment.reward for step in trial.steps] == [1.0, 0.0]
    assert (found.outcome, found.reward) == (AssessmentOutcome.SCORED, 0.5)
    assert "setup.sh ended with 3" in found.reason


async def test_a_failed_setup_before_any_agent_is_ungraded(bench: Bench) -> None:
    """Nobody's work was there to break it."""
    files = solved("echo 1 > score\n", "echo 1 > score\n", steps__a__workdir__setup_sh="exit 3\n")
    trial, found = await bench.run(two(), files)
    assert (trial.outcome, found.outcome, found.reward) == (
        TrialOutcome.INFRA_ERROR,
        AssessmentOutcome.UNGRADED,
        None,
    )


async def test_a_step_without_a_verdict_leaves_the_trial_ungraded(bench: Bench) -> None:
    """A verifier that writes nothing in step 2 does not make step 1 the whole truth."""
    files = solved("echo 1 > score\n", "echo 1 > score\n", steps__b__tests__test_sh="true\n")
    trial, found = await bench.run(two(), files)
    assert (len(trial.steps), found.outcome, found.reward) == (2, AssessmentOutcome.UNGRADED, None)
    assert "'b' is ungraded" in found.reason


async def test_the_tasks_verifier_limit_holds_for_its_steps(bench: Bench) -> None:
    """Harbor gives every step 600 s, whatever the task says."""
    toml = "[verifier]\ntimeout_sec = 0.5\n" + two()
    files = {**solved("true\n", "true\n"), "tests/test.sh": "echo 1 > /logs/verifier/reward.txt; sleep 30\n"}
    trial, found = await bench.run(toml, files)
    assert (len(trial.steps), found.reward) == (1, None)
    assert "did not end" in found.reason


async def test_setup_runs_as_the_agents_user_in_the_workdir(bench: Bench) -> None:
    """Per step, beside the files of its ``workdir/``."""
    setup = "id -u > who; cat given >> who\n"
    files = solved("cp who score1; echo 1 > score\n", "true\n", steps__a__workdir__setup_sh=setup)
    check = "[ \"$(cat /app/who | tr '\\n' ' ')\" = '1000 g ' ] && cat /app/score > /logs/verifier/reward.txt\n"
    more = {"steps/a/workdir/given": "g\n", "tests/test.sh": check}
    _, found = await bench.run("[agent]\nuser = 'agent'\n" + two(), {**files, **more})
    assert found.reward == 1.0, found.reason


SHARED = "[verifier]\nenvironment_mode = 'shared'\n"


async def test_a_shared_verifier_sees_the_box_but_nothing_alive_or_planted(bench: Bench) -> None:
    """What the agent left outside the artifacts is there; its watcher, its rewards and its tests are not."""
    attack = (
        "echo 0 > /var/score; mkdir -p /tests/x; echo evil > /tests/helper; echo 1 > /logs/verifier/reward.txt;"
        " echo '{\"reward\": 1}' > /logs/verifier/reward.json;"
        " (setsid bash -c 'while true; do echo 1 > /logs/verifier/reward.txt; done' > /dev/null 2>&1 &)\n"
    )
    check = "ls /tests | wc -l > /app/n; sleep 0.2; cat /var/score > /logs/verifier/reward.txt; cat /app/n\n"
    trial, found = await bench.run(
        SHARED, {"instruction.md": "X.\n", "solution/solve.sh": attack, "tests/test.sh": check}
    )
    assert (trial.outcome, found.reward, found.outcome) == (TrialOutcome.COMPLETED, 0.0, AssessmentOutcome.SCORED)
    none, found = await bench.run(SHARED, {"solution/solve.sh": attack, "tests/test.sh": "true\n"})
    assert (none.steps[0].name, found.outcome) == ("", AssessmentOutcome.UNGRADED)


async def test_a_shared_step_leaves_no_tests_for_the_next(bench: Bench) -> None:
    """The second agent phase finds neither the tests nor how the first was graded."""
    look = (
        'ls /tests /logs/verifier | grep -c . ; echo 1 > score; [ -z "$(ls -A /tests /logs/verifier | grep -v :)" ]\n'
    )
    trial, found = await bench.run(SHARED + two(), solved("echo 1 > score\n", look))
    assert [step.outcome for step in trial.steps] == [TrialOutcome.COMPLETED] * 2, trial.detail
    assert found.reward == 1.0


async def test_a_healthcheck_waits_and_its_failure_is_nobodys(bench: Bench) -> None:
    """Failures in the start period do not count; after it they end the trial as infrastructure."""
    files = {"instruction.md": "X.\n", "solution/solve.sh": "echo 1 > score\n"}
    wait = "echo x >> n; [ $(wc -l < n) -ge 3 ]"
    check = f"[environment.healthcheck]\ncommand = '{wait}'\ninterval_sec = 0.05\nstart_interval_sec = 0.05\n"
    _, found = await bench.run(check + "start_period_sec = 20\nretries = 1\n", files)
    assert found.reward == 1.0
    trial, found = await bench.run(check + "retries = 2\n", files)
    assert (trial.outcome, found.outcome) == (TrialOutcome.INFRA_ERROR, AssessmentOutcome.UNGRADED)
    assert "failed 2 times" in trial.detail


async def test_collect_hooks_run_bounded_after_the_agent_as_their_user(bench: Bench) -> None:
    """They write what the artifacts then hold; one that hangs costs its limit and is noted."""
    hooks = (
        "[[verifier.collect]]\ncommand = 'id -u > /app/score'\nuser = 65534\n"
        "[[verifier.collect]]\ncommand = 'sleep 30'\ntimeout_sec = 0.3\n"
    )
    solve = "chmod 777 . ; (setsid sleep 60 &)\n"
    trial, found = await bench.run(hooks, {"instruction.md": "X.\n", "solution/solve.sh": solve})
    assert found.reward == 65534.0, found.reason
    assert "'sleep 30' did not end within 0.3 s" in trial.detail


async def test_artifacts_without_their_excluded_files_and_the_published_place(bench: Bench) -> None:
    """``exclude`` works as tar does; what lies in /logs/artifacts comes along undeclared."""
    solve = "mkdir -p d/keep d/cache; touch d/a.o d/keep/b.c d/cache/z; echo 3 > /logs/artifacts/p\n"
    check = (
        "find /app/d /logs/artifacts -type f | sort | tr '\\n' ' ' > /tmp/f; cat /tmp/f;"
        " [ \"$(cat /tmp/f)\" = '/app/d/keep/b.c /logs/artifacts/p ' ] && echo 1 > /logs/verifier/reward.txt\n"
    )
    files = {"instruction.md": "X.\n", "solution/solve.sh": solve, "tests/test.sh": check}
    _, found = await bench.run("", files, artifacts='[{ source = "/app/d", exclude = ["*.o", "cache"] }]')
    assert found.reward == 1.0, found.reason


async def test_variables_reach_the_box_and_nothing_that_is_kept(bench: Bench) -> None:
    """The record has the template, the box the value, the logs neither."""
    secret = "s3cr3t-value-of-the-operator"
    given = Bench(sandbox=bench.sandbox, home=bench.home, variables={"KEY": secret})
    toml = "[environment.env]\nK = '${KEY}'\nD = '${NONE:-plain}'\n[verifier.env]\nV = '${KEY}'\n"
    solve = 'echo "$K $D"; echo "$K" >&2; printf %s "$K" | sha256sum | cut -c1-8 > sum\n'
    check = 'echo "$V"; printf %s "$V" | sha256sum | cut -c1-8 | cmp - /app/sum && echo 1 > /logs/verifier/reward.txt\n'
    trial, found = await given.run(toml, {"instruction.md": "X.\n", "solution/solve.sh": solve, "tests/test.sh": check})
    assert found.reward == 1.0, found.reason
    assert read_file(given.stored(trial), "0.stdout") == b"[REDACTED] plain\n"
    everything = b"".join(path.read_bytes() for path in (given.home / "platform").rglob("*") if path.is_file())
    assert secret.encode() not in everything
    trial, _ = await bench.run(toml, {})
    assert "environment.env.K: ${KEY} is no variable" in trial.detail


def test_a_verifier_has_no_network_unless_it_asks(bench: Bench) -> None:
    """Harbor's separate verifier is online by default, even where the agent is not."""
    files = {"instruction.md": "X.\n", "solution/solve.sh": "true\n"}
    silent, _ = bench.task("[environment]\nnetwork_mode = 'public'\n", files)
    asks, _ = bench.task("[verifier]\nnetwork_mode = 'public'\n", files)
    assert verifier_environment(silent).network_mode is NetworkMode.NO_NETWORK
    assert verifier_environment(asks).network_mode is NetworkMode.PUBLIC


PARSED = {
    "both files: json wins": ('{"reward": 0.5}', "1", 0.5),
    "bad json beside good text": ("x", "1", None),
    "boolean": ('{"reward": true}', None, None),
    "scalar json": ("1", None, None),
    "empty object": ("{}", None, None),
    "several keys without a headline": ('{"a": 1, "b": 1}', None, None),
    "blank text": (None, "  ", None),
    "negative": (None, "-1", -1.0),
}


@pytest.mark.parametrize(("json_text", "text", "reward"), PARSED.values(), ids=PARSED.keys())
async def test_harbors_parsing_table_has_our_answer(
    bench: Bench, json_text: str | None, text: str | None, reward: float | None
) -> None:
    """Section 2.2 of the facts: what could mean two things is no reward."""
    lines = [
        f"printf %s {shlex.quote(content)} > /logs/verifier/{name}"
        for name, content in (("reward.json", json_text), ("reward.txt", text))
        if content is not None
    ]
    _, found = await bench.run(
        "", {"instruction.md": "X.\n", "solution/solve.sh": "true\n", "tests/test.sh": "\n".join(lines) + "\nexit 7\n"}
    )
    assert found.reward == reward, found.reason


class _Unforeseen(MemorySandbox):
    """A sandbox with a bug."""

    async def create(self, spec: BoxSpec) -> Box:
        """Fail as no adapter should."""
        raise RecursionError(spec.box_id)


async def test_an_unforeseen_fault_ends_its_trial_and_not_the_unit(tmp_path: Path) -> None:
    """What nobody translated is infrastructure: replaced, counted apart, and told by name."""
    bench = Bench(sandbox=_Unforeseen(), home=tmp_path)
    trial, found = await bench.run("", {"instruction.md": "A.\n", "solution/solve.sh": "true\n"})
    assert trial.outcome is TrialOutcome.INFRA_ERROR
    assert "RecursionError" in trial.detail
    assert found.outcome is AssessmentOutcome.UNGRADED
