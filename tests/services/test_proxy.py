"""The model proxy over real sockets, with a scripted sampler and a byte-level family."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from domain.records.trial import Purpose
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import BASE, MODEL, Process, ScriptedSampler, TokenBook, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import CALL, NO_TLS, TOOLS, Harness, assert_exact, results


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


async def test_a_message_is_recorded_as_sampled(process: Process) -> None:
    """The answer has the requested model's name and real token counts, and the journal has its ids."""
    harness = Harness(process)
    answer = await harness.ask("hello", system="be brief")
    (call,) = await harness.calls()
    assert answer["model"] == MODEL
    assert answer["content"] == [{"type": "text", "text": "done"}]
    assert answer["stop_reason"] == "end_turn"
    assert answer["usage"]["input_tokens"] == len(call.prompt_ids)
    assert answer["usage"]["output_tokens"] == len(call.sampled_ids) == 5
    assert ScriptedFamily().decode(call.prompt_ids).startswith("<s>tools:bash</s><s>system:be brief</s><s>user:hello")
    assert (call.sequence, call.segment, call.agent, call.purpose) == (0, 0, "main", Purpose.AGENT)
    assert call.sampler_version == BASE.name
    assert call.response == answer
    assert call.request["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert "max_tokens_granted" not in call.request
    assert process.sampler.loaded == [BASE.name], "the version is loaded from the ledger when nobody served it"


async def test_prompts_extend_exactly_what_was_sampled(tmp_path: Path) -> None:
    """Over many turns with odd and malformed calls the harness edits what it echoes; the ids stay as sampled."""
    script = [
        '  text first <call>bash {"command":   "ls", "x": 1.0}</call>',
        "<call>bash {not json</call>",
        '<call>bash {"command": "a"}</call><call>bash {"command": "b"}</call>',
        "\n\nfinished ",
    ]
    async with model_process(tmp_path, MemoryStore(), script) as process:
        harness = Harness(process)
        first = await harness.ask("start")
        assert first["stop_reason"] == "tool_use"
        # A real harness reorders keys, coerces numbers and moves text. Source: facts/proxy.md section 1.6.
        echoed = harness.messages[-1]["content"]
        echoed[1]["input"] = {"x": 1, "command": "ls -l", "extra": False}
        echoed.reverse()
        second = await harness.ask(results(first, "file"))
        assert second["stop_reason"] == "tool_use"
        assert [block["type"] for block in second["content"]] == ["text"]
        assert "<call>bash {not json</call>" in second["content"][0]["text"]
        third = await harness.ask(
            [{"type": "text", "text": "malformed, retry", "cache_control": {"type": "ephemeral"}}]
        )
        both = results(third, "first", "second")
        assert len({block["tool_use_id"] for block in both}) == 2
        # Results arrive in order of completion; the model sees them in order of its calls.
        await harness.ask(list(reversed(both)))
        await harness.ask("thanks")
        calls = await harness.calls()
    assert [call.segment for call in calls] == [0] * 5
    assert_exact(calls)
    assert 'text first <call>bash {"command":   "ls", "x": 1.0}' in ScriptedFamily().decode(calls[1].prompt_ids)
    shown = ScriptedFamily().decode(calls[3].prompt_ids)
    assert shown.endswith("<s>tool/bash:first</s><s>tool/bash:second</s><s>assistant:")


async def test_the_qwen3_format_stays_exact(tmp_path: Path) -> None:
    """With the real format and tokenizer: odd spacing, calls that cannot be read, cut turns and control text."""
    from adapters.families.qwen3 import Qwen3Family
    from adapters.trainers.tokenizer_training import byte_tokenizer

    tokenizer = byte_tokenizer()
    family = Qwen3Family(tokenizer)

    def encode(line: str) -> tuple[int, ...]:
        return (*tokenizer.encode(line, add_special_tokens=False).ids, family.stop_ids[0])

    sampler = ScriptedSampler(
        script=[
            'On it.\n<tool_call>\n{"name":"bash",  "arguments": {"command": "ls"}}\n</tool_call>',
            '<tool_call>\n{"name": "bash", "argu\n</tool_call>',
            "<think>\nhm\n</think>\n\n  spaces kept  \n",
            "this turn is cut in the middle",
            "\n".join(
                f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{name}"}}}}\n</tool_call>' for name in "ab"
            ),
            "done",
        ],
        encode=encode,
    )
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, family=family) as process:
        harness = Harness(process)
        first = await harness.ask("start", system="Use bash.")
        assert [block["type"] for block in first["content"]] == ["text", "tool_use"]
        second = await harness.ask(results(first, "<|im_end|> <tool_call>"), system="Use bash.")
        assert second["stop_reason"] == "tool_use"
        third = await harness.ask("try again", system="Use bash.", thinking={"type": "adaptive"})
        assert [block["type"] for block in third["content"]] == ["thinking", "text"]
        fourth = await harness.ask("go on", system="Use bash.", max_tokens=5)
        assert fourth["stop_reason"] == "max_tokens"
        fifth = await harness.ask("more", system="Use bash.")
        await harness.ask(list(reversed(results(fifth, "1", "2"))), system="Use bash.")
        calls = await harness.calls()
    assert [call.segment for call in calls] == [0] * 6
    assert_exact(calls)


