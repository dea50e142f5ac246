"""Chat completions of the model proxy, with the vendor's own client over real sockets."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from domain.errors import SamplerError
from domain.records.trial import Purpose
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import CALL, NO_TLS, assert_exact
from tests.services.openai_client import CHAT_TOOLS, Chat, chat_results, client_of, recorded, user


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


async def test_a_completion_is_recorded_as_sampled(process: Process) -> None:
    """The answer has the requested model's name, ids of its own and real token counts; the journal has the ids."""
    async with client_of(process) as client:
        chat = Chat(client, "be brief")
        answer = await chat.ask(user("hello"))
        second = await chat.ask(user("more"))
    first, _ = await recorded(process)
    assert (answer.model, answer.object) == (MODEL, "chat.completion")
    assert answer.id.startswith("chatcmpl-")
    assert answer.id != second.id
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("done", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(first.prompt_ids), 5)
    assert ScriptedFamily().decode(first.prompt_ids).startswith("<s>tools:bash</s><s>system:be brief</s><s>user:hello")
    assert (first.agent, first.purpose, first.segment) == ("main", Purpose.AGENT, 0)


async def test_prompts_extend_exactly_what_was_sampled(tmp_path: Path) -> None:
    """Parallel calls, results in any order, edited arguments, a call that cannot be read: the ids stay as sampled."""
    script = [
        '  text first <call>bash {"command":   "ls", "x": 1.0}</call>',
        "<call>bash {not json</call>",
        '<call>bash {"command": "a"}</call><call>bash {"command": "b"}</call>',
        "\n\nfinished ",
    ]
    async with model_process(tmp_path, MemoryStore(), script) as process, client_of(process) as client:
        chat = Chat(client, "sys")
        first = await chat.ask(user("start"))
        assert first.choices[0].finish_reason == "tool_calls"
        chat.messages[-1]["tool_calls"][0]["function"]["arguments"] = '{"x":1,"command":"ls -l"}'
        chat.messages[-1]["content"] = " moved "
        second = await chat.ask(*chat_results(first, "file"))
        (unread,) = second.choices[0].message.tool_calls or []
        assert unread.type == "function"
        assert unread.function.name == "bash"
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(unread.function.arguments)
        third = await chat.ask(*chat_results(second, "the arguments are no JSON"))
        both = third.choices[0].message.tool_calls or []
        assert len({call.id for call in both}) == 2
        await chat.ask(*reversed(chat_results(third, "first", "second")))
        await chat.ask({"role": "developer", "content": "mind the time"}, user("thanks"))
        calls = await recorded(process)
    assert [call.segment for call in calls] == [0] * 5
    assert_exact(calls)
    shown = ScriptedFamily().decode(calls[3].prompt_ids)
    assert shown.endswith("<s>tool/bash:first</s><s>tool/bash:second</s><s>assistant:")
    assert "<s>tool:the arguments are no JSON</s>" in shown
    assert "<s>system:mind the time</s><s>user:thanks</s>" in ScriptedFamily().decode(calls[4].prompt_ids)


