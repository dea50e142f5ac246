"""Captured interactions as a conversation that people can read; the ids stay in the record."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from domain.records.canonical import Json
from domain.records.trial import Interaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known of the model call behind an assistant's turn."""

    number: int
    """0-based order of the call in its trial."""
    n_prompt_tokens: int
    n_sampled_tokens: int
    logprob_mean: float | None
    """Mean natural logarithm of the probability of a sampled token, under the sampling distribution."""
    stop_reason: str
    sampler_version: str
    duration_s: float
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call as people read it."""

    name: str
    text: str
    """The command, or the arguments as indented JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one agent."""

    agent: str
    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    facts: CallFacts | None = None
    opens_segment: bool = False
    """The harness rewrote its history before this turn."""


def turns_of(interactions: Sequence[Interaction]) -> tuple[Turn, ...]:
    """Return the turns of a trial, agent by agent in order of first appearance, each in order of call."""
    turns: list[Turn] = []
    for agent in dict.fromkeys(item.agent for item in interactions):
        calls = sorted((item for item in interactions if item.agent == agent), key=lambda item: item.sequence)
        segment = calls[0].segment
        for call in calls:
            turns += _turns_of_call(call, opens_segment=call.segment != segment)
            segment = call.segment
    return tuple(turns)


def _turns_of_call(call: Interaction, *, opens_segment: bool) -> list[Turn]:
    turns: list[Turn] = []
    system = call.request.get("system")
    if isinstance(system, str) and system:
        turns.append(Turn(agent=call.agent, role="system", text=system, opens_segment=opens_segment))
    messages = call.request.get("messages")
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        for message in messages:
            turns += _turns_of_message(call.agent, message)
    answer = _assistant(call.agent, call.response.get("content"), _facts(call))
    turns.append(answer)
    return turns


def _turns_of_message(agent: str, message: Json) -> list[Turn]:
    if not isinstance(message, Mapping):
        return []
    body = cast("Mapping[str, Json]", message)
    role, content = str(body.get("role", "user")), body.get("content")
    if role == "assistant":
        return [_assistant(agent, content, None)]
    turns: list[Turn] = []
    for block in _blocks(content):
        if block.get("type") == "tool_result":
            turns.append(Turn(agent=agent, role="tool", text=_text(block.get("content"))))
        else:
            turns.append(Turn(agent=agent, role=role, text=_text([block])))
    return turns


def _assistant(agent: str, content: Json, facts: CallFacts | None) -> Turn:
    blocks = _blocks(content)
    return Turn(
        agent=agent,
        role="assistant",
        text=_text([block for block in blocks if block.get("type") == "text"]),
        calls=tuple(_call(block) for block in blocks if block.get("type") == "tool_use"),
        thinking="\n".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"),
        facts=facts,
    )


def _call(block: Mapping[str, Json]) -> Call:
    name, given = str(block.get("name", "")), block.get("input")
    if isinstance(given, Mapping):
        arguments = cast("Mapping[str, Json]", given)
        if list(arguments) == ["command"] and isinstance(arguments["command"], str):
            return Call(name=name, text=arguments["command"])
    return Call(name=name, text=json.dumps(given, indent=2, ensure_ascii=False))


def _blocks(content: Json) -> list[Mapping[str, Json]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        return []
    return [cast("Mapping[str, Json]", block) for block in content if isinstance(block, Mapping)]


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        str(block["text"]) if "text" in block else f"[{block.get('type', 'content')}]" for block in _blocks(content)
    )


def _facts(call: Interaction) -> CallFacts:
    n_sampled = len(call.sampled_ids)
    return CallFacts(
        number=call.sequence,
        n_prompt_tokens=len(call.prompt_ids),
        n_sampled_tokens=n_sampled,
        logprob_mean=math.fsum(call.logprobs) / n_sampled if n_sampled else None,
        stop_reason=call.stop_reason.value,
        sampler_version=call.sampler_version,
        duration_s=call.duration_s,
        temperature=call.temperature,
    )
