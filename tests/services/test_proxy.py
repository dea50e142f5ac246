"""The model proxy over real sockets, with a scripted sampler and a byte-level family."""

import asyncio
import json
import ssl
import stat
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from domain.errors import ConflictError, EvidenceError, SamplerError
from domain.records.chat import ChatMessage, ToolSpec
from domain.records.trial import Interaction, Purpose, StopReason
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import BASE, MODEL, Process, ScriptedSampler, TokenBook, model_process
from tests.fakes.store import MemoryStore

TOOLS = [{"name": "bash", "description": "Run.", "input_schema": {"type": "object"}}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Reading the system's certificates takes longer than a call."""
CALL = '<call>bash {"command": "ls"}</call>'


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


class Harness:
    """A harness that keeps its own history, as native ones do."""

    def __init__(self, process: Process, trial: str = "t1", *, agent: str | None = None, token: str = "") -> None:
        self.process = process
        self.trial = trial
        self.headers = {"authorization": f"Bearer {token or process.tokens.issue(trial)}"}
        if agent is not None:
            self.headers["x-claude-code-agent-id"] = agent
        self.messages: list[dict[str, Any]] = []

    def body(self, **extra: object) -> dict[str, Any]:
        """Return the next request."""
        return {"model": MODEL, "max_tokens": 300, "tools": TOOLS, "messages": self.messages, **extra}

    async def post(self, **extra: object) -> httpx.Response:
        """Send the next request as it is."""
        async with httpx.AsyncClient(base_url=self.process.url, headers=self.headers, verify=NO_TLS) as client:
            return await client.post("/v1/messages", params={"beta": "true"}, json=self.body(**extra))

    async def ask(self, content: object, **extra: object) -> dict[str, Any]:
        """Add a user message, take the answer and add it."""
        self.messages.append({"role": "user", "content": content})
        response = await self.post(**extra)
        assert response.status_code == 200, response.text
        answer = response.json()
        if answer["content"]:
            self.messages.append({"role": "assistant", "content": answer["content"]})
        return answer

    async def calls(self) -> tuple[Interaction, ...]:
        """Return what the journal has."""
        return await self.process.evidence.staged(self.trial)


def results(answer: Mapping[str, Any], *texts: str) -> list[dict[str, Any]]:
    """Answer every tool call of a message."""
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    return [
        {"type": "tool_result", "tool_use_id": use["id"], "content": text}
        for use, text in zip(uses, texts, strict=True)
    ]


def assert_exact(calls: Sequence[Interaction]) -> None:
    """Check that each prompt of a segment starts with all that came before in it."""
    newest: dict[tuple[str, int], tuple[int, ...]] = {}
    for call in calls:
        key = (call.agent, call.segment)
        known = newest.get(key, ())
        assert call.prompt_ids[: len(known)] == known
        assert len(call.logprobs) == len(call.sampled_ids)
        newest[key] = call.prompt_ids + call.sampled_ids


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
    assert process.sampler.loaded == [BASE.name], "the version is loaded from the ledger when nobody served it"


UNREADABLE = {
    "tool results that are no blocks": '[{"type": "tool_result", "tool_use_id": "x", "content": ["s", 1]}]',
    "a text that is no text": '[{"type": "text", "text": {"a": [1]}}]',
    "a number that is none": '[{"type": "text", "text": "x", "note": NaN}]',
    "a number without an end": '[{"type": "text", "text": "x", "note": 1e999}]',
    "nesting": '[{"type": "text", "text": "x", "note": ' + "[" * 10000 + "]" * 10000 + "}]",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_no_request_makes_the_platform_fail(process: Process, content: str) -> None:
    """A trial whose model failed is run again: what a harness writes must never count as that."""
    harness = Harness(process)
    extra = '"thinking": {"type": {"a": 1}}'
    body = f'{{"model": "{MODEL}", {extra}, "messages": [{{"role": "user", "content": {content}}}]}}'
    async with httpx.AsyncClient(base_url=process.url, headers=harness.headers, verify=NO_TLS) as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = await client.post(path, content=body.encode())
            assert response.status_code in {200, 400}, response.text
    assert await process.desk.close_trial("t1") == ""


class _NeverRendered(ScriptedFamily):
    """A format that nothing may be rendered in."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Fail, which is answered 500."""
        raise AssertionError(len(messages), len(tools))


async def test_a_text_that_cannot_fit_is_not_rendered(tmp_path: Path) -> None:
    """One thread renders for all trials: megabytes of one of them would hold it for minutes."""
    async with model_process(tmp_path, MemoryStore(), family=_NeverRendered()) as process:
        harness = Harness(process)
        long = {"type": "tool_result", "tool_use_id": "x", "content": "x" * 8_000_000}
        harness.messages = [{"role": "user", "content": [long]}]
        response = await harness.post()
        assert (response.status_code, "prompt is too long" in response.text) == (400, True)
        assert await process.desk.close_trial("t1") == ""


async def test_tokens_are_scoped_and_revocable(process: Process) -> None:
    """No token, a wrong one, an expired and a revoked one are refused with 403, an api key is as good as a bearer."""
    harness = Harness(process)
    await harness.ask("hello")
    async with httpx.AsyncClient(base_url=process.url) as client:
        key = {"x-api-key": process.tokens.issue("t1")}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": process.tokens.issue("t2", ttl_s=-1)}):
            refused = await client.get("/v1/models", headers=headers)
            assert refused.status_code == 403
            assert refused.json()["error"]["type"] == "permission_error"
        listed = await client.get("/v1/models", headers=key)
        assert [model["id"] for model in listed.json()["data"]] == [MODEL]
        process.tokens.revoke("t1")
        assert (await client.get("/v1/models", headers=key)).status_code == 403
        assert (await client.head("/")).status_code == 200
    assert (await harness.post()).status_code == 403


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"model": "claude-other"}, "claude-other"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "prefill"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"description": "nameless"}]}, "tools.0.name"),
    ],
)
async def test_bad_requests_name_the_field(process: Process, extra: dict[str, Any], words: str) -> None:
    """A request that cannot be served is a 400 in Anthropic's form that names the field."""
    harness = Harness(process)
    harness.messages.append({"role": "user", "content": "hi"})
    response = await harness.post(**extra)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert words in response.json()["error"]["message"]
    assert await harness.calls() == ()