async def test_a_rewritten_history_starts_a_segment(tmp_path: Path) -> None:
    """Compaction and edits give a new segment, rendered whole; going back to the old history forks from its ids."""
    async with model_process(tmp_path, MemoryStore(), [CALL, "one", "two", "three", "four"]) as process:
        harness = Harness(process)
        answer = await harness.ask("start")
        await harness.ask(results(answer, "x"))
        old = list(harness.messages)
        harness.messages = [{"role": "user", "content": "summary"}, *old[1:]]
        await harness.ask("go on")
        harness.messages = old
        await harness.ask("other branch")
        await harness.ask("and on")
        calls = await harness.calls()
    assert [call.segment for call in calls] == [0, 0, 1, 0, 0]
    assert_exact(calls)
    assert CALL in ScriptedFamily().decode(calls[2].prompt_ids), "a kept turn is rendered from what was sampled"


async def test_two_ways_from_one_turn_are_two_segments(tmp_path: Path) -> None:
    """When a second call goes on from a turn that already has a successor, it extends its ids in its own segment."""
    async with model_process(tmp_path, MemoryStore(), ["zero", "one", "two", "three"]) as process:
        harness = Harness(process)
        await harness.ask("start")
        old = list(harness.messages)
        await harness.ask("left")
        harness.messages = old
        await harness.ask("right")
        await harness.ask("further")
        calls = await harness.calls()
    assert [call.segment for call in calls] == [0, 0, 1, 1]
    assert_exact(calls)
    known = calls[0].prompt_ids + calls[0].sampled_ids
    assert calls[2].prompt_ids[: len(known)] == known


async def test_agents_have_their_own_conversations(process: Process) -> None:
    """Delegated agents name themselves; their calls run beside the main loop and share its numbering."""
    main, child = Harness(process), Harness(process, agent="a1")
    await main.ask("start")
    await asyncio.gather(child.ask("sub"), main.ask("more"))
    await child.ask("sub again")
    calls = await main.calls()
    assert [call.sequence for call in calls] == [0, 1, 2, 3]
    assert sorted((call.agent, call.segment) for call in calls) == [("a1", 0), ("a1", 0), ("main", 0), ("main", 0)]
    assert_exact(calls)
    assert len({call.seed for call in calls}) == 4
    bad = Harness(process, agent="a b")
    bad.messages.append({"role": "user", "content": "x"})
    assert (await bad.post()).status_code == 400


async def test_seeds_follow_from_the_token(tmp_path: Path) -> None:
    """The same trial seed and order of calls give the same seeds in another process."""
    seeds: list[list[int]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        async with model_process(tmp_path / name, MemoryStore()) as process:
            harness = Harness(process)
            await harness.ask("x")
            await harness.ask("y")
            seeds.append([call.seed for call in await harness.calls()])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


async def test_errands_do_not_train(process: Process) -> None:
    """Titles and compaction are recorded with another purpose; system messages inside a conversation stay in place."""
    harness = Harness(process)
    harness.messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "reminder"}]
    await harness.ask("go")
    title = Harness(process)
    await title.ask("name it", tools=[], output_config={"format": {"type": "json_schema"}})
    await harness.ask("CRITICAL: Respond with TEXT ONLY. Summarise.")
    calls = await harness.calls()
    assert [call.purpose for call in calls] == [Purpose.AGENT, Purpose.TITLE, Purpose.COMPACTION]
    assert "<s>system:reminder</s><s>user:go" in ScriptedFamily().decode(calls[0].prompt_ids)
    assert [call.segment for call in calls] == [0, 1, 0]


