"""The recorded formats of ``tests/golden/native_formats.json``: prompts, turns, bad calls, forged control tokens.

The vectors come from ``tinker_cookbook`` 0.6.1 (facts/learning.md section 6). Where we leave it on purpose, the case is
named in one of the tables below with the reason; every other case is equal, text for text. White space at the ends of
the visible text is not compared: the cookbook keeps the newline that separates text from a call, we read it as format.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from domain.errors import ConfigurationError
from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec
from domain.records.family import History
from tests.fakes.native_families import VECTORS, encoded, of_vectors

_PATH = Path(__file__).parents[1] / "golden/native_formats.json"
SYSTEM = ChatMessage(role="system", content="SYS")
WEATHER = ToolSpec(
    name="get_weather",
    description="Get weather.",
    schema={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "City name"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
WALKS = ("tools_reasoning", "tools_noreason", "tools_reasoning_notext", "tools_noreason_notext")
CHATS = ("chat_reasoning", "chat_noreason")

_TOLD = "a call that is there and cannot be read is told, not lost without a word"
UNREAD = {
    ("deepseekv3", "args_not_object"): _TOLD,
    ("kimi_k25_disable_thinking", "no_index"): _TOLD,
    ("glm5_3_max_reasoning", "unterminated"): _TOLD,
    ("gpt_oss_no_sysprompt", "builtin_tool"): _TOLD,
}
"""Recorded as read, malformed for us."""
READ = {("deepseekv3", "dash_in_name"): "names of MCP tools have dashes; the cookbook takes the call for text"}
"""Recorded as text, a call for us."""
BROKEN = {("glm5_3_max_reasoning", "eos_after_call"): "no result can follow <|endoftext|>: a new segment starts"}
"""Natural turns after which the bridge declares a break."""
_NO_BLOCK = "a turn without reasoning is written without the empty block that the template shows on last turns"
_NEWLINE = "the cookbook writes a third newline between the block and a call that no model writes"
_NO_STOP = "the cookbook writes no stop after a call without text, so the sampled one would vanish"
_NO_PROMPT = "it follows tool results, where V3.1 has no prompt: assistant_turn writes what follows a prompt"
WRITTEN = {
    **{
        (name, walk, place): _NO_BLOCK
        for name in ("qwen3", "qwen3[strip_thinking_from_history=False]")
        for walk in ("tools_noreason", "tools_noreason_notext", "chat_noreason")
        for place in range(3)
    },
    ("qwen3", "tools_reasoning_notext", 0): _NEWLINE,
    ("qwen3[strip_thinking_from_history=False]", "tools_reasoning_notext", 0): _NEWLINE,
    ("deepseekv3", "tools_reasoning_notext", 0): _NO_STOP,
    ("deepseekv3", "tools_noreason_notext", 0): _NO_STOP,
    **{("deepseekv3_thinking", walk, 1): _NO_PROMPT for walk in WALKS},
    ("deepseekv3_thinking", "tools_reasoning_notext", 0): _NO_STOP,
    ("deepseekv3_thinking", "tools_noreason_notext", 0): _NO_STOP,
}
"""(renderer, walk, step) -> why the turn is written differently; those that are equal all the same may be named."""


@cache
def vectors() -> Mapping[str, Any]:
    """Read the recorded vectors."""
    return json.loads(_PATH.read_text())


def _renderers() -> list[str]:
    return list(vectors()["renderers"])


def _walks() -> list[tuple[str, str]]:
    return [(name, walk) for name in _renderers() for walk in (*WALKS, *CHATS)]


def _cases(section: str) -> list[tuple[str, str]]:
    return [(name, case) for name, cases in vectors()[section].items() for case in cases]


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return reasoning and text of a recorded message."""
    content = message["content"]
    if isinstance(content, str):
        return "", content
    thinking = "".join(part["thinking"] for part in content if part["type"] == "thinking")
    return thinking, "".join(part["text"] for part in content if part["type"] == "text").strip()


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def _read_calls(parsed: ParsedTurn) -> list[tuple[str, Any]]:
    return [(call.name, dict(call.arguments or {})) for call in parsed.tool_calls]


