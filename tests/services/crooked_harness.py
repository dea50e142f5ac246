"""A harness that does to its history all that native ones were seen to do, and the count of what became of each token.

It drops thinking, reorders and adds arguments, moves text, hangs up and asks again, forgets the middle of its history,
and runs two sub-agents beside its main loop. Source: facts/proxy.md sections 1.3 to 1.8.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from adapters.families.qwen3 import Qwen3Family
from adapters.trainers.tokenizer_training import byte_tokenizer
from domain.maths.packing import pack_group
from domain.maths.row_checks import check_rows
from domain.maths.stitching import trajectories_of
from domain.ports import SampleRequest, SampleResult
from domain.records.trial import Interaction
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import NO_TLS, results

_TOOLS = [{"name": name, "description": "x", "input_schema": {"type": "object"}} for name in ("bash", "edit")]
_COMPACTION = "CRITICAL: Respond with TEXT ONLY. Summarise."
_WORDS = ("alpha", "  two spaces", "naïve 🙂", "<|im_end|>", "line\n\nline", "tab\tend ", "{json}", "\n\nlate")
AGENTS = ("main", "a1", "a2")


@dataclass
class NotingSampler(ScriptedSampler):
    """Says odd things, and notes what it said, in the order in which it said it."""

    said: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    draw: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - a repeatable draw

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Say something new, now and then slowly, now and then cut."""
        self.script.insert(0, _turn(self.draw))
        self.delay_s = 0.05 if self.draw.random() < 0.1 else 0.0
        result = await super().sample(request)
        self.said.append(result.sampled_ids)
        return result


def _turn(draw: random.Random) -> str:
    words = " ".join(draw.choices(_WORDS, k=draw.randint(1, 6)))
    thought = f"<think>\n{draw.choice(_WORDS)}\n</think>\n\n" if draw.random() < 0.5 else ""
    call = '<tool_call>\n{"name":"bash",   "arguments": {"timeout": "2000", "command": %s}}\n</tool_call>'
    kind = draw.randrange(5)
    if kind == 0:
        return f"{thought}{words}"
    if kind == 1:
        return f"{thought}{words}\n{call % json.dumps(words)}"
    if kind == 2:
        return thought + "\n".join(call % json.dumps(f"{words} {number}") for number in range(3))
    if kind == 3:
        return f'{thought}<tool_call>\n{{"name": "edit", "argu\n</tool_call>'
    return f"{thought}{call % json.dumps('cd /app && ls')}\nafter the call"


