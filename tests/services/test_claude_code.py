"""The real Claude Code in a real box, on a policy that plays a part: what it does, and that its tokens are exact."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.claude_code_environment import MODEL_NAMES
from domain.errors import AdmissionError
from domain.maths.stitching import trajectories_of
from domain.records.archive import read_file
from domain.records.trial import Purpose, TrialOutcome
from tests.services.bad_line import BadLine, Cut, Refusal
from tests.services.claude_tool import call
from tests.services.claude_world import PROFILE, claude_world
from tests.services.harness import assert_exact


async def test_it_edits_and_runs_in_a_box(tmp_path: Path) -> None:
    """From acceptance to a reward: it reads, edits and runs, and each prompt extends what was sampled before."""
    script = [
        "Reading.\n" + call("Read", file_path="/app/a.txt"),
        call("Edit", new_string="goodbye", file_path="/app/a.txt", old_string="hello"),
        call("Bash", description="Count", command="cd /app && wc -c a.txt > b.txt; env | sort > env.txt; id >> env.txt")
        + "\n"
        + call("Bash", command="echo two", timeout=1000.0, description="Say"),
        "All done.",
    ]
    check = "if grep -q goodbye /app/a.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    async with claude_world(tmp_path, {"main": [*script]}, files={"a.txt": "hello world\n"}, test=check) as world:
        ended = await world.trial()
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert ended.reward == 1.0
    assert ended.output("app/b.txt") == "14 a.txt\n"
    assert [line for _, line in world.sampler.played] == script
    assert [each.segment for each in ended.calls] == [0] * 4
    assert_exact(ended.calls)
    lines = (ended.output("app/env.txt") or "").splitlines()
    variables = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
    assert not {"USER", "SSH_AUTH_SOCK", "SYNTH_HOME"} & variables.keys(), "nothing of this process's environment"
    assert {variables[name] for name in MODEL_NAMES} == {"policy"}
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "400000"
    transcript = str(read_file(ended.logs, "agent/claude-code.jsonl"))
    assert '"claude_code_version":"2.1.197"' in transcript


async def test_sub_agents_are_told_apart(tmp_path: Path) -> None:
    """A sub-agent, one that it starts itself, and two beside each other: each its own trajectory, none mixed up."""

    def agent(part: str) -> str:
        return call("Agent", description=part, prompt=f"[[part:{part}]] Go.", subagent_type="general-purpose")

    parts: dict[str, list[str | Exception]] = {
        "main": [agent("child"), agent("left") + "\n" + agent("right"), "Done."],
        "child": [call("Bash", command="echo child > /app/child", description="x"), agent("grandchild"), "Child done."],
        "grandchild": [call("Bash", command="echo grandchild > /app/grandchild", description="x"), "Grandchild done."],
        "left": [call("Bash", command="echo left > /app/left", description="x"), "Left done."],
        "right": [call("Bash", command="echo right > /app/right", description="x"), "Right done."],
    }
    lines = {name: list(map(str, part)) for name, part in parts.items()}
    async with claude_world(tmp_path, parts) as world:
        ended = await world.trial()
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    played: dict[str, list[str]] = {}
    for part, line in world.sampler.played:
        played.setdefault(part, []).append(line)
    assert played == lines, "nobody was asked twice, and nobody got another's lines"
    assert {name for name in lines if ended.output(f"app/{name}") == f"{name}\n"} == lines.keys() - {"main"}
    assert_exact(ended.calls)
    rows = trajectories_of(ended.calls, trial_id=ended.record.trial_id)
    assert sum(map(len, (row.logprobs for row in rows))) == sum(each.n_sampled_ids for each in ended.calls)
    assert [int(row.starts.sum()) for row in rows] == [1] * 5, "one row for each agent, each sampled token once"
    assert {each.segment for each in ended.calls} == {0}
    assert sorted(Counter(each.agent for each in ended.calls).values()) == [2, 2, 2, 3, 3]
    assert sum(each.agent == "main" for each in ended.calls) == 3


LEAN = replace(PROFILE, arguments=("--tools", "Bash,Edit,Read,Write,Agent"))


async def test_bad_weather_costs_no_token(tmp_path: Path) -> None:
    """Calls that cannot be read, overload, rate limits, cut answers: the work goes on, each sample is recorded once."""
    script = [
        '<tool_call>\n{"name": "Bash", "argu\n</tool_call>',
        call("Bash", command="echo one >> /app/out", description="x"),
        call("Bash", command="echo two >> /app/out", description="x"),
        "A text before.\n" + call("Bash", command="echo three >> /app/out", description="x"),
        call("Nothing", command="x"),
        call("Bash", command=["not", "a", "string"]),
        "Done.",
    ]
    faults: dict[int, Refusal | Cut] = {
        1: Refusal(status=529),
        3: Refusal(status=429, kind="rate_limit_error", retry_after_s="1"),
        5: Cut(before=b"event: message_start"),
        7: Cut(before=b"event: content_block_stop"),
    }
    line = BadLine(faults=faults)
    async with claude_world(tmp_path, {"main": [*script]}, line=line) as world:
        ended = await world.trial(LEAN)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert ended.output("app/out") == "one\ntwo\nthree\n"
    assert [said for _, said in world.sampler.played] == script
    assert [each.segment for each in ended.calls] == [0] * len(script)
    assert_exact(ended.calls)
    assert not faults, "each of them was met"


async def test_it_sums_up_and_goes_on(tmp_path: Path) -> None:
    """Past its threshold it asks for a summary, which is no action; the next action starts a declared segment."""
    script = [
        call("Bash", command=f"head -c 9000 /dev/zero | tr '\\0' {letter}", description="x") for letter in "abcde"
    ]
    parts: dict[str, list[str | Exception]] = {
        "main": [*script, call("Bash", command="echo after > /app/out", description="x"), "Done."],
        "main summary": ["<analysis>All fine.</analysis>\n<summary>[[part:main]] Letters were shown.</summary>"],
    }
    async with claude_world(tmp_path, parts, context_tokens=70_000) as world:
        ended = await world.trial(LEAN)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert ended.output("app/out") == "after\n"
    assert len(ended.calls) == len(world.sampler.played) == 8
    assert [each.purpose for each in ended.calls] == [*[Purpose.AGENT] * 5, Purpose.COMPACTION, *[Purpose.AGENT] * 2]
    assert [each.segment for each in ended.calls] == [*[0] * 5, 1, 2, 2]
    assert_exact(ended.calls)
    (row,) = trajectories_of(ended.calls, trial_id=ended.record.trial_id)
    assert row.starts.tolist() == [True, False, False, False, False, True, False], "and the summary trains nothing"
    kept = world.sampler.family.decode(ended.calls[6].prompt_ids)
    assert "Letters were shown." in kept
    assert "| tr '\\\\0' e" in kept, "the harness keeps its newest turns beside the summary"


async def test_acceptance_says_what_is_missing(tmp_path: Path) -> None:
    """A version that is not installed here and a model that is too small are refused before anything runs."""
    async with claude_world(tmp_path, {}, context_tokens=16_000) as world:
        with pytest.raises(AdmissionError, match=r"2\.1\.1.*npm install --ignore-scripts"):
            await world.trial(replace(PROFILE, engine_version="2.1.1"))
        with pytest.raises(AdmissionError, match="at least 19000 tokens with answers of 4000; the model has 16000"):
            await world.trial()
