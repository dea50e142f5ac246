"""The real codex, opencode and mini-swe-agent work on a task through the proxy, with a scripted sampler."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from domain.ports import SampleRequest, SampleResult
from domain.records.trial import Interaction, Purpose
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import assert_exact
from tests.services.openai_client import recorded
from tests.services.openai_tools import Harness, codex, mini, opencode

_LIMIT_S = 120.0


@dataclass
class _Named(ScriptedSampler):
    """Plays its script for agents, and gives a harness that asks for a title one beside it."""

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Say the next line, or the title."""
        if b"You are a title generator" in bytes(token % 256 for token in request.prompt_ids):
            self.script.insert(0, "a title")
        return await super().sample(request)


_SUBTASK = "Make c.txt for me."
_AGENT_ID = re.compile(r'"agent_id":"([^"]+)"')


@dataclass
class _Delegating(ScriptedSampler):
    """Delegates the task, waits for whom it delegated it to, and ends; the delegated agent makes the file."""

    family: ScriptedFamily = field(default_factory=ScriptedFamily)

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Say what follows from the conversation."""
        prompt = self.family.decode(request.prompt_ids)
        self.script = [self._next(prompt)]
        return await super().sample(request)

    def _next(self, prompt: str) -> str:
        started = _AGENT_ID.search(prompt)
        if f"<s>user:{_SUBTASK}" in prompt:
            made = "<s>tool/exec_command" in prompt
            return "made" if made else '<call>exec_command {"cmd": "echo one > c.txt; echo two >> c.txt"}</call>'
        if started is None:
            return f'<call>multi_agent_v1__spawn_agent {{"message": "{_SUBTASK}"}}</call>'
        if "<s>tool/multi_agent_v1__wait_agent" in prompt:
            return "all done"
        return f'<call>multi_agent_v1__wait_agent {{"targets": ["{started[1]}"], "timeout_ms": 60000}}</call>'


async def _run(
    harness: Harness, directory: Path, script: list[str], sampler: ScriptedSampler | None = None
) -> tuple[Interaction, ...]:
    """Let a harness work on the task, and return what the journal has."""
    home, work = directory / "home", directory / "work"
    home.mkdir()
    work.mkdir()
    sampler = sampler or _Named(script=list(script), context_tokens=200_000)
    async with model_process(directory, MemoryStore(), sampler=sampler) as process:
        launch = harness(home, work, process.url, process.tokens.issue("t1"), "Make c.txt.")
        pipe = asyncio.subprocess.PIPE
        running = await asyncio.create_subprocess_exec(
            *launch.command, cwd=work, env=launch.env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            out, err = await asyncio.wait_for(running.communicate(), _LIMIT_S)
        finally:
            if running.returncode is None:
                running.kill()
        assert running.returncode == 0, (out + err).decode()
        assert (work / "c.txt").read_text() == "one\ntwo\n", (out + err).decode()
        calls = await recorded(process)
    assert_exact(calls)
    return calls


def _script(tool: str, argument: str, last: str, **others: str) -> list[str]:
    """Return two calls at once, one that cannot be read, one with odd spacing, and the end."""

    def call(command: str) -> str:
        return f"<call>{tool} {json.dumps({argument: command, **others}, separators=(',', ':   '))}</call>"

    both = call("echo one > a.txt") + call("sleep 0.2; echo two > b.txt; cat b.txt")
    return [f"I look first.  {both}", f"<call>{tool} {{not json</call>", "  " + call("cat a.txt b.txt > c.txt"), last]


@pytest.mark.timeout(600)
async def test_codex_stays_token_exact(tmp_path: Path) -> None:
    """Responses, streamed: parallel calls, an unreadable one that it answers itself, and one segment to the end."""
    calls = await _run(codex, tmp_path, _script("exec_command", "cmd", "all done"))
    assert [(call.agent, call.segment, call.purpose) for call in calls] == [("main", 0, Purpose.AGENT)] * 4
    shown = ScriptedFamily().decode(calls[3].prompt_ids)
    assert "<call>exec_command {not json</call></s><s>tool:failed to parse function arguments" in shown
    assert '{"cmd":   "cat a.txt b.txt > c.txt"}' in shown


@pytest.mark.timeout(600)
async def test_codex_delegates(tmp_path: Path) -> None:
    """Its tools for agents are in a namespace; the thread that it starts is an agent of its own, and exact too."""
    calls = await _run(codex, tmp_path, [], _Delegating(context_tokens=200_000))
    agents = [call.agent for call in calls]
    assert agents[0] == agents[-1] == "main"
    assert len(set(agents)) == 2
    assert {(call.segment, call.purpose) for call in calls} == {(0, Purpose.AGENT)}


@pytest.mark.timeout(600)
async def test_opencode_stays_token_exact(tmp_path: Path) -> None:
    """Chat completions, streamed: its repair of the unreadable call is found again; its title does not train."""
    calls = await _run(opencode, tmp_path, _script("bash", "command", "all done", description="run"))
    acted = [call for call in calls if call.purpose is Purpose.AGENT]
    assert {call.purpose for call in calls} == {Purpose.AGENT, Purpose.TITLE}
    assert len(acted) == 4
    assert len({call.segment for call in acted}) == 1
    assert "<call>bash {not json</call></s><s>tool:" in ScriptedFamily().decode(acted[3].prompt_ids)


@pytest.mark.timeout(600)
async def test_mini_swe_agent_stays_token_exact(tmp_path: Path) -> None:
    """Chat completions, whole: it drops a turn whose call cannot be read, which starts a declared segment."""
    last = '<call>bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}</call>'
    calls = await _run(mini, tmp_path, _script("bash", "command", last))
    assert [call.segment for call in calls] == [0, 0, 1, 1]
    assert "{not json" not in ScriptedFamily().decode(calls[2].prompt_ids)
