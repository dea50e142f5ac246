"""Responses of the model proxy, with the vendor's own client over real sockets."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from domain.errors import SamplerError
from domain.records.trial import Purpose
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import CALL, NO_TLS, assert_exact
from tests.services.openai_client import TOOLS, Agent, client_of, outputs, recorded, user

_PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}
_TEAM = {
    "type": "namespace",
    "name": "team",
    "description": "Agents.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
}


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


async def test_a_response_is_recorded_as_sampled(process: Process) -> None:
    """The answer validates strictly as the vendor's type, has ids of its own and real token counts."""
    async with client_of(process) as client:
        agent = Agent(client, instructions="be brief", store=False)
        answer = await agent.ask(user("hello"), temperature=0.1, metadata={"a": "b"})
        short = await client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    first, _ = await recorded(process)
    for each in (answer, short):
        Response.model_validate(each.model_dump(), strict=True)
    assert (answer.model, answer.status, answer.output_text, answer.metadata) == (
        MODEL,
        "completed",
        "done",
        {"a": "b"},
    )
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(first.prompt_ids), 5)
    assert short.incomplete_details is not None
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.id != answer.id
    assert ScriptedFamily().decode(first.prompt_ids).startswith("<s>tools:bash</s><s>system:be brief</s><s>user:hello")
    extra = dict(cast("dict[str, Any]", first.request["extra"]))
    assert "OpenAI" in extra.pop("headers")["user-agent"]
    assert extra == {"metadata": {"a": "b"}, "store": False, "temperature": 0.1}


async def test_prompts_extend_exactly_what_was_sampled(tmp_path: Path) -> None:
    """Parallel calls, results in any order, dropped reasoning and ids, a call that cannot be read: ids as sampled."""
    script = [
        '  text first <call>bash {"command":   "ls", "x": 1.0}</call>',
        "<call>bash {not json</call>",
        '<call>bash {"command": "a"}</call><call>bash {"command": "b"}</call>',
        "\n\nfinished ",
    ]
    async with model_process(tmp_path, MemoryStore(), script) as process, client_of(process) as client:
        agent = Agent(client)
        first = await agent.ask({"type": "message", **user("start")})
        assert [item.type for item in first.output] == ["message", "function_call"]
        for item in agent.items:
            item.pop("id", None)
        second = await agent.ask(*outputs(first, "file"))
        assert [item.type for item in second.output] == ["message", "function_call"]
        third = await agent.ask(*outputs(second, "the arguments are no JSON"))
        await agent.ask(*reversed(outputs(third, "first", "second")))
        await agent.ask({"role": "developer", "content": [{"type": "input_text", "text": "time"}]}, user("thanks"))
        calls = await recorded(process)
    assert [call.segment for call in calls] == [0] * 5
    assert_exact(calls)
    shown = ScriptedFamily().decode(calls[3].prompt_ids)
    assert shown.endswith("<s>tool/bash:first</s><s>tool/bash:second</s><s>assistant:")
    assert "<s>system:time</s><s>user:thanks</s>" in ScriptedFamily().decode(calls[4].prompt_ids)


async def test_custom_tools_and_namespaces_come_back_as_declared(tmp_path: Path) -> None:
    """A free-form tool gets its text, a tool of a namespace its namespace; both are functions to the model."""
    script = ['<call>patch {"input": "*** Begin"}</call><call>team__spawn {"task": "x"}</call>', CALL]
    async with model_process(tmp_path, MemoryStore(), script) as process, client_of(process) as client:
        agent = Agent(client, tools=[*TOOLS, _PATCH, _TEAM])
        answer = await agent.ask(user("go"))
        patch, spawn = cast("list[Any]", answer.output)
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin")
        assert (spawn.type, spawn.name, spawn.namespace) == ("function_call", "spawn", "team")
        await agent.ask(*outputs(answer, "patched", "spawned"))
        calls = await recorded(process)
    assert "tools:bash,patch,team__spawn" in ScriptedFamily().decode(calls[0].prompt_ids)
    assert "<s>tool/patch:patched</s><s>tool/team__spawn:spawned" in ScriptedFamily().decode(calls[1].prompt_ids)
    assert [call.segment for call in calls] == [0, 0]
    assert_exact(calls)


async def test_a_stream_has_every_event_that_closes_something(tmp_path: Path) -> None:
    """Numbers without holes, signs of life as events, each item opened and closed, the whole response at the end."""
    sampler = ScriptedSampler(script=[f'aloud {CALL}<call>patch {{"input": "x"}}</call>'], delay_s=0.4)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, ping_s=0.1) as process:
        headers = {"authorization": f"Bearer {process.tokens.issue('t1')}"}
        body = {"model": MODEL, "tools": [*TOOLS, _PATCH], "input": "go", "stream": True}
        async with httpx.AsyncClient(base_url=process.url, headers=headers, verify=NO_TLS) as raw:
            response = await raw.post("/v1/responses", json=body)
        (call,) = await recorded(process)
    reader: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events: list[dict[str, Any]] = []
    for part in response.text.strip().split("\n\n"):
        kind, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        reader.validate_python(events[-1], strict=True)
        assert events[-1]["type"] == kind.removeprefix("event: ")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[0] == "created"
    assert kinds.count("in_progress") >= 3
    assert [kind for kind in kinds[1:] if kind != "in_progress"] == [
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]
    closed = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    whole = Response.model_validate(events[-1]["response"], strict=True)
    assert closed == events[-1]["response"]["output"]
    assert len({item["id"] for item in closed}) == 3
    assert whole.usage is not None
    assert whole.usage.output_tokens == len(call.sampled_ids)


