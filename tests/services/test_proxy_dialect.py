"""What of Anthropic's Messages the proxy speaks beside the main loop: choices, stops, formats, lists, prefixes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import CALL, NO_TLS, Harness, assert_exact

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model says done unless told otherwise."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


async def test_a_picture_in_a_result_is_named_and_ends_nothing(process: Process) -> None:
    """A tool that shows a picture is answered in words; the run goes on, and what was left out is in the record."""
    process.sampler.script.extend([CALL, "done"])
    harness = Harness(process)
    use = (await harness.ask("look"))["content"][0]
    shown = [{"type": "text", "text": "the picture"}, IMAGE]
    await harness.ask([{"type": "tool_result", "tool_use_id": use["id"], "content": shown}])
    prompt = ScriptedFamily().decode((await harness.calls())[1].prompt_ids)
    assert "the picture\n[image omitted]</s>" in prompt
    assert_exact(await harness.calls())


async def test_stop_sequences_end_a_sample(process: Process) -> None:
    """The sample ends with the token that completes one; its text is given up to it, and the next prompt extends it."""
    process.sampler.script.extend(["one STOP two END", "three"])
    harness = Harness(process)
    answer = await harness.ask("x", stop_sequences=["END", "STOP"])
    assert answer["content"] == [{"type": "text", "text": "one "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")
    await harness.ask("y")
    first, second = await harness.calls()
    assert first.sampled_ids == tuple(b"one STOP")
    assert len(first.logprobs) == len(first.sampled_ids)
    assert (second.segment, answer["usage"]["output_tokens"]) == (0, 8)
    assert_exact((first, second))


async def test_tools_may_be_left_out_for_one_call(process: Process) -> None:
    """Without a choice the model is shown no tools; with any it is; a demand is refused elsewhere."""
    harness = Harness(process)
    await harness.ask("x", tool_choice={"type": "none"})
    await harness.ask("y", tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    shown = [ScriptedFamily().decode(call.prompt_ids) for call in await harness.calls()]
    assert shown[0].startswith("<s>tools:</s>")
    assert shown[1].startswith("<s>tools:bash</s>")


async def test_a_format_is_told(process: Process) -> None:
    """A title must be JSON of a schema: the model is told, since nothing constrains its sampling."""
    process.sampler.script.append('{"title": "Hi"}')
    harness = Harness(process)
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object", "required": ["title"]}}}
    answer = await harness.ask("name it", tools=[], output_config=wanted)
    assert json.loads(answer["content"][0]["text"]) == {"title": "Hi"}
    (call,) = await harness.calls()
    assert '{"required": ["title"], "type": "object"}' in ScriptedFamily().decode(call.prompt_ids)


async def test_what_nothing_acts_on_is_recorded(process: Process) -> None:
    """Unknown fields and beta headers do no harm and are in the evidence; who uses the device is not."""
    harness = Harness(process, agent="a1")
    harness.headers |= {"anthropic-beta": "new-2027", "x-claude-code-parent-agent-id": "a0"}
    await harness.ask("x", temperature=0.2, service_tier="x", metadata={"user_id": "me"}, effort={"a": [1]})
    (call,) = await harness.calls()
    extra = cast("Any", call.request["extra"])
    assert (extra["temperature"], extra["service_tier"], extra["effort"]) == (0.2, "x", {"a": [1]})
    assert extra["headers"].pop("user-agent")
    assert extra["headers"] == {"anthropic-beta": "new-2027", "x-claude-code-parent-agent-id": "a0"}
    assert "me" not in json.dumps(extra)


async def test_a_base_url_may_have_a_path(process: Process) -> None:
    """Some harnesses name a session there; every call works below it, and a first look says that somebody is there."""
    harness = Harness(process)
    harness.messages.append({"role": "user", "content": "x"})
    async with httpx.AsyncClient(
        base_url=f"{process.url}/rollout/abc", headers=harness.headers, verify=NO_TLS
    ) as client:
        assert (await client.head("")).status_code == 200
        assert (await client.post("/v1/messages", json=harness.body())).status_code == 200
        assert (await client.post("/v1/messages/count_tokens", json=harness.body())).json()["input_tokens"] > 1
        listed = await client.get("/v1/models", params={"limit": 1000})
        assert [model["id"] for model in listed.json()["data"]] == [MODEL]
        assert (await client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
        assert (await client.get("/v1/models/opus")).status_code == 404
        assert (await client.get("/v1/nothing")).status_code == 404


async def test_a_stream_that_was_cut_is_answered_again(process: Process) -> None:
    """Until a harness goes on from an answer, the same request gets the same answer, streaming or not."""
    process.sampler.script.extend(["first", "second"])
    harness = Harness(process)
    harness.messages.append({"role": "user", "content": "x"})
    for stream in (True, True, False):
        assert "first" in (await harness.post(stream=stream)).text
    harness.messages += [{"role": "assistant", "content": "first"}, {"role": "user", "content": "more"}]
    assert "second" in (await harness.post(stream=True)).text
    assert [call.segment for call in await harness.calls()] == [0, 0]
    assert process.desk.counters["n_redelivered"] == 2


async def test_a_fast_failure_and_a_slow_answer_both_keep_their_form(tmp_path: Path) -> None:
    """An answer that takes longer than a moment begins with a ping, whatever becomes of it."""
    sampler = ScriptedSampler(script=["slow"], delay_s=0.2)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "x"})
        assert (await harness.post(stream=True)).text.startswith("event: ping")


async def test_a_harness_that_is_gone_before_the_first_byte_may_ask_again(tmp_path: Path) -> None:
    """Who hangs up before the stream has begun gets the same answer on the next try, and no second sample is drawn."""
    sampler = ScriptedSampler(script=["only once"], delay_s=0.3)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "x"})
        body = harness.body(stream=True)
        async with httpx.AsyncClient(base_url=process.url, headers=harness.headers, verify=NO_TLS) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/messages", json=body, timeout=httpx.Timeout(5.0, read=0.03))
        await asyncio.sleep(0.1)
        assert "only once" in (await harness.post(stream=True)).text
        assert len(process.sampler.requests) == len(await harness.calls()) == 1