async def test_a_long_prompt_is_refused_before_headers(process: Process) -> None:
    """Harnesses compact only at Anthropic's own words, and only before a stream has begun."""
    harness = Harness(process)
    harness.messages.append({"role": "user", "content": "x" * 5000})
    for stream in (False, True):
        response = await harness.post(stream=stream)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.startswith("prompt is too long: 50")
        assert message.endswith(" tokens > 4095 maximum")
    harness.messages = [{"role": "user", "content": "x" * 4000}]
    answer = await harness.ask("y" * 40)
    assert answer["usage"]["input_tokens"] + process.sampler.requests[0].max_tokens <= 4096


async def test_limits_come_from_the_token(process: Process) -> None:
    """The smaller of both token limits holds, and the temperature is the token's."""
    harness = Harness(process, token=process.tokens.issue("t1", max_tokens=3))
    answer = await harness.ask("hello", temperature=0.1)
    assert answer["stop_reason"] == "max_tokens"
    (call,) = await harness.calls()
    assert call.sampled_ids == tuple(b"don")
    assert call.stop_reason is StopReason.LENGTH
    assert process.sampler.requests[0].temperature == 1.0
    await harness.ask("go on", max_tokens=2)
    assert len((await harness.calls())[1].sampled_ids) == 2
    assert_exact(await harness.calls())


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
    assert [call.purpose for call in calls] == [Purpose.AGENT, Purpose.OTHER, Purpose.OTHER]
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


@pytest.mark.parametrize("fault", [SamplerError("out of memory"), EvidenceError("disk full"), ValueError("a bug")])
async def test_platform_faults_are_not_the_agents(tmp_path: Path, fault: Exception) -> None:
    """A sampler fault is a 500 without delivery, and publication says that the platform was the reason."""
    async with model_process(tmp_path, MemoryStore(), [fault, fault, "fine"]) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "x"})
        response = await harness.post()
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "api_error"
        streamed = await harness.post(stream=True)
        assert streamed.status_code == 200
        assert "event: error" in streamed.text
        assert "message_start" not in streamed.text
        assert str(fault) in await process.desk.close_trial("t1")
        other = Harness(process, "t2")
        await other.ask("x")
        assert await process.desk.close_trial("t2") == ""


async def test_a_closed_trial_takes_no_calls(process: Process) -> None:
    """Once a trial is being published its late calls are refused, so evidence has all that was delivered."""
    harness = Harness(process)
    await harness.ask("x")
    await process.desk.close_trial("t1")
    harness.messages.append({"role": "user", "content": "late"})
    assert (await harness.post()).status_code == 403


async def test_a_flood_is_told_to_wait(tmp_path: Path) -> None:
    """One trial has a bounded number of calls under way."""
    async with model_process(tmp_path, MemoryStore(), sampler=ScriptedSampler(delay_s=0.5)) as process:
        token = process.tokens.issue("t1")
        crowd = [Harness(process, token=token) for _ in range(20)]
        for number, harness in enumerate(crowd):
            harness.messages.append({"role": "user", "content": str(number)})
        responses = await asyncio.gather(*(harness.post() for harness in crowd))
    assert sorted(response.status_code for response in responses) == [200] * 16 + [429] * 4
    assert all(response.headers["retry-after"] == "1" for response in responses if response.status_code == 429)


async def test_sockets_are_private_and_not_shared(process: Process, tmp_path: Path) -> None:
    """Only this user reaches the control socket, and a second process does not take the sockets over."""
    assert stat.S_IMODE(process.endpoints.control_socket.stat().st_mode) == 0o600
    assert process.endpoints.port_file is not None
    assert process.url.endswith(process.endpoints.port_file.read_text().strip())
    transport = httpx.AsyncHTTPTransport(uds=str(process.endpoints.proxy_socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://box") as client:
        assert (await client.head("/")).status_code == 200
        assert (await client.post("/serve", json={})).status_code == 404
    second = tmp_path / "second"
    second.mkdir()
    for name in ("p.sock", "c.sock"):
        (second / name).symlink_to(tmp_path / name)
    with pytest.raises(ConflictError):
        async with model_process(second, MemoryStore()):
            pass