async def test_the_stream_is_what_the_client_puts_together(tmp_path: Path) -> None:
    """A sign of life comes at once and while the model works; parallel calls have indices of their own; [DONE] ends."""
    both = 'both <call>bash {"command": "a"}</call><call>bash {"command": "b"}</call>'
    sampler = ScriptedSampler(script=[both, both], delay_s=0.4)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, ping_s=0.1) as process:
        body = {"model": MODEL, "tools": CHAT_TOOLS, "messages": [user("go")], "stream": True}
        headers = {"authorization": f"Bearer {process.tokens.issue('raw')}"}
        async with httpx.AsyncClient(base_url=process.url, headers=headers, verify=NO_TLS) as raw:
            response = await raw.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})
        async with (
            client_of(process) as client,
            client.chat.completions.stream(
                model=MODEL,
                tools=CHAT_TOOLS,
                messages=[user("go")],  # pyright: ignore[reportArgumentType] - a plain dict
            ) as stream,
        ):
            final: Any = await stream.get_final_completion()
        (call,) = await recorded(process, "raw")
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.strip().split("\n\n")
    assert parts[0] == parts[1] == ": the model works"
    assert parts[-1] == "data: [DONE]"
    chunks = [
        ChatCompletionChunk.model_validate_json(part.removeprefix("data: "), strict=True)
        for part in parts
        if part.startswith("data: {")
    ]
    assert chunks[0].choices[0].delta.role == "assistant"
    indices = [tool.index for chunk in chunks[:-1] for tool in chunk.choices[0].delta.tool_calls or []]
    assert indices == [0, 1]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["tool_calls"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(call.sampled_ids)
    message = final.choices[0].message
    assert [json.loads(tool.function.arguments)["command"] for tool in message.tool_calls] == ["a", "b"]
    assert message.content == "both "


async def test_every_answer_is_of_the_vendors_type(tmp_path: Path) -> None:
    """Whole completions validate strictly, reasoning is given where the family finds it, a cut turn says length."""
    from adapters.families.qwen3 import Qwen3Family
    from adapters.trainers.tokenizer_training import byte_tokenizer

    tokenizer = byte_tokenizer()
    family = Qwen3Family(tokenizer)
    call = '<tool_call>\n{"name":"bash",  "arguments": {"command": "ls"}}\n</tool_call>'
    sampler = ScriptedSampler(
        script=[
            f"<think>\nhm\n</think>\n\nOn it.\n{call}",
            '<tool_call>\n{"name": "bash", "argu\n</tool_call>',
            "long",
        ],
        encode=lambda line: (*tokenizer.encode(line, add_special_tokens=False).ids, family.stop_ids[0]),
    )
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, family=family) as process:
        async with client_of(process) as client:
            chat = Chat(client, "Use bash.")
            first = await chat.ask(user("start"))
            second = await chat.ask(*chat_results(first, "<|im_end|> <tool_call>"))
            third = await chat.ask(*chat_results(second, "no such tool"), max_completion_tokens=2)
        calls = await recorded(process)
    for answer in (first, second, third):
        ChatCompletion.model_validate(answer.model_dump(), strict=True)
    assert first.choices[0].message.model_dump()["reasoning_content"] == "hm"
    (unread,) = second.choices[0].message.tool_calls or []
    assert unread.type == "function"
    assert unread.function.name == "unreadable_call"
    assert third.choices[0].finish_reason == "length"
    assert [call.segment for call in calls] == [0, 0, 0]
    assert_exact(calls)


async def test_what_nothing_acts_on_is_recorded(process: Process) -> None:
    """Sampling is the token's; the client's wishes and fields nobody knows are in the journal."""
    async with client_of(process) as client:
        await Chat(client).ask(
            user("x"), temperature=0.1, seed=3, reasoning_effort="low", extra_body={"made_up": {"a": [1]}}
        )
    (call,) = await recorded(process)
    assert call.temperature == 1.0
    assert process.sampler.requests[0].temperature == 1.0
    extra = dict(cast("dict[str, Any]", call.request["extra"]))
    assert "OpenAI" in extra.pop("headers")["user-agent"]
    assert extra == {
        "temperature": 0.1,
        "seed": 3,
        "reasoning_effort": "low",
        "made_up": {"a": [1]},
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4"}, "model"),
    "several samples": ({"n": 2}, "n"),
    "log probabilities": ({"logprobs": True}, "logprobs"),
    "speech": ({"modalities": ["text", "audio"]}, "modalities"),
    "a schema": ({"response_format": {"type": "json_object"}}, "response_format"),
    "a forced tool": ({"tool_choice": "required"}, "tool_choice"),
    "a hosted tool": ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    "two tools of one name": ({"tools": [CHAT_TOOLS[0], CHAT_TOOLS[0]]}, "tools.1.name"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0",
    ),
    "a result of nothing": ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    "a last word": ({"messages": [user("x"), {"role": "assistant", "content": "y"}]}, "messages"),
    "a system prompt alone": ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
}