class CrookedAgent:
    """One agent of the harness."""

    def __init__(self, client: httpx.AsyncClient, agent: str, seed: int) -> None:
        """Start with nothing said."""
        self._client, self._draw = client, random.Random(seed)  # noqa: S311 - a repeatable draw
        self._headers = {} if agent == "main" else {"x-claude-code-agent-id": agent}
        self.messages: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()

    async def turn(self) -> None:
        """Ask once, with whatever befalls the request, and keep an edited copy of the answer."""
        if len(self.messages) > 16 and self._draw.random() < 0.2:
            await self._compact()
        if not self.messages or self.messages[-1]["role"] == "assistant":
            self.messages.append({"role": "user", "content": f"go on {self._draw.random()}"})
        if self._draw.random() < 0.2:
            self.counts["system"] += 1
            self.messages.append({"role": "system", "content": "a reminder"})
        answer = await self._ask()
        self.counts["turns"] += 1
        if not answer["content"]:
            return
        self.messages.append({"role": "assistant", "content": self._edited(answer["content"])})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        if calls:
            given = results(answer, *(f"result {number}" for number in range(len(calls))))
            self._draw.shuffle(given)
            self.messages.append({"role": "user", "content": given})
        elif answer["stop_reason"] == "tool_use":
            self.messages.append({"role": "user", "content": "Your tool call was malformed. Please retry."})

    async def _ask(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": MODEL, "max_tokens": self._draw.choice((20, 400)), "tools": _TOOLS}
        body |= {"messages": self.messages, "thinking": {"type": "adaptive"}}
        if self._draw.random() < 0.1:
            self.counts["hung_up"] += 1
            try:
                await self._client.post("/v1/messages", json=body, headers=self._headers, timeout=0.02)
            except httpx.TimeoutException:
                await asyncio.sleep(0.1)
            else:
                self.counts["answered_in_time"] += 1
        response = await self._client.post("/v1/messages", json=body, headers=self._headers, timeout=30.0)
        response.raise_for_status()
        return response.json()

    async def _compact(self) -> None:
        """Ask for a summary, and go on from it with the newest turns."""
        self.counts["compactions"] += 1
        asked: list[dict[str, Any]] = [*self.messages[:6], {"role": "user", "content": _COMPACTION}]
        body = {"model": MODEL, "max_tokens": 100, "tools": _TOOLS, "messages": asked}
        (await self._client.post("/v1/messages", json=body, headers=self._headers)).raise_for_status()
        tail = self.messages[-6:]
        while tail and (tail[0]["role"] != "assistant"):
            tail.pop(0)
        self.messages = [{"role": "user", "content": "summary of what was"}, *tail]

    def _edited(self, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = [dict(block) for block in content if block["type"] != "thinking" or self._draw.random() < 0.5]
        for block in kept:
            if block["type"] == "tool_use":
                block["input"] = {"replace_all": False, **dict(sorted(block["input"].items())), "timeout": 2000}
        self.counts["edits"] += 1
        if any(block["type"] == "tool_use" for block in kept):
            kept.sort(key=lambda block: block["type"] == "tool_use")
        return kept or [dict(block) for block in content]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What became of what was sampled."""

    n_turns: int
    n_calls: int
    """Sampled."""
    n_exact: int
    """Of them, recorded once with exactly the ids that were sampled, and with a prompt that holds what came before."""
    n_segments: int
    n_sampled_tokens: int
    """Of agents' calls; the rest may not train."""
    n_trained_tokens: int
    befell: dict[str, int]


async def drive(directory: Path, n_turns: int) -> Count:
    """Let the harness take so many turns, a sixth of them by each sub-agent, and count."""
    tokenizer = byte_tokenizer()
    family = Qwen3Family(tokenizer)

    def encode(line: str) -> tuple[int, ...]:
        return (*tokenizer.encode(line, add_special_tokens=False).ids, family.stop_ids[0])

    sampler = NotingSampler(context_tokens=60_000, encode=encode)
    async with model_process(directory, MemoryStore(), sampler=sampler, family=family) as process:
        token = process.tokens.issue("t1")
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=process.url, headers=headers, verify=NO_TLS) as client:
            agents = [CrookedAgent(client, name, seed) for seed, name in enumerate(AGENTS)]
            shares = (n_turns - 2 * (n_turns // 6), n_turns // 6, n_turns // 6)
            await asyncio.gather(*(_run(agent, share) for agent, share in zip(agents, shares, strict=True)))
        await process.desk.close_trial("t1")
        calls = await _read(process)
    befell = sum((agent.counts for agent in agents), Counter[str]())
    return _count(sampler.said, calls, dict(befell))


async def _run(agent: CrookedAgent, n_turns: int) -> None:
    for _ in range(n_turns):
        await agent.turn()


async def _read(process: Process) -> Sequence[Interaction]:
    return await process.evidence.read(await process.evidence.publish("t1"))


def _count(said: list[tuple[int, ...]], calls: Sequence[Interaction], befell: dict[str, int]) -> Count:
    left = Counter(said)
    newest: dict[tuple[str, int], tuple[int, ...]] = {}
    n_exact = 0
    for call in calls:
        known = newest.get((call.agent, call.segment), ())
        extends = call.prompt_ids[: len(known)] == known
        newest[call.agent, call.segment] = call.prompt_ids + call.sampled_ids
        n_exact += left[call.sampled_ids] > 0 and extends and len(call.logprobs) == len(call.sampled_ids)
        left[call.sampled_ids] -= 1
    trajectories = trajectories_of(calls, trial_id="t1")
    advantages = [1.0] * len(trajectories)
    rows = pack_group(trajectories, advantages=advantages, group=0)
    check_rows(rows, trajectories, advantages)
    return Count(
        n_turns=befell["turns"],
        n_calls=len(said),
        n_exact=n_exact if sum(left.values()) == 0 and not any(left.values()) else n_exact - 1,
        n_segments=len(newest),
        n_sampled_tokens=sum(call.n_sampled_ids for call in calls if call.purpose.value == "agent"),
        n_trained_tokens=int(sum(row.mask.sum() for row in rows)),
        befell=befell,
    )