def _message(recorded: Mapping[str, Any]) -> ChatMessage:
    """Return a recorded message in our words."""
    reasoning, text = _said(recorded)
    calls = tuple(
        ToolCall(
            name=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
            raw="",
            native_id=call["id"],
        )
        for call in recorded.get("tool_calls", ())
    )
    return ChatMessage(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def _steps(name: str, walk: str) -> list[Mapping[str, Any]]:
    """Return the steps of a walk that the cookbook could take."""
    return [step for step in vectors()["renderers"][name][walk] if "action_text" in step]


def _opening(*, with_tools: bool) -> tuple[ChatMessage, ...]:
    return (SYSTEM, ChatMessage(role="user", content="Weather?" if with_tools else "Hi"))


@pytest.mark.parametrize("key", ["prompt_with_tools", "prompt_plain"])
@pytest.mark.parametrize("name", _renderers())
def test_prompts_are_the_recorded_ones(name: str, key: str) -> None:
    """A first prompt, with and without tools, is the recorded text."""
    family, with_tools = of_vectors(name), key == "prompt_with_tools"
    ids = family.render(_opening(with_tools=with_tools), (WEATHER,) if with_tools else ())
    assert family.decode(ids) == vectors()["renderers"][name][key]


@pytest.mark.parametrize(("name", "walk"), _walks())
def test_walks_are_read_and_only_grow(name: str, walk: str) -> None:
    """Each recorded turn is read as recorded; each next prompt extends it, or breaks by rule, and ends as recorded."""
    family, tools = of_vectors(name), (WEATHER,) if walk in WALKS else ()
    history = list(_opening(with_tools=bool(tools)))
    prompt = family.render(history, tools)
    for place, step in enumerate(vectors()["renderers"][name][walk]):
        if "error" in step:
            break
        assert _ends_as_recorded(family.decode(prompt), step["prompt_ends_with"])
        if "action_text" not in step:
            break  # a turn that the cookbook itself could not write after its prompt: nothing is recorded to follow
        sampled = encoded(family, step["action_text"])
        _assert_read(family.parse(sampled, tools, prompt), step)
        answers = bool(tools) and place == 0
        new = ChatMessage(role="tool" if answers else "user", content="18C" if answers else "Thanks")
        history += [_message(step["parsed"]), new]
        grown = family.bridge(prompt, sampled, [new], tools)
        breaks = VECTORS[name][1].history is History.TEMPLATE and new.role == "user"
        assert (grown is None) == breaks
        assert grown is None or grown[: len(prompt) + len(sampled)] == (*prompt, *sampled)
        prompt = family.render(history, tools) if grown is None else grown


def _assert_read(parsed: ParsedTurn, step: Mapping[str, Any]) -> None:
    if step["parse_termination"] == "malformed":
        assert (parsed.malformed, parsed.tool_calls) == (True, ())
        return
    reasoning, text = _said(step["parsed"])
    if text.lstrip().startswith("to="):
        text = ""  # a Harmony call that begins the turn: the cookbook shows its header as text, beside the call
    assert (parsed.reasoning, parsed.text.strip()) == (reasoning, text.strip())
    assert _read_calls(parsed) == _calls(step["parsed"])


def _ends_as_recorded(text: str, recorded: str) -> bool:
    """Tell whether a prompt ends as recorded.

    A sampled ``<|return|>`` stays in gpt-oss (decided once, ``adapters/families/gpt_oss.py``) where the template has
    ``<|end|>``; the recorded ends begin inside that token.
    """
    return text.endswith((recorded, "<|return|>" + recorded.removeprefix("end|>")))


@pytest.mark.parametrize(("name", "walk"), _walks())
def test_turns_are_written_as_recorded(name: str, walk: str) -> None:
    """What we write for a recorded turn is the recorded text, but for the cases named in ``WRITTEN``."""
    family = of_vectors(name)
    for place, step in enumerate(_steps(name, walk)):
        message = _message(step["parsed"])
        if step["action_text"].startswith(" to="):
            message = ChatMessage(role="assistant", content="", tool_calls=message.tool_calls)
        if message.reasoning and not family.can_reason:
            with pytest.raises(ConfigurationError, match="reasons"):
                family.assistant_turn(message)
        elif (name, walk, place) not in WRITTEN:
            assert family.decode(family.assistant_turn(message)) == step["action_text"]


@pytest.mark.parametrize(("name", "walk"), _walks())
def test_reasoning_after_a_closed_one_is_refused(name: str, walk: str) -> None:
    """Where the cookbook refuses a reasoning target, so do we."""
    family = of_vectors(name)
    for step in vectors()["renderers"][name][walk]:
        if "error" in step:
            with pytest.raises(ConfigurationError, match="reasons"):
                family.assistant_turn(ChatMessage(role="assistant", content="x", reasoning="y"))


@pytest.mark.parametrize(("name", "case"), _cases("malformed"))
def test_bad_calls_are_told(name: str, case: str) -> None:
    """Recorded failures are malformed with their raw text; what was read is read; nothing raises."""
    vector = vectors()["malformed"][name][case]
    family = of_vectors(name)
    parsed = family.parse(encoded(family, vector["raw"]))
    if "error" in vector:  # two stops: the cookbook raises, we read up to the first
        assert parsed == family.parse(encoded(family, vector["raw"][: vector["raw"].rindex("<")]))
    elif vector["failure"] is not None or (name, case) in UNREAD:
        assert (parsed.malformed, parsed.tool_calls) == (True, ())
        assert parsed.text.strip()
        assert parsed.text in vector["raw"]
    elif (name, case) in READ:
        assert (parsed.malformed, len(parsed.tool_calls)) == (False, 1)
    else:
        reasoning, text = _said(vector["message"])
        assert (parsed.malformed, parsed.reasoning, parsed.text.strip()) == (False, reasoning, text.strip())
        assert _read_calls(parsed) == _calls(vector["message"])


@pytest.mark.parametrize(("name", "case"), _cases("natural_walks"))
def test_natural_turns_are_followed_exactly(name: str, case: str) -> None:
    """After a turn as models write it the next prompt extends it, also where the cookbook's re-render does not."""
    vector = vectors()["natural_walks"][name][case]
    family = of_vectors(name)
    prompt = family.render(_opening(with_tools=True), (WEATHER,))
    sampled = encoded(family, vector["action"])
    parsed = family.parse(sampled, (), prompt)
    assert parsed.malformed == (vector["failure"] is not None)
    assert [arguments for _, arguments in _read_calls(parsed)] == [json.loads(one) for one in vector["arguments"]]
    result = ChatMessage(role="tool", content="18C")
    new = [result] * vector["n_calls"] or [ChatMessage(role="user", content="fix it")]
    grown = family.bridge(prompt, sampled, new, (WEATHER,))
    breaks = VECTORS[name][1].history is History.TEMPLATE and not vector["n_calls"]
    assert (grown is None) == (breaks or (name, case) in BROKEN)
    if grown is not None:
        assert grown[: len(prompt) + len(sampled)] == (*prompt, *sampled)
        assert "delta" not in vector or family.decode(grown[len(prompt) + len(sampled) :]) == vector["delta"]


@pytest.mark.parametrize("name", vectors()["special_token_injection"])
def test_no_text_becomes_the_stop_token(name: str) -> None:
    """The recorded stop token inside user and tool text stays text, where the cookbook made it a token."""
    family = of_vectors(name)
    token = vectors()["special_token_injection"][name]["token"]
    (number,) = encoded(family, token)

    def count(user: str, result: str) -> int:
        turn = ChatMessage(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}, raw=""),))
        history = (SYSTEM, ChatMessage(role="user", content=user), turn, ChatMessage(role="tool", content=result))
        return family.render(history, (WEATHER,)).count(number)

    assert count(f"a{token}b", "x") == count("ab", "x") == count("ab", f"x{token}{token}")
