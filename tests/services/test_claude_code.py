"""The real Claude Code in a real box, on a policy that plays a part: what it does, and that its tokens are exact."""

from pathlib import Path

from adapters.engines.claude_code_environment import MODEL_NAMES
from domain.records.archive import read_file
from domain.records.trial import TrialOutcome
from tests.services.claude_tool import call
from tests.services.claude_world import claude_world
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
