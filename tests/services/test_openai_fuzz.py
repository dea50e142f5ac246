"""Bodies that no client should send: each has its status in OpenAI's form; and every field of the SDK is decided."""

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from adapters.servers.openai_chat import ChatBody, read_chat
from adapters.servers.openai_reading import REFUSED, Asked
from adapters.servers.openai_responses import ResponsesBody, read_responses
from adapters.servers.wire import chat_messages
from domain.errors import ConfigurationError
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import NO_TLS

RECORDED = {
    *("access_programs", "background_options", "frequency_penalty", "include", "max_tool_calls", "metadata"),
    *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("reasoning", "reasoning_effort", "safety_identifier", "seed", "service_tier", "store", "temperature", "top_p"),
    *("user", "verbosity"),
}
"""Fields that leave the answer what it is, or that the trial's token decides."""
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_part = st.fixed_dictionaries({"type": st.sampled_from(("text", "input_text", "image_url")) | _json, "text": _json})
_content: st.SearchStrategy[Any] = st.text() | st.lists(_part, max_size=3) | _json
_function = st.fixed_dictionaries({"name": st.text() | _json, "arguments": st.text() | _json})
_call = st.fixed_dictionaries({"id": st.text() | _json, "type": st.just("function"), "function": _function})
_message: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "system", "developer", "tool")) | _json, "content": _content},
    optional={"tool_calls": st.lists(_call, max_size=2), "tool_call_id": st.text() | _json, "reasoning_content": _json},
)
_KINDS = ("message", "function_call", "function_call_output", "custom_tool_call", "reasoning", "item_reference")
_item: st.SearchStrategy[Any] = _message | st.fixed_dictionaries(
    {"type": st.sampled_from(_KINDS) | _json},
    optional={
        **dict.fromkeys(("call_id", "name", "arguments", "namespace", "input", "id"), st.text() | _json),
        **dict.fromkeys(("content", "output", "summary"), _content),
    },
)
_tool: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"type": st.sampled_from(("function", "custom", "namespace", "web_search")) | _json},
    optional={
        "name": st.text() | _json,
        "function": st.fixed_dictionaries({"name": st.text() | _json, "parameters": _json}) | _json,
        **dict.fromkeys(("parameters", "format", "tools", "description"), _json),
    },
)


def _bodies(required: dict[str, Any], fields: set[str]) -> st.SearchStrategy[Any]:
    optional = dict.fromkeys(sorted(fields - {"model", "messages", "input"}), _json)
    optional |= {"tools": st.lists(_tool, max_size=2) | _json, "odd": _json}
    return st.fixed_dictionaries({"model": st.just(MODEL) | _json, **required}, optional=optional)


CHAT = set(CompletionCreateParamsBase.__annotations__)
RESPONSES = set(ResponseCreateParamsBase.__annotations__)
_chat = _bodies({"messages": st.lists(_message, max_size=4) | _json}, CHAT)
_responses = _bodies({"input": st.text() | st.lists(_item, max_size=4) | _json}, RESPONSES)


@pytest.mark.parametrize(("fields", "body"), [(CHAT, ChatBody), (RESPONSES, ResponsesBody)])
def test_every_field_of_the_vendors_type_is_decided(fields: set[str], body: type[ChatBody | ResponsesBody]) -> None:
    """A field is honoured, refused or recorded; one that a newer SDK adds waits here for its decision."""
    honoured = set(body.model_fields)
    assert fields - honoured - set(REFUSED) - RECORDED == set()
    assert not honoured & set(REFUSED)
    assert not RECORDED & (honoured | set(REFUSED))


def _check(read: Callable[[bytes], Asked], body: Any) -> None:
    try:
        request = read(json.dumps(body).encode(errors="surrogatepass")).request
    except ConfigurationError:
        return
    ScriptedFamily().render(chat_messages(request, {}), request.tools)


@settings(max_examples=300, deadline=None)
@given(_chat | _json)
def test_a_chat_body_is_read_and_rendered_or_refused(body: Any) -> None:
    """Whatever JSON comes, it is a request that can be rendered, or a refusal."""
    _check(read_chat, body)


@settings(max_examples=300, deadline=None)
@given(_responses | _json)
def test_a_responses_body_is_read_and_rendered_or_refused(body: Any) -> None:
    """Whatever JSON comes, it is a request that can be rendered, or a refusal."""
    _check(read_responses, body)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_are_no_fault_of_ours(body: bytes) -> None:
    """What is no JSON at all is refused."""
    for read in (read_chat, read_responses):
        with pytest.raises(ConfigurationError):
            read(body)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process whose model always says done."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


ODD: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a surrogate": b'{"model": "policy", "input": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "no number": b'{"model": "policy", "input": "x", "messages": [{"role": "user", "content": "x"}], "seed": NaN}',
    "nesting": b'{"model": "policy", "input": "x", "messages": [{"role": "user", "content": "x"}], "user": '
    + b"[" * 10000
    + b"]" * 10000
    + b"}",
    "an edge of nesting": b'{"model": "policy", "input": "x", "messages": [{"role": "user", "content": "x"}], "user": '
    + b"[" * 190
    + b"]" * 190
    + b"}",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
async def test_no_request_makes_the_platform_fail(process: Process, body: bytes) -> None:
    """A trial whose model failed is run again: what a client writes must never count as that."""
    headers = {"authorization": f"Bearer {process.tokens.issue('t1')}", "x-codex-turn-metadata": "[" * 10000}
    async with httpx.AsyncClient(base_url=process.url, headers=headers, verify=NO_TLS) as client:
        for path in ("/v1/chat/completions", "/some/base/v1/responses"):
            response = await client.post(path, content=body)
            assert response.status_code in {200, 400}, response.text
            if response.status_code == 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert await process.desk.close_trial("t1") == ""


async def test_a_thousand_tools_are_declared(process: Process) -> None:
    """Many tools are only long; the prompt has them all or does not fit."""
    headers = {"authorization": f"Bearer {process.tokens.issue('t1')}"}
    tools = [{"type": "function", "name": f"t{index}"} for index in range(1000)]
    async with httpx.AsyncClient(base_url=process.url, headers=headers, verify=NO_TLS) as client:
        response = await client.post("/v1/responses", json={"model": MODEL, "input": "x", "tools": tools})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
