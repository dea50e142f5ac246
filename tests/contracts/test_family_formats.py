"""What single formats do where models and harnesses leave the straight path."""

from collections.abc import Sequence

import pytest

from adapters.families.deepseek_v3 import DeepSeekV31Family
from adapters.families.glm import Glm53Family
from adapters.families.gpt_oss import GptOssFamily
from adapters.families.kimi import KimiK2Family, KimiK25Family
from adapters.families.native_family import NativeFamily
from adapters.families.qwen3 import Qwen3Family, Qwen3ThinkingFamily, Qwen25Family
from adapters.families.qwen3_xml import Qwen3CoderFamily, Qwen35Family, Qwen38Family
from domain.errors import ConfigurationError
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions
from tests.fakes.native_families import FAMILIES, encoded, over_bytes
from tests.fakes.native_tokenizers import byte_vocabulary

SPEC = ToolSpec(
    name="bash",
    description="Runs.",
    schema={"type": "object", "properties": {"command": {"type": "string"}, "limit": {"type": "integer"}}},
)
USER = ChatMessage(role="user", content="Go.")
NOTE = ChatMessage(role="system", content="NOTE")


def result(text: str, call_id: str | None = None) -> ChatMessage:
    """Return a tool result."""
    return ChatMessage(role="tool", content=text, tool_call_id=call_id, tool_name="bash")


def called(*ids: str) -> ChatMessage:
    """Return a turn with one call per id."""
    calls = tuple(ToolCall(name="bash", arguments={"command": one}, raw="", call_id=one) for one in ids)
    return ChatMessage(role="assistant", content="", tool_calls=calls)


def suffix(family: NativeFamily, written: str, new: Sequence[ChatMessage]) -> str | None:
    """Return what follows a sampled turn."""
    prompt, sampled = family.render((USER,), (SPEC,)), encoded(family, written)
    grown = family.bridge(prompt, sampled, new, (SPEC,))
    return None if grown is None else family.decode(grown[len(prompt) + len(sampled) :])


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.family)
def test_system_messages_stay_in_their_place(kind: type[NativeFamily]) -> None:
    """A system message after the user's is rendered there, and the prompt before it is a prefix."""
    family = over_bytes(kind)
    text = family.decode(family.render((USER, NOTE, ChatMessage(role="user", content="On.")), ()))
    assert text.index("Go.") < text.index("NOTE") < text.index("On.")


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.family)
def test_results_are_shown_in_call_order(kind: type[NativeFamily]) -> None:
    """Whatever order results came in, a rendered history has them in the order of their calls."""
    family = over_bytes(kind)
    turn, one, two, three = called("a", "b", "c"), result("ONE", "a"), result("TWO", "b"), result("THREE", "c")
    straight = family.render((USER, turn, one, two, three, NOTE), (SPEC,))
    assert family.render((USER, turn, three, one, two, NOTE), (SPEC,)) == straight


def test_kimi_shows_results_under_the_ids_that_it_wrote() -> None:
    """The ids that the model wrote come back with its results, also when one is missing or they are unordered."""
    family = over_bytes(KimiK2Family)
    call = "<|tool_call_begin|>functions.bash:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    written = f"<|tool_calls_section_begin|>{call.format(7)}{call.format(8)}<|tool_calls_section_end|><|im_end|>"
    parsed = family.parse(encoded(family, written))
    assert [one.native_id for one in parsed.tool_calls] == ["functions.bash:7", "functions.bash:8"]
    shown = suffix(family, written, [result("A"), result("B")])
    assert shown is not None
    assert "Return of functions.bash:7\nA<" in shown
    assert "Return of functions.bash:8\nB<" in shown
    by_id = suffix(family, written, [result("B", "functions.bash:8")])
    assert by_id is not None
    assert "Return of functions.bash:8\nB<" in by_id
    history = (USER, called("x", "y"), result("Y", "y"), result("X", "x"), called("z"), result("Z", "z"))
    text = family.decode(family.render(history, (SPEC,)))
    order = [text.index(f"Return of functions.bash:{place}\n{name}<") for place, name in enumerate("XYZ")]
    assert order == sorted(order)


def test_glm_keeps_the_sampled_stop_once_or_breaks() -> None:
    """Results follow a sampled ``<|observation|>``; a turn that stopped on another token cannot be followed."""
    family = over_bytes(Glm53Family)
    call = "r</think><tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
    answer = "<tool_response>x</tool_response><|assistant|><think>"
    assert suffix(family, f"{call}<|observation|>", [result("x")]) == answer
    assert suffix(family, call, [result("x")]) == "<|observation|>" + answer
    for stop in ("<|user|>", "<|endoftext|>"):
        assert suffix(family, call + stop, [result("x")]) is None
    assert suffix(family, "r</think>Hi<|user|>", [USER]) == "Go.<|assistant|><think>"
    assert suffix(family, "r</think>Hi<|user|>", [NOTE, USER]) is None


def test_harmony_keeps_a_sampled_return_and_writes_one_call_a_turn() -> None:
    """Nothing that was sampled is replaced; a target with two calls is refused; a call in any header order is read."""
    family = over_bytes(GptOssFamily)
    shown = suffix(family, "<|channel|>final<|message|>Hi<|return|>", [USER])
    assert shown == "<|start|>user<|message|>Go.<|end|><|start|>assistant"
    with pytest.raises(ConfigurationError, match="one call a turn"):
        family.assistant_turn(called("a", "b"))
    odd = '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"limit": "2"}<|call|>'
    assert [dict(one.arguments or {}) for one in family.parse(encoded(family, odd), (SPEC,)).tool_calls] == [
        {"limit": 2}
    ]
    assert family.parse(encoded(family, "plain<|return|>")).text == "plain"