async def test_the_vendors_stream_puts_it_together(tmp_path: Path) -> None:
    """Its accumulator takes our events, reasoning of the real format among them; ids stay exact over both ways."""
    from adapters.families.qwen3 import Qwen3Family
    from adapters.trainers.tokenizer_training import byte_tokenizer

    tokenizer = byte_tokenizer()
    family = Qwen3Family(tokenizer)
    tool = '<tool_call>\n{"name":"bash",  "arguments": {"command": "ls"}}\n</tool_call>'
    sampler = ScriptedSampler(
        script=[f"<think>\nhm\n</think>\n\nOn it.\n{tool}", "<tool_call>\n{bad\n</tool_call>", "end"],
        encode=lambda line: (*tokenizer.encode(line, add_special_tokens=False).ids, family.stop_ids[0]),
    )
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, family=family) as process:
        async with client_of(process) as client:
            async with client.responses.stream(model=MODEL, input="go", tools=TOOLS) as stream:
                first = await stream.get_final_response()
            agent = Agent(client)
            agent.items = [user("go"), *(item.model_dump(exclude_none=True) for item in first.output)]
            second = await agent.ask(*outputs(cast("Response", first), "file"))
            await agent.ask(*outputs(second, "no such tool"))
        calls = await recorded(process)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert first.output_text.strip() == "On it."
    assert [item.type for item in second.output] == ["message", "function_call"]
    assert [call.segment for call in calls] == [0, 0, 0]
    assert_exact(calls)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt-4"}, "model"),
    "a kept response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "the background": ({"background": True}, "background"),
    "a schema": ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    "a silent cut": ({"truncation": "auto"}, "truncation"),
    "a template": ({"prompt": {"id": "p"}}, "prompt"),
    "a forced tool": ({"tool_choice": {"type": "function", "name": "bash"}}, "tool_choice"),
    "a hosted tool": ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    "the vendor's shell": ({"tools": [{"type": "local_shell"}]}, "tools.0.type"),
    "an item that is kept elsewhere": ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
    "an item of another kind": ({"input": [user("x"), {"type": "web_search_call", "id": "x"}]}, "input.1.type"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
    "a role": ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
    "a call without an id": ({"input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id"),
    "nothing": ({"input": []}, "messages"),
}


@pytest.mark.parametrize(("extra", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_would_change_the_answer_is_refused_by_name(
    process: Process, extra: dict[str, Any], param: str
) -> None:
    """A field that cannot be honoured is a 400 that names it, and nothing is sampled."""
    async with client_of(process) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await Agent(client).ask(**{"input": "x", "instructions": "i", **extra})
    assert refused.value.param == param
    assert await recorded(process) == ()


async def test_errors_make_clients_stop_or_compact(tmp_path: Path) -> None:
    """A stream says itself that its prompt is too long, since codex compacts at that alone; faults end a stream."""
    sampler = ScriptedSampler(script=[SamplerError("out of memory")], delay_s=0.1)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process, client_of(process) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 4095 tokens"):
            await client.responses.create(model=MODEL, input="x" * 5000)
        for asked, code in (("x" * 5000, "context_length_exceeded"), ("x", "server_error")):
            events: list[Any] = [
                event async for event in await client.responses.create(model=MODEL, input=asked, stream=True)
            ]
            assert [event.type for event in events][-1] == "response.failed"
            assert events[-1].response.error.code == code
        with pytest.raises(openai.BadRequestError, match="unknown, expired or revoked"):
            await Agent(client.with_options(api_key="unknown")).ask(user("x"), stream=True)


async def test_errands_and_delegated_agents_are_told_apart(process: Process) -> None:
    """Codex says what a request is for, and which thread of its session asks."""
    async with client_of(process) as client:
        for kind, thread in (("turn", "s1"), ("compaction", "s1"), ("turn", "s2")):
            told = {"x-codex-turn-metadata": json.dumps({"request_kind": kind}), "session-id": "s1"}
            await client.responses.create(
                model=MODEL, input=f"{kind}{thread}", extra_headers={**told, "thread-id": thread}
            )
    calls = await recorded(process)
    assert [(call.agent, call.purpose) for call in calls] == [
        ("main", Purpose.AGENT),
        ("main", Purpose.COMPACTION),
        ("s2", Purpose.AGENT),
    ]


async def test_two_turns_beside_each_other_stay_two(tmp_path: Path) -> None:
    """Items of two turns that nothing stands between are told apart by their order, and both stay as sampled."""
    async with model_process(tmp_path, MemoryStore(), ["one", "two"]) as process, client_of(process) as client:
        agent = Agent(client)
        await agent.ask(user("a"))
        agent.items.append({"role": "assistant", "content": "noted by the harness"})
        await agent.ask(user("b"))
        calls = await recorded(process)
    assert [call.segment for call in calls] == [0, 1]
    assert_exact(calls)
    assert "<s>assistant:one</s><s>assistant:noted by" in ScriptedFamily().decode(calls[1].prompt_ids)
