"""Bodies that no harness should send: each has its status in Anthropic's form, and breaks nothing."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from adapters.servers.delivery import events_of, message_of
from adapters.servers.edge import BODY_LIMIT_BYTES
from adapters.servers.wire import chat_messages, read_request
from domain.errors import ConfigurationError
from domain.records.chat import ParsedTurn, ToolCall
from domain.records.trial import StopReason
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import NO_TLS, Harness

_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KINDS = ("text", "tool_use", "tool_result", "thinking", "image", "document", "odd")
_block: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"type": st.sampled_from(_KINDS) | _json},
    optional=dict.fromkeys(("text", "id", "name", "input", "tool_use_id", "content", "thinking", "is_error"), _json),
)
_message: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "assistant", "system")) | _json,
        "content": st.text() | st.lists(_block, max_size=3),
    }
)
_tool: st.SearchStrategy[Any] = st.fixed_dictionaries({"name": _json}, optional={"input_schema": _json})
_body: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"model": st.just(MODEL) | _json, "messages": st.lists(_message, max_size=4) | _json},
    optional={
        "max_tokens": st.integers() | _json,
        "system": st.text() | st.lists(_block, max_size=2) | _json,
        "tools": st.lists(_tool, max_size=2) | _json,
        **dict.fromkeys(
            ("stream", "thinking", "output_config", "tool_choice", "stop_sequences", "metadata", "odd"), _json
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(_body | _json)
def test_a_body_is_read_and_rendered_or_refused(body: Any) -> None:
    """Whatever JSON comes, it is a request that can be rendered, or a refusal that says where."""
    try:
        request = read_request(json.dumps(body).encode(errors="surrogatepass"))
    except ConfigurationError:
        return
    ScriptedFamily().render(chat_messages(request, {}), request.tools)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_are_no_fault_of_ours(body: bytes) -> None:
    """What is no JSON at all is refused."""
    with pytest.raises(ConfigurationError):
        read_request(body)


_call = st.builds(
    ToolCall,
    name=st.text(),
    arguments=st.none() | st.dictionaries(st.text(max_size=8), _json, max_size=3),
    raw=st.text(),
)
_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(ParsedTurn, text=st.text(), reasoning=st.text(), tool_calls=st.lists(_call, max_size=3).map(tuple)),
    st.sampled_from(StopReason),
)
def test_every_event_is_the_vendors(parsed: ParsedTurn, stop_reason: StopReason) -> None:
    """The vendor's own types read each event of a stream, and its deltas add up to the message."""
    message = message_of(
        parsed,
        model=MODEL,
        stop_reason=stop_reason,
        n_prompt=1,
        n_sampled=1,
        with_thinking=True,
        new_id=iter(map(str, range(99))).__next__,
    )
    inputs: dict[int, str] = {}
    for event in events_of(message):
        kind, data = event.decode().strip().split("\n", 1)
        read = _EVENTS.validate_json(data.removeprefix("data: "), strict=False)
        assert kind == f"event: {read.type}"
        if read.type == "content_block_delta" and read.delta.type == "input_json_delta":
            inputs[read.index] = inputs.get(read.index, "") + read.delta.partial_json
    for index, written in inputs.items():
        assert json.dumps(json.loads(written)) == json.dumps(message["content"][index]["input"])


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


_USER = '"messages": [{"role": "user", "content": "x"}]'
_BAD = {
    "cut": f'{{"model": "{MODEL}", "messages": [{{"role": "user", "con',
    "nothing": "",
    "no object": "[]",
    "no JSON": "model=policy",
    "a lone surrogate": f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "\\ud800"}}]}}',
    "a text that is a number": f'{{"model": 1, {_USER}}}',
}


@pytest.mark.parametrize("body", _BAD.values(), ids=_BAD.keys())
async def test_bad_bodies_are_400(process: Process, body: str) -> None:
    """In Anthropic's form, with the platform unhurt: the next call works."""
    harness = Harness(process)
    async with httpx.AsyncClient(base_url=process.url, headers=harness.headers, verify=NO_TLS) as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = await client.post(path, content=body.encode())
            assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    await harness.ask("well")
    assert await process.desk.close_trial("t1") == ""


async def test_large_requests(process: Process) -> None:
    """A thousand tools are tools; a body beyond every bound is 413, and no memory is kept of it."""
    process.sampler.context_tokens = 1_000_000
    harness = Harness(process)
    tools = [{"name": f"tool_{index}", "input_schema": {"type": "object"}} for index in range(1000)]
    await harness.ask("x", tools=tools)
    assert len((await harness.calls())[0].request["tools"]) == 1000  # pyright: ignore[reportArgumentType] - a list
    async with httpx.AsyncClient(base_url=process.url, headers=harness.headers, verify=NO_TLS, timeout=60) as client:
        response = await client.post("/v1/messages", content=b" " * (BODY_LIMIT_BYTES + 1))
        assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


async def test_an_unknown_tool_is_the_harnesss_to_answer(process: Process) -> None:
    """A call of a tool that was never declared is delivered as the model wrote it."""
    process.sampler.script.append('<call>unheard {"a": 1}</call>')
    answer = await Harness(process).ask("x")
    assert [(block["type"], block["name"]) for block in answer["content"]] == [("tool_use", "unheard")]
