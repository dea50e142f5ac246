"""Claude Code's own ways in a box: tool servers, skills, hooks, agents, memory, steps; and how it ends otherwise."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.sandboxes.docker import DockerSandbox
from domain.errors import SamplerError
from domain.records.archive import read_file
from domain.records.trial import Purpose, TrialOutcome
from tests.docker_engine import IMAGE, docker_url
from tests.services.bad_line import BadLine, Refusal
from tests.services.claude_tool import call
from tests.services.claude_world import PLAN, PROFILE, Ended, claude_world
from tests.services.harness import assert_exact

LEAN = replace(PROFILE, arguments=("--tools", "Bash,Edit,Read,Write,Agent,Skill"))
SERVER = """
import json, sys
tool = {"name": "greet", "description": "Greets.", "inputSchema": {"type": "object", "properties": {}}}
server = {"name": "t", "version": "1"}
answers = {
    "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": server},
    "tools/list": {"tools": [tool]},
    "tools/call": {"content": [{"type": "text", "text": "greetings from " + sys.argv[1]}]},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answers.get(asked["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SERVERS = """[environment]
skills_dir = "/app/skills"
[[environment.mcp_servers]]
name = "theirs"
transport = "stdio"
command = "python3"
args = ["/app/server.py", "task"]
"""
NOTE = {"type": "command", "command": "sh $CLAUDE_CONFIG_DIR/hooks/note.sh"}
SCRIBE = """---
name: scribe
description: Writes
tools: Bash
model: inherit
---
[[part:scribe]] You write.
"""


def said(ended: Ended) -> str:
    """Return the stream of messages."""
    return (read_file(ended.logs, "agent/claude-code.jsonl") or b"").decode()


async def test_native_settings_work_in_a_box(tmp_path: Path) -> None:
    """Tool servers and skills of profile and task, a hook, an agent, memory, permissions: as Claude Code has them."""
    profile = replace(
        PROFILE,
        settings={
            "settings": {
                "hooks": {"PostToolUse": [{"matcher": "Bash", "hooks": [NOTE]}]},
                "permissions": {"deny": ["Bash(curl:*)"]},
            },
            "config": {
                "CLAUDE.md": "A word of memory: xylophone.\n",
                "agents/scribe.md": SCRIBE,
                "skills/ours/SKILL.md": "---\nname: ours\ndescription: Ours\n---\nThe skill says marmalade.\n",
                "hooks/note.sh": {"content": "#!/bin/sh\necho hooked >> /app/hooked\n", "executable": True},
            },
            "mcp_servers": {"mine": {"type": "stdio", "command": "python3", "args": ["/app/server.py", "profile"]}},
        },
    )
    parts: dict[str, list[str | Exception]] = {
        "main": [
            call("mcp__mine__greet") + "\n" + call("mcp__theirs__greet"),
            call("Skill", skill="ours"),
            call("Skill", skill="theirs"),
            call("Agent", description="x", prompt="[[part:scribe]] Write.", subagent_type="scribe", model="opus"),
            call("Bash", command="curl http://x", description="x"),
            "Done.",
        ],
        "scribe": [call("Bash", command="echo written > /app/written", description="x"), "Written."],
    }
    files = {
        "server.py": SERVER,
        "skills/theirs/SKILL.md": "---\nname: theirs\ndescription: Theirs\n---\nIt says turnip.\n",
    }
    async with claude_world(tmp_path, parts, files=files, task=SERVERS) as world:
        ended = await world.trial(profile)
        prompt = world.sampler.family.decode(ended.calls[-1].prompt_ids)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    for word in ("xylophone", "greetings from profile", "greetings from task", "marmalade", "turnip"):
        assert word in prompt, word
    assert ended.output("app/written") == "written\n"
    assert ended.output("app/hooked") == "hooked\n"
    assert "Permission to use Bash with command curl http://x has been denied" in prompt
    assert_exact(ended.calls)


STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
STEP_FILES = {
    "steps/one/instruction.md": "[[part:main]] First.\n",
    "steps/two/instruction.md": "[[part:second]] Then.\n",
}


@pytest.mark.parametrize("resume", [True, False])
async def test_a_later_step_goes_on_in_the_session(tmp_path: Path, *, resume: bool) -> None:
    """The second step's prompt extends all that the first said; or it starts afresh, when the profile says so."""
    parts: dict[str, list[str | Exception]] = {"main": ["One.", "Two."], "second": ["Afresh."]}
    profile = replace(LEAN, settings={"resume": resume})
    async with claude_world(tmp_path, parts, task=STEPS, files=STEP_FILES) as world:
        ended = await world.trial(profile, replace(PLAN, agent_timeout_s=20.0, verifier_timeout_s=20.0))
    assert [step.outcome for step in ended.record.steps] == [TrialOutcome.COMPLETED] * 2, ended.record.detail
    assert [part for part, _ in world.sampler.played] == ["main", "main" if resume else "second"]
    assert [each.segment for each in ended.calls] == [0, 0 if resume else 1]
    assert_exact(ended.calls)


async def test_thinking_stays_in_the_prompt(tmp_path: Path) -> None:
    """Reasoning comes back with every later turn, across a tool's result, and costs no exactness."""
    script = [
        "<think>\nI look first.\n</think>\n\n" + call("Bash", command="echo one", description="x"),
        "<think>\nOnly a thought.\n</think>\n\nAnd words.\n"
        + call("Bash", command="cd /app && echo two", description="x"),
        "<think>\nEnough.\n</think>\n\nDone.",
    ]
    async with claude_world(tmp_path, {"main": [*script]}) as world:
        ended = await world.trial(LEAN)
        prompt = world.sampler.family.decode(ended.calls[-1].prompt_ids)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert '"type":"thinking","thinking":"I look first."' in said(ended)
    assert prompt.count("<think>") == 2
    assert "cd /app && echo two" in prompt, "as sampled; the harness has taken the cd away"
    assert [each.segment for each in ended.calls] == [0, 0, 0]
    assert_exact(ended.calls)


async def test_a_result_that_is_too_long_is_summed_up(tmp_path: Path) -> None:
    """A prompt that does not fit is refused in the words at which the harness makes room, and the work goes on."""
    parts: dict[str, list[str | Exception]] = {
        "main": [*(call("Bash", command=f"yes | head -c {size}", description="x") for size in (17000, 28000)), "Done."],
        "main summary": ["<summary>[[part:main]] Much was said.</summary>"],
    }
    # Twice 28,000 bytes in one go lead from below the harness's threshold to above the context.
    async with claude_world(tmp_path, parts, context_tokens=60_000) as world:
        ended = await world.trial(LEAN)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert world.process.desk.counters["n_calls"] == len(ended.calls) == 4
    assert Purpose.COMPACTION in {each.purpose for each in ended.calls}
    assert ended.calls[-1].segment > ended.calls[0].segment
    assert_exact(ended.calls)


async def test_how_it_ends_when_it_cannot(tmp_path: Path) -> None:
    """An error of the harness is the agent's, in its own words; a model that cannot answer is infrastructure's."""
    refused = BadLine(faults={0: Refusal(status=400, kind="invalid_request_error")})
    async with claude_world(tmp_path / "a", {}, line=refused) as world:
        ended = await world.trial(LEAN)
    assert ended.record.outcome is TrialOutcome.AGENT_ERROR
    assert ended.record.detail == "exit code 1: claude-code: API Error: 400 try later"
    profile = replace(LEAN, environment={"CLAUDE_CODE_MAX_RETRIES": "0"})
    async with claude_world(tmp_path / "b", {"main": [SamplerError("out of memory")] * 9}) as world:
        ended = await world.trial(profile, replace(PLAN, infra_retries=0))
    assert ended.record.outcome is TrialOutcome.INFRA_ERROR
    assert "out of memory" in ended.record.detail
    async with claude_world(tmp_path / "c", {"main": ["Done."]}) as world:
        ended = await world.trial(replace(LEAN, arguments=("--no-such-flag",)))
    assert ended.record.outcome is TrialOutcome.AGENT_ERROR
    assert "unknown option '--no-such-flag'" in ended.record.detail
    async with claude_world(tmp_path / "d", {"main": [call("Bash", command="sleep 30", description="x")]}) as world:
        ended = await world.trial(LEAN, replace(PLAN, agent_timeout_s=3.0))
    assert ended.record.outcome is TrialOutcome.AGENT_TIMEOUT
    assert (len(ended.calls), "sleep 30" in said(ended)) == (1, True), "what was said is kept"


async def test_errands_are_told_apart(tmp_path: Path) -> None:
    """A title, a count before a large file is read, and a picture in a result: none is an action, none ends the run."""
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
    script = [
        call("Bash", command=f"echo {picture} | base64 -d > /app/p.png; seq 30000 > /app/long.txt", description="x"),
        call("Read", file_path="/app/p.png"),
        call("Read", file_path="/app/long.txt"),
        call("WebSearch", query="[[part:search]] anything"),
        "Done.",
    ]
    line = BadLine()
    async with claude_world(tmp_path, {"main": [*script], "search": ["Found nothing."]}, line=line) as world:
        ended = await world.trial(replace(PROFILE, environment={"CLAUDE_CODE_DISABLE_TERMINAL_TITLE": ""}))
        prompt = world.sampler.family.decode(ended.calls[-1].prompt_ids)
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert "[image omitted]" in prompt
    assert line.paths["/v1/messages/count_tokens"] == 1
    assert "30000\t30000" not in prompt, "its answer made the harness show a part"
    assert Counter(each.purpose for each in ended.calls)[Purpose.SEARCH] == 1
    actions = [each for each in ended.calls if each.purpose is Purpose.AGENT]
    assert [each.segment for each in actions] == [0] * len(script)
    assert_exact(ended.calls)


async def test_it_works_in_a_container_as_an_ordinary_user(tmp_path: Path) -> None:
    """The program of this machine is bound into the task's image; the task's own user runs it."""
    script = [
        call("Bash", command="id -un > /app/who; ls -l /.synth/tools/claude-code >> /app/who", description="x"),
        "Done.",
    ]
    url = docker_url()
    async with claude_world(
        tmp_path,
        {"main": [*script]},
        sandbox=lambda platform, socket: DockerSandbox(url, platform.store, socket),
        task='[agent]\nuser = "agent"\n',
        image=IMAGE,
    ) as world:
        ended = await world.trial(LEAN, replace(PLAN, sandbox="docker"))
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail
    assert (ended.output("app/who") or "").startswith("agent\n")
    assert_exact(ended.calls)


ODD = {
    "model": "opus",
    "apiKeyHelper": "echo sk-theirs",
    "env": {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "ANTHROPIC_MODEL": "other",
        "ANTHROPIC_API_KEY": "sk-theirs",
        "CLAUDE_CODE_SUBAGENT_MODEL": "other",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "9",
        "KEPT": "yes",
    },
}


async def test_a_task_cannot_lead_elsewhere(tmp_path: Path) -> None:
    """A task's own project settings and agents: what routes is ranked below the platform's, the rest holds."""
    parts: dict[str, list[str | Exception]] = {
        "main": [
            call("Agent", description="x", prompt="[[part:theirs]] Go.", subagent_type="theirs"),
            call("Bash", command="echo $KEPT > /app/kept", description="x"),
            "Done.",
        ],
        "theirs": ["I am the policy, too."],
    }
    files = {
        ".claude/settings.json": json.dumps(ODD),
        ".claude/agents/theirs.md": "---\nname: theirs\ndescription: x\nmodel: claude-opus-4-1\n---\nGo.\n",
    }
    line = BadLine()
    async with claude_world(tmp_path, parts, files=files, line=line) as world:
        ended = await world.trial(plan=replace(PLAN, agent_timeout_s=15.0, infra_retries=0))
    assert ended.record.outcome is TrialOutcome.COMPLETED, ended.record.detail + said(ended)[-3000:]
    assert [part for part, _ in world.sampler.played] == ["main", "theirs", "main", "main"]
    assert line.n_calls == len(ended.calls) == 4
    assert ended.output("app/kept") == "yes\n"
    assert [each.request["max_tokens"] for each in ended.calls] == [4000] * 4
