"""What a wrong request is told: the file, the field, what was meant, and with what command to go on."""

from pathlib import Path

import pytest

from domain.records.wording import counted, did_you_mean, one_of
from tests.cli.synth import Synth, write_json

DATASET = ("--dataset", "team/evaluation@v1")
ACTOR = ("--actor", "@agent.json")
PLAN = ("--plan", "@eval-plan.json")
TASK = "../tasks/a-one"
NOP = {"name": "nop", "engine": "nop"}


def _told(synth: Synth, *arguments: str) -> str:
    """Return what a request that is wrong is told, on one line."""
    answer = synth(*arguments)
    assert (answer.code, answer.out, "Traceback" in answer.err) == (2, "", False), answer
    return " ".join(answer.err.split())


def test_what_was_meant_is_a_near_name_or_the_only_one_that_begins_so() -> None:
    """Nothing is guessed from afar."""
    assert did_you_mean("minni", ("mini", "nop", "oracle")) == "did you mean 'mini'?"
    assert did_you_mean("Mini", ("mini", "nop")) == "did you mean 'mini'?"
    assert did_you_mean("kube", ("docker", "kubernetes")) == "did you mean 'kubernetes'?"
    assert did_you_mean("cloud", ("local", "docker")) == ""
    assert did_you_mean("x", ()) == ""
    assert one_of("minni", ("mini", "nop")) == "did you mean 'mini'? Use one of mini, nop"
    assert one_of("bash", ("mini", "nop")) == "use one of mini, nop"


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(1, "shard", "1 shard"), (0, "task", "0 tasks"), (2, "batch", "2 batches"), (1920, "family", "1,920 families")],
)
def test_a_number_of_things_is_read_as_people_say_it(count: int, noun: str, said: str) -> None:
    """One is one."""
    assert counted(count, noun) == said


@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        (
            "agent.json",
            NOP | {"engine": "noop"},
            ("agent.json: engine: no engine 'noop'", "did you mean 'nop'? Use one of", "mini", "oracle"),
        ),
        ("agent.json", NOP | {"engine": "bash"}, ("agent.json: engine: no engine 'bash'", "use one of")),
        ("agent.json", NOP | {"settings": {"a": 1}}, ("agent.json: settings: engine nop takes none",)),
        ("agent.json", {"name": "m", "engine": "mini", "model": "base:x", "settings": {"max_turn": 1}},
         ("agent.json: model: base policy 'x' is not in the ledger", "synth policy list", "synth policy make")),
        ("agent.json", NOP | {"enginge": "nop"}, ("agent.json: enginge: unknown field (did you mean 'engine'?)",)),
        ("eval-plan.json", {"sandbox": "memry"}, ("eval-plan.json: sandbox: no sandbox 'memry'", "mean 'memory'?")),
        ("eval-plan.json", {"atempts": 2}, ("eval-plan.json: atempts: unknown field (did you mean 'attempts'?)",)),
        ("eval-plan.json", {"attempts": "four"}, ('eval-plan.json: attempts: "four" is not a whole number',)),
        ("eval-plan.json", {"attempts": None}, ("attempts: null is not a whole number",)),
        ("eval-plan.json", {"order": "shufled"}, ('"listed" or "shuffled" (did you mean \'shuffled\'?)',)),
        ("eval-plan.json", {"sampling": {"temprature": 1}}, ("sampling.temprature", "did you mean 'temperature'?")),
        ("eval-plan.json", {"sampling": []}, ("sampling: [] is not an object",)),
        ("eval-plan.json", {"attempts": "x", "sede": 1}, ("attempts:", "sede: unknown field (did you mean 'seed'?)")),
        ("eval-plan.json", NOP, ("eval-plan.json: this looks like a profile, and a plan is wanted", "--actor")),
        ("agent.json", {"attempts": 2}, ("agent.json: this looks like a plan, and a profile is wanted", "--plan")),
    ],
)  # fmt: skip
def test_a_wrong_document_says_what_was_meant(
    published: Synth, name: str, document: object, words: tuple[str, ...]
) -> None:
    """File and field, what stands there and what belongs; no list of fields where one of them is meant."""
    write_json(Path(name), document)
    told = _told(published, "run", "start", *DATASET, *ACTOR, *PLAN)
    assert all(word in told for word in words), told
    assert "fields of" not in told
    assert "Input should be" not in told


def test_a_field_that_resembles_none_lists_those_of_its_section(published: Synth) -> None:
    """And of no other."""
    write_json(Path("eval-plan.json"), {"sampling": {"colour": "red"}})
    told = _told(published, "run", "start", *DATASET, *ACTOR, *PLAN)
    assert "sampling.colour: unknown field" in told
    assert "fields of sampling: temperature, max_tokens" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "start", *DATASET, "--actor", "agent.json", *PLAN), ("--actor:", "write @agent.json")),
        (("run", "start", *DATASET, *ACTOR, "--plan", "eval-plan.json"), ("--plan:", "write @eval-plan.json")),
        (("run", "start", *DATASET, *ACTOR, "--plan", "eval-plan"), ("--plan:", "write @eval-plan.json")),
        (("agent", "run", "agent", "--task", "."), ("profile:", "write @agent.json")),
        (("agent", "run", "@agent.json", "--task", TASK, "--sandbox", "memry"), ("--sandbox: no sandbox 'memry'",)),
        (("agent", "run", "oracle", "--task", "."), ("profile:", "synth profile list", "@FILE")),
        (("profile", "publish", "agent.json", "team/a@v1"), ("profile:", "write @agent.json")),
        (("policy", "make", "agent.json"), ("recipe:", "write @agent.json")),
        (("policy", "make", "demo"), ("recipe:", "write @FILE, for example @examples/base-policy.json")),
        (("run", "start", "--dataset", ".", *ACTOR, *PLAN), ("--dataset:", "synth task-set publish .")),
        (("run", "start", "--dataset", "@.", *ACTOR, *PLAN), ("--dataset:", "synth task-set publish .")),
        (("run", "start", *DATASET, "--actor", "a\0b", *PLAN), ("--actor:", "@FILE")),
    ],
)
def test_a_file_without_its_mark_is_told_how_to_write_it(
    published: Synth, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Wherever a document is taken, and whatever else is taken there."""
    told = _told(published, *arguments)
    assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dataset", "team/evalution@v1", *ACTOR), ("mean 'team/evaluation@v1'?", "synth task-set list")),
        (("--dataset", "other/set@v1", *ACTOR), ("`synth task-set list`", "`synth task-set publish")),
        ((*DATASET, "--actor", "team/agnet@v1"), ("mean 'team/agent@v1'?", "`synth profile list`")),
    ],
)
def test_a_name_that_nothing_has_is_told_where_names_are(
    published: Synth, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The commands that list and make such things, and the name that was meant."""
    published.ok("profile", "publish", "@agent.json", "team/agent@v1")
    told = _told(published, "run", "start", *arguments, *PLAN)
    assert all(word in told for word in words), told