async def test_the_stream_has_anthropics_events_in_order(tmp_path: Path) -> None:
    """Pings come at once and while the model works; tool input comes only as deltas; the whole message at the end."""
    sampler = ScriptedSampler(script=["thinking aloud " + CALL], delay_s=0.35)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler, ping_s=0.1) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "hello"})
        response = await harness.post(stream=True)
        (call,) = await harness.calls()
    assert response.headers["content-type"].startswith("text/event-stream")
    kinds: list[str] = []
    events: list[dict[str, Any]] = []
    for part in response.text.strip().split("\n\n"):
        kind, data = part.split("\n")
        kinds.append(kind.removeprefix("event: "))
        events.append(json.loads(data.removeprefix("data: ")))
    assert [event["type"] for event in events] == kinds
    assert kinds[:2] == ["ping", "ping"]
    assert [kind for kind in kinds if kind != "ping"] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    by_kind = dict(zip(kinds, events, strict=True))
    assert by_kind["content_block_start"]["content_block"]["input"] == {}
    assert json.loads(by_kind["content_block_delta"]["delta"]["partial_json"]) == {"command": "ls"}
    assert by_kind["message_start"]["message"]["usage"]["input_tokens"] == len(call.prompt_ids)
    assert by_kind["message_delta"]["usage"]["output_tokens"] == len(call.sampled_ids)
    assert by_kind["message_delta"]["delta"]["stop_reason"] == "tool_use"


async def test_the_anthropic_client_talks_to_it(tmp_path: Path) -> None:
    """The vendor's own client reads messages, streams, counts and errors."""
    async with model_process(tmp_path, MemoryStore(), ["Grüße " + CALL, "streamed " + CALL]) as process:
        client = anthropic.AsyncAnthropic(base_url=process.url, auth_token=process.tokens.issue("t1"), max_retries=0)
        tools: Any = TOOLS
        first = await client.messages.create(
            model=MODEL, max_tokens=100, tools=tools, messages=[{"role": "user", "content": "go"}]
        )
        assert [block.type for block in first.content] == ["text", "tool_use"]
        history: Any = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results(first.model_dump(), "ok")},
        ]
        async with client.messages.stream(model=MODEL, max_tokens=100, tools=tools, messages=history) as stream:
            second = await stream.get_final_message()
        assert [block.type for block in second.content] == ["text", "tool_use"]
        assert second.usage.output_tokens > 10
        assert second.id != first.id
        counted = await client.messages.count_tokens(model=MODEL, tools=tools, messages=history)
        assert counted.input_tokens == second.usage.input_tokens
        with pytest.raises(anthropic.BadRequestError, match="is not served here"):
            await client.messages.create(model="other", max_tokens=1, messages=[{"role": "user", "content": "x"}])
        calls = await process.evidence.staged("t1")
        await client.close()
    assert [call.segment for call in calls] == [0, 0]
    assert_exact(calls)


async def test_thinking_is_given_only_when_asked_for(process: Process) -> None:
    """Empty turns are legal, and a harness that drops them starts a segment."""
    process.sampler.script.extend(["", "two"])
    harness = Harness(process)
    answer = await harness.ask("x", thinking={"type": "adaptive"})
    assert answer["content"] == []
    assert answer["stop_reason"] == "end_turn"
    await harness.ask("y")
    assert [call.segment for call in await harness.calls()] == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_harness_that_hangs_up_is_recorded_and_may_ask_again(tmp_path: Path, *, stream: bool) -> None:
    """The call goes on without its harness; the same request gets the same answer and no second sample."""
    sampler = ScriptedSampler(script=["only once"], delay_s=0.4)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "x"})
        async with httpx.AsyncClient(
            base_url=process.url, headers=harness.headers, timeout=0.15, verify=NO_TLS
        ) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/messages", json=harness.body(stream=stream))
        await asyncio.sleep(0.05)
        joined = await harness.post()
        assert joined.json()["content"][0]["text"] == "only once"
        assert len(process.sampler.requests) == len(await harness.calls()) == 1
        again = await harness.post()
        assert again.json()["content"][0]["text"] == "done", "an answer that arrived is not given twice"


async def test_a_restarted_process_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    """Conversations are rebuilt from the journal; an answer that may not have arrived is given again."""
    tokens, store = TokenBook.__new__(TokenBook), MemoryStore()
    async with model_process(tmp_path, store, [CALL]) as process:
        tokens = process.tokens
        harness = Harness(process)
        answer = await harness.ask("start")
        headers, messages = harness.headers, harness.messages
    async with model_process(tmp_path, store, ["after"], tokens=tokens) as process:
        harness = Harness(process, token="unused")
        harness.headers, harness.messages = headers, messages[:1]
        assert (await harness.post()).json() == answer
        harness.messages = messages
        await harness.ask(results(answer, "ok"))
        calls = await harness.calls()
    assert [(call.sequence, call.segment) for call in calls] == [(0, 0), (1, 0)]
    assert_exact(calls)
    assert len({call.seed for call in calls}) == 2