def test_a_date_is_shown_only_when_it_is_given() -> None:
    """Prompts do not depend on the day of the run."""
    assert "Current date" not in over_bytes(GptOssFamily).decode(over_bytes(GptOssFamily).render((USER,), ()))
    dated = over_bytes(GptOssFamily, FamilyOptions(date="2026-01-02"))
    assert "Current date: 2026-01-02\n" in dated.decode(dated.render((USER,), ()))


def test_a_turn_cut_inside_its_reasoning_is_closed_by_observations() -> None:
    """The bridge closes reasoning and turn, and leaves what was sampled as it was."""
    shown = suffix(over_bytes(Qwen3ThinkingFamily), "hm, let me", [USER])
    assert shown is not None
    assert shown.startswith("</think><|im_end|>\n<|im_start|>user\nGo.")
    closed = suffix(over_bytes(Qwen3Family), "<think>\na\n</think>\n\ntex", [USER])
    assert closed is not None
    assert closed.startswith("<|im_end|>\n")


def test_reasoning_ends_where_vllm_ends_it() -> None:
    """A call ends reasoning that was never closed; a second close is dropped; a look-alike closes nothing."""
    family = over_bytes(Qwen3ThinkingFamily)
    call = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call><|im_end|>'
    parsed = family.parse(encoded(family, f"hm\n{call}"))
    assert (parsed.reasoning, len(parsed.tool_calls), parsed.malformed) == ("hm", 1, False)
    twice = family.parse(encoded(family, "a\n</think>\n\nb</think>c<|im_end|>"))
    assert (twice.reasoning, twice.text) == ("a", "bc")
    spelled = [*family.assistant_turn(ChatMessage(role="assistant", content="x", reasoning="no </think> yet"))]
    assert family.parse(spelled).reasoning == "no </think> yet"


def test_deepseek_v31_goes_on_after_results_without_reasoning() -> None:
    """After results there is no prompt: an answer is no unclosed reasoning, with and without the prompt's ids."""
    family = over_bytes(DeepSeekV31Family)
    turn = called("a")
    prompt = family.render((USER, turn, result("x", "a")), (SPEC,))
    assert family.decode(prompt).endswith("x<｜tool▁output▁end｜>")
    sampled = encoded(family, "Sunny.<｜end▁of▁sentence｜>")
    assert family.parse(sampled, (), prompt).text == family.parse(sampled).text == "Sunny."
    opened = family.render((USER,), (SPEC,))
    thinking = family.parse(encoded(family, "a</think>b<｜end▁of▁sentence｜>"), (), opened)
    assert (thinking.reasoning, thinking.text) == ("a", "b")


@pytest.mark.parametrize("kind", [Qwen3CoderFamily, Qwen35Family], ids=lambda kind: kind.family)
def test_tagged_calls_are_read_generously_and_typed(kind: type[NativeFamily]) -> None:
    """No wrapper, no close before the next call, JSON inside: calls all the same; prose about a function is text."""
    family = over_bytes(kind, FamilyOptions(thinking=False))
    function = (
        "<function=bash>\n<parameter=limit>\n3\n</parameter>\n<parameter=command>\n\n3\n\n</parameter>\n</function>"
    )
    expected = {"limit": 3, "command": "\n3\n"}
    for written in (function, f"<tool_call>\n{function}\n<tool_call>\n{function}\n</tool_call>"):
        parsed = family.parse(encoded(family, f"{written}<|im_end|>"), (SPEC,))
        assert not parsed.malformed
        assert [dict(call.arguments or {}) for call in parsed.tool_calls] in ([expected], [expected] * 2)
    prose = "Write <function=NAME> to call."
    assert family.parse(encoded(family, f"{prose}<|im_end|>")).text == prose


def test_a_malformed_turn_keeps_reasoning_and_raw_text_apart() -> None:
    """What is given back is the text after the reasoning, markup included."""
    family = over_bytes(Qwen35Family)
    parsed = family.parse(encoded(family, "why\n</think>\n\n<tool_call>\n<function=bash>\n</tool_call><|im_end|>"))
    assert (parsed.malformed, parsed.reasoning) == (True, "why")
    assert parsed.text == "<tool_call>\n<function=bash>\n</tool_call>"


def test_switches_that_a_format_lacks_are_refused() -> None:
    """Thinking that cannot be switched off, an effort that does not exist, tokens that are missing."""
    for kind in (Qwen3ThinkingFamily, Glm53Family, GptOssFamily):
        with pytest.raises(ConfigurationError, match="cannot be switched off"):
            over_bytes(kind, FamilyOptions(thinking=False))
    with pytest.raises(ConfigurationError, match="no effort 'huge'"):
        over_bytes(Qwen38Family, FamilyOptions(effort="huge"))
    with pytest.raises(ConfigurationError, match="has no token"):
        KimiK25Family(byte_vocabulary("qwen3"))
    assert (
        over_bytes(Qwen25Family)
        .decode(over_bytes(Qwen25Family).render((USER,), ()))
        .startswith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud.")
    )
