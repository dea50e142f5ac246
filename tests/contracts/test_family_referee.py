"""The ``renderers`` library as referee: written by others from the same templates, it says the same of whole histories.

Compared where the library has the family and what it writes follows the model's template; its own departures are left
out by the conversation (``native_family.py`` names them).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from renderers.configs import (
    DeepSeekR1RendererConfig,
    DeepSeekV3RendererConfig,
    DeepSeekV4RendererConfig,
    GLM5RendererConfig,
    GLM45RendererConfig,
    GLM53RendererConfig,
    KimiK25RendererConfig,
    Qwen3RendererConfig,
    Qwen35RendererConfig,
    Qwen36RendererConfig,
    Qwen38RendererConfig,
)
from renderers.deepseek_r1 import DeepSeekR1Renderer
from renderers.deepseek_v3 import DeepSeekV3Renderer
from renderers.deepseek_v4 import DeepSeekV4Renderer
from renderers.glm5 import GLM5Renderer, GLM53Renderer
from renderers.glm45 import GLM45Renderer
from renderers.kimi_k25 import KimiK25Renderer
from renderers.qwen3 import Qwen3Renderer
from renderers.qwen35 import Qwen35Renderer
from renderers.qwen36 import Qwen36Renderer
from renderers.qwen38 import Qwen38Renderer

from adapters.families.deepseek_v3 import DeepSeekR1Family, DeepSeekV3Family
from adapters.families.deepseek_v4 import DeepSeekV4Family
from adapters.families.glm import Glm5Family, Glm45Family, Glm53Family
from adapters.families.guarded_tokenizer import GuardedTokenizer
from adapters.families.kimi import KimiK25Family
from adapters.families.native_family import NativeFamily
from adapters.families.qwen3 import Qwen3Family
from adapters.families.qwen3_xml import Qwen35Family, Qwen36Family, Qwen38Family
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions, History
from tests.fakes.native_families import over_bytes, over_real_vocabulary
from tests.fakes.native_tokenizers import byte_vocabulary, real_vocabulary

SPEC = ToolSpec(
    name="bash",
    description="Runs a command.",
    schema={"type": "object", "properties": {"command": {"type": "string"}, "limit": {"type": "integer"}}},
)


def _over(renderer: Any, config: object) -> Callable[[Any], Any]:
    """Return what makes a referee over a tokenizer; some of its constructors are annotated for a parent's config."""
    return lambda tokens: renderer(tokens, config)


REFEREES: dict[type[NativeFamily], Callable[[Any], Any]] = {
    Qwen3Family: _over(Qwen3Renderer, Qwen3RendererConfig()),
    Qwen35Family: _over(Qwen35Renderer, Qwen35RendererConfig(enable_thinking=True)),
    Qwen36Family: _over(Qwen36Renderer, Qwen36RendererConfig(enable_thinking=True)),
    Qwen38Family: _over(Qwen38Renderer, Qwen38RendererConfig(enable_thinking=True)),
    DeepSeekV3Family: _over(DeepSeekV3Renderer, DeepSeekV3RendererConfig()),
    DeepSeekR1Family: _over(DeepSeekR1Renderer, DeepSeekR1RendererConfig()),
    Glm45Family: _over(GLM45Renderer, GLM45RendererConfig()),
    Glm5Family: _over(GLM5Renderer, GLM5RendererConfig()),
    Glm53Family: _over(GLM53Renderer, GLM53RendererConfig()),
    KimiK25Family: _over(KimiK25Renderer, KimiK25RendererConfig()),
}
_WITHOUT_TOOLS = (DeepSeekV3Family, DeepSeekR1Family)
"""The library declares no tools for them."""


def _history() -> tuple[ChatMessage, ...]:
    def call(number: int, text: str, command: str) -> ChatMessage:
        made = ToolCall(
            name="bash",
            arguments={"command": command, "limit": 3},
            raw="",
            call_id=f"functions.bash:{number}",
            native_id=f"functions.bash:{number}",
        )
        return ChatMessage(role="assistant", content=text, reasoning="think first", tool_calls=(made,))

    def result(number: int, text: str) -> ChatMessage:
        return ChatMessage(role="tool", content=text, tool_name="bash", tool_call_id=f"functions.bash:{number}")

    return (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Which files?"),
        call(0, "Looking.", "ls -l"),
        result(0, "a\nb"),
        ChatMessage(role="assistant", content="Two: a and b.", reasoning="both"),
        ChatMessage(role="user", content="Read a."),
        call(1, "Reading.", "cat 'a' # é"),
        result(1, "text"),
    )


def _wire(message: ChatMessage) -> dict[str, object]:
    wire: dict[str, object] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        wire["reasoning_content"] = message.reasoning
    if message.role == "tool":
        wire |= {"name": message.tool_name, "tool_call_id": message.tool_call_id}
    if message.tool_calls:
        functions = [
            {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            for call in message.tool_calls
        ]
        wire["tool_calls"] = [
            {"id": call.native_id, "type": "function", "function": function}
            for call, function in zip(message.tool_calls, functions, strict=True)
        ]
    return wire


@pytest.mark.parametrize("length", [2, 4, 6, 8])
@pytest.mark.parametrize("kind", REFEREES, ids=lambda kind: kind.family)
def test_the_library_says_the_same(kind: type[NativeFamily], length: int) -> None:
    """A history of any length, rendered by the template's rule, is the library's text."""
    family = over_bytes(kind, FamilyOptions(history=History.TEMPLATE))
    history = _history()[:length]
    tools = () if kind in _WITHOUT_TOOLS else (SPEC,)
    declared = _declared(tools)
    if issubclass(kind, Qwen35Family):
        declared = [one["function"] for one in declared]  # as recorded in native_formats.json
    referee = REFEREES[kind](GuardedTokenizer(byte_vocabulary(kind.family)))
    expected = referee.render_ids([_wire(one) for one in history], tools=declared or None, add_generation_prompt=True)
    assert family.decode(family.render(history, tools)) == family.decode(expected)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("tools", [(), (SPEC,)], ids=["plain", "tools"])
def test_deepseek_v4_says_the_same_over_its_own_vocabulary(tools: tuple[ToolSpec, ...], *, thinking: bool) -> None:
    """V4 is ours because V4.1 is; where the library has it, ids are equal, with reasoning kept and forgotten."""
    family = over_real_vocabulary(DeepSeekV4Family, FamilyOptions(history=History.TEMPLATE, thinking=thinking))
    tokens: Any = GuardedTokenizer(real_vocabulary("deepseek-v4"))
    referee = DeepSeekV4Renderer(tokens, DeepSeekV4RendererConfig(enable_thinking=thinking))
    for length in (2, 4, 6, 8):
        history = _history()[:length]
        wire: Any = [_wire(one) for one in history]
        declared: Any = _declared(tools) or None
        assert list(family.render(history, tools)) == referee.render_ids(
            wire, tools=declared, add_generation_prompt=True
        )


def _declared(tools: Sequence[ToolSpec]) -> list[Any]:
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in tools]
    return [{"type": "function", "function": function} for function in functions]