@pytest.mark.parametrize(("extra", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_would_change_the_answer_is_refused_by_name(
    process: Process, extra: dict[str, Any], param: str
) -> None:
    """A field that cannot be honoured is a 400 that names it, and nothing is sampled."""
    async with client_of(process) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await Chat(client).ask(**{"messages": [user("x")], "tools": openai.omit, **extra})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert await recorded(process) == ()


async def test_tools_that_may_not_be_called_are_not_shown(process: Process) -> None:
    """``tool_choice: none`` is honoured; neutral values of refused fields ask for nothing."""
    async with client_of(process) as client:
        neutral: dict[str, Any] = {"n": 1, "stop": None, "logprobs": False, "response_format": {"type": "text"}}
        await Chat(client).ask(user("x"), tool_choice="none", **neutral)
    (call,) = await recorded(process)
    assert ScriptedFamily().decode(call.prompt_ids).startswith("<s>tools:</s><s>user:x")


async def test_errors_make_clients_stop_wait_or_compact(tmp_path: Path) -> None:
    """A prompt that is too long has OpenAI's words, a token that does not hold is a 404, a platform's fault a 500."""
    fault = SamplerError("out of memory")
    sampler = ScriptedSampler(script=[fault, fault], delay_s=0.1)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process, client_of(process) as client:
        chat = Chat(client)
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="maximum context length is 4095 tokens") as long:
                await Chat(client).ask(user("x" * 5000), stream=stream)
            assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await chat.ask(user("x"))
        with pytest.raises(openai.APIError, match="out of memory"):
            async for _ in await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
            ):
                pass
        listed = await client.models.list()
        assert [model.id for model in listed.data] == [MODEL]
        with pytest.raises(openai.NotFoundError):
            await Chat(client.with_options(api_key="unknown")).ask(user("x"))


async def test_errands_and_delegated_agents_are_told_apart(process: Process) -> None:
    """Titles and summaries of opencode do not train, and a session that has a parent is an agent of its own."""
    async with client_of(process) as client:
        own = {"x-session-id": "ses_1"}
        await Chat(client, "You are a title generator. Name it.").ask(user("x"), tools=openai.omit, extra_headers=own)
        await Chat(client, "You are a context summarization agent.").ask(user("x"), tools=openai.omit)
        await Chat(client).ask(user("x"), extra_headers=own)
        await Chat(client).ask(user("y"), extra_headers={"x-session-id": "ses_2", "x-parent-session-id": "ses_1"})
    calls = await recorded(process)
    assert [(call.agent, call.purpose) for call in calls] == [
        ("main", Purpose.TITLE),
        ("main", Purpose.COMPACTION),
        ("main", Purpose.AGENT),
        ("ses_2", Purpose.AGENT),
    ]


async def test_a_client_that_hangs_up_may_ask_again(tmp_path: Path) -> None:
    """The same request gets the same answer, and nothing is sampled twice."""
    sampler = ScriptedSampler(script=[CALL], delay_s=0.4)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process, client_of(process) as client:
        for stream in (False, True):
            with pytest.raises(openai.APITimeoutError):
                await _drained(client.with_options(timeout=0.15), stream=stream)
        answer = await Chat(client).ask(user("x"))
        assert answer.choices[0].finish_reason == "tool_calls"
        assert len(process.sampler.requests) == len(await recorded(process)) == 1


async def _drained(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    create: Any = client.chat.completions.create
    answer: Any = await create(model=MODEL, tools=CHAT_TOOLS, messages=[user("x")], stream=stream)
    if stream:
        async for _ in answer:
            pass
