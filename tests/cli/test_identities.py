"""What a wrong identity is told, and what lists and single attempts say of themselves."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli import formats
from cli.agent_run import AgentRun, context_of
from cli.connection import platform
from domain.records.identities import Named, identity_hint, named_by
from domain.records.model import BasePolicy, UpdateState
from domain.records.trial import TrialOutcome
from domain.records.wording import without_documents
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.units import Stage, run_unit
from tests.cli.report_records import trial
from tests.cli.synth import Synth, write_json
from tests.contracts.ledger_scene import EXPERIMENT, scene

START = ("run", "start", "--dataset", "team/evaluation@v1", "--actor", "@agent.json", "--plan", "@eval-plan.json")
STAGES = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
_ERROR = {"type": "invalid_request_error", "message": 'prompt is "too" long: 541 tokens > 511 maximum'}
REFUSED = f"exit code 1: ModelError: status 400: {json.dumps({'type': 'error', 'error': _ERROR})}"


def _note(_what: str, _done: int, _total: int) -> None:
    """Say nothing."""


def _told(synth: Synth, *arguments: str) -> str:
    """Return what a request that is wrong is told, on one line."""
    answer = synth(*arguments)
    assert (answer.code, answer.out, "Traceback" in answer.err) == (2, "", False), answer
    return " ".join(answer.err.split())


@pytest.fixture
def started(published: Synth) -> tuple[Synth, str]:
    """Return the command and an evaluation that waits."""
    return published, published.json(*START)["experiment"]["experiment_id"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("evl-01k", Named.EXPERIMENT),
        ("trn-01k.b00012", Named.UNIT),
        ("evl-01k.s000/g003/a1", Named.ATTEMPT),
        ("01kw1nzt37wkjqfabzkch7wk5c", Named.TRIAL),
        ("ckpt-0123456789ab", Named.CHECKPOINT),
        ("trn-01k@3", Named.CHECKPOINT),
        ("nothing", None),
    ],
)
def test_an_identity_says_by_its_form_what_it_names(text: str, kind: Named | None) -> None:
    """So that the wrong kind is told apart from a name that nothing has."""
    assert named_by(text) is kind


def test_many_units_are_told_as_a_range() -> None:
    """Nobody reads a thousand keys."""
    assert identity_hint("evl-1", Named.UNIT, [f"evl-1.s00{n}" for n in range(9)]).endswith("evl-1.s000 to evl-1.s008")


def test_the_wrong_kind_of_identity_is_told_what_it_names(started: tuple[Synth, str]) -> None:
    """And the command, or the identities, that belong there."""
    synth, experiment = started
    unit, trial_id = f"{experiment}.s000", "01kw1nzt37wkjqfabzkch7wk5c"
    assert f"names an experiment; `synth run trials {experiment}`" in _told(synth, "run", "transcript", experiment)
    assert f"names a unit; `synth run trials {experiment}`" in _told(synth, "run", "transcript", unit)
    assert f"names an experiment; name a unit: {unit}" in _told(synth, "run", "resample", experiment)
    assert f"names an experiment; name a unit: {unit}" in _told(synth, "run", "resolve", experiment, "--applied")
    assert "takes no optimizer step" in _told(synth, "run", "resolve", unit, "--applied")
    assert f"names a unit; its experiment is {experiment}" in _told(synth, "run", "show", unit)
    assert f"names a trial; `synth run transcript {trial_id}`" in _told(synth, "run", "show", trial_id)
    assert f"did you mean '{unit}'?" in _told(synth, "run", "resample", f"{experiment}.s007")
    assert f"did you mean '{experiment}'?" in _told(synth, "run", "show", experiment[:20])
    assert "`synth run list --all`" in _told(synth, "run", "show", "nothing")


@pytest.mark.parametrize("identity", ["nothing", "ckpt-1", "evl-01k.s000"])
def test_artifacts_are_of_experiments_or_trials(synth: Synth, published: Synth, identity: str) -> None:
    """What names neither is told so."""
    told = _told(published, "run", "artifacts", identity)
    assert "neither an experiment nor a trial" in told
    assert "synth run list" in told


def test_an_outcome_that_no_trial_has_is_refused(started: tuple[Synth, str]) -> None:
    """An empty table would say that none ended so."""
    synth, experiment = started
    told = _told(synth, "run", "trials", experiment, "--outcome", "agent_timout")
    assert "did you mean 'agent_timeout'?" in told


def test_only_trainings_have_checkpoints(started: tuple[Synth, str]) -> None:
    """Of anything else the command says so instead of an empty table; programs get an empty list."""
    synth, experiment = started
    assert "only trainings make checkpoints" in synth.ok("run", "checkpoints", experiment).out
    assert synth.json("run", "checkpoints", experiment) == {"checkpoints": []}


def test_lists_of_nothing_say_what_makes_something(published: Synth) -> None:
    """No heading stands over nothing."""
    for words, command in (
        (("run", "list"), "synth run start"),
        (("profile", "list"), "synth profile publish"),
        (("policy", "list"), "synth policy make"),
    ):
        assert command in published.ok(*words).out


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "has not reached the optimizer"),
        (UpdateState.PREPARING, "its step has not been sent yet"),
        (UpdateState.SKIPPED, "its groups carried no signal"),
    ],
)
def test_a_settled_step_needs_no_operator(synth: Synth, state: UpdateState | None, words: str) -> None:
    """Why there is nothing to resolve, in words for somebody who never saw the ledger."""
    synth.home.mkdir()
    opened = platform()
    held = scene(opened.ledger)
    with opened.ledger.begin() as tx:
        if state is not None:
            tx.updates.begin(held.lease, held.update())
        if state is UpdateState.SKIPPED:
            tx.updates.skip(held.lease, held.unit)
    told = _told(synth, "run", "resolve", held.unit, "--not-applied")
    assert words in told
    assert state is None or f"synth run show {EXPERIMENT}" in told
    assert "read the update" not in told


def test_a_run_is_shown_with_its_actor_and_its_mean(started: tuple[Synth, str], tmp_path: Path) -> None:
    """In the list with the number of scored attempts; attempts of ``agent run`` only when they are asked for."""
    synth, experiment = started
    write_json(Path("other.json"), {"name": "does-nothing", "engine": "nop"})
    synth.ok("agent", "run", "@other.json", "--task", str(tmp_path / "tasks" / "b-one"), "--sandbox", "memory")
    opened = platform()
    for launch in dispatch(opened).launches:
        asyncio.run(run_unit(opened, launch.unit, "test", STAGES, _note))
    conclude_evaluation(opened, experiment, succeeded=True)
    listed = synth.ok("run", "list")
    assert experiment in listed.out
    assert "0.500  n=6" in listed.out
    assert "local/" not in listed.out
    assert "1 attempt of `synth agent run` left out: --all" in listed.err
    every = synth.ok("run", "list", "--all")
    assert "does-nothing (nop)" in every.out
    assert "left out" not in every.err
    assert [item["experiment_id"] for item in synth.json("run", "list", "--limit", "1")["experiments"]] == [experiment]
    shown = synth.ok("run", "show", synth.json("run", "list", "--all")["experiments"][0]["experiment_id"]).out
    assert "does-nothing (nop)" in shown
    assert "over 1 task, 1 scored attempt" in shown
    assert synth.json("run", "show", experiment)["actor"]["name"] == "nop"


@pytest.mark.parametrize("cut", [None, 140])
def test_a_model_s_error_is_read_as_what_it_says(cut: int | None) -> None:
    """Whole or cut off: the document stays in the record, people see its message."""
    said = without_documents(REFUSED[:cut])
    assert said.startswith('exit code 1: ModelError: status 400: prompt is "too"')
    assert "{" not in said
    assert "invalid_request_error" not in formats.told(REFUSED)
    assert without_documents("exit code 1: {}") == "exit code 1: {}"


def test_a_prompt_that_does_not_fit_is_told_the_context(synth: Synth) -> None:
    """The policy and how much it takes; nothing when all fitted."""
    synth.home.mkdir()
    opened = platform()
    policy = BasePolicy(
        name="demo",
        digest="b" * 64,
        family="qwen3",
        files=(),
        n_parameters=1,
        context_tokens=512,
        recipe_digest="r",
    )
    with opened.ledger.begin() as tx:
        tx.catalog.add_base_policy(policy)
    record = replace(trial("t", 0), policy="base-" + "b" * 12, outcome=TrialOutcome.AGENT_ERROR, detail=REFUSED)
    found = AgentRun(experiment_id="evl-1", trial=replace(record, detail="prompt is too long"), assessment=None)
    assert "base:demo has a context of 512 tokens" in (context_of(found, opened) or "")
    assert context_of(replace(found, trial=replace(record, detail="")), opened) is None
