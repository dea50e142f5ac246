"""What the model proxy refuses, bounds and survives, over real sockets with a scripted sampler."""

import asyncio
import stat
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.servers.authority import REMEMBERED_S
from domain.errors import ConflictError, EvidenceError, OverloadError, SamplerError
from domain.records.chat import ChatMessage, ToolSpec
from domain.records.trial import StopReason
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import NO_TLS, Harness, assert_exact


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


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
        harness.messages = [{"role": "user", "content": "x" * 8_000_000}]
        response = await harness.post()
        assert (response.status_code, "prompt is too long" in response.text) == (400, True)
        assert await process.desk.close_trial("t1") == ""


async def test_tokens_are_scoped_and_revocable(process: Process) -> None:
    """A wrong token, an expired and a revoked one are gone, none at all is 403; an api key is as good as a bearer."""
    harness = Harness(process)
    await harness.ask("hello")
    async with httpx.AsyncClient(base_url=process.url) as client:
        key = {"x-api-key": process.tokens.issue("t1")}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": process.tokens.issue("t2", ttl_s=-1)}):
            refused = await client.get("/v1/models", headers=headers)
            assert refused.status_code == (410 if headers else 403), "never 401 or 409, which harnesses try again"
            assert refused.json()["error"]["type"] == "permission_error"
        listed = await client.get("/v1/models", headers=key)
        assert [model["id"] for model in listed.json()["data"]] == [MODEL]
        process.tokens.revoke("t1")
        await asyncio.sleep(REMEMBERED_S)
        assert (await client.get("/v1/models", headers=key)).status_code == 410
        assert (await client.head("/")).status_code == 200
    assert (await harness.post()).status_code == 410


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"model": "claude-other"}, "claude-other"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "prefill"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type: 'any' is not supported"),
        ({"tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice.type: 'tool' is not supported"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0: image blocks are not supported"),
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


@pytest.mark.parametrize("fault", [SamplerError("out of memory"), EvidenceError("disk full"), ValueError("a bug")])
async def test_platform_faults_are_not_the_agents(tmp_path: Path, fault: Exception) -> None:
    """A sampler fault is a 500 without delivery, and publication says that the platform was the reason."""
    async with model_process(tmp_path, MemoryStore(), [fault, fault, fault, "fine"]) as process:
        harness = Harness(process)
        harness.messages.append({"role": "user", "content": "x"})
        response = await harness.post()
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "api_error"
        assert (await harness.post(stream=True)).status_code == 500, "what fails at once needs no stream"
        process.sampler.delay_s = 0.2
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
    assert (await harness.post()).status_code == 410


async def test_an_overloaded_model_is_529(process: Process) -> None:
    """Harnesses wait as long as they are told and ask again, streaming or not."""
    process.sampler.script.extend([OverloadError("no room"), OverloadError("no room"), "fine"])
    harness = Harness(process)
    harness.messages.append({"role": "user", "content": "x"})
    for stream in (False, True):
        response = await harness.post(stream=stream)
        assert (response.status_code, response.headers["retry-after"]) == (529, "2")
        assert response.json()["error"]["type"] == "overloaded_error"
    assert (await harness.post()).json()["content"][0]["text"] == "fine"
    assert await process.desk.close_trial("t1") == ""


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


async def test_a_trials_token_budget_ends_it(tmp_path: Path) -> None:
    """Prompts and samples of all its agents count, also over a restart; the refusal is one that stops a harness."""
    store = MemoryStore()
    async with model_process(tmp_path, store) as process:
        token = process.tokens.issue("t1", trial_tokens=200)
        one, two = Harness(process, token=token), Harness(process, token=token, agent="a1")
        await one.ask("hello")
        await two.ask("hello")
        used = sum(call.n_prompt_ids + call.n_sampled_ids for call in await one.calls())
        tokens = process.tokens
    async with model_process(tmp_path, store, tokens=tokens) as process:
        again = Harness(process, token=token)
        refused = await again.post(messages=[{"role": "user", "content": "x" * (200 - used)}])
        assert refused.status_code == 410
        assert f"{used} of its 200 tokens" in refused.json()["error"]["message"]
        assert len(await again.calls()) == 2


async def test_fewer_tokens_than_asked_are_granted_in_words(tmp_path: Path) -> None:
    """A plan's bound, and the room that a prompt leaves, are in the record; the harness sees that the turn was cut."""
    async with model_process(tmp_path, MemoryStore(), ["a long answer that will be cut"]) as process:
        harness = Harness(process, token=process.tokens.issue("t1", max_tokens=7))
        answer = await harness.ask("hello", max_tokens=32_000)
        (call,) = await harness.calls()
    assert answer["stop_reason"] == "max_tokens"
    assert (call.request["max_tokens"], call.request["max_tokens_granted"], call.n_sampled_ids) == (32_000, 7, 7)
