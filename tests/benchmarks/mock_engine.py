"""An engine that answers at once, for what a proxy adds: the same 128 ids with logprobs to every request.

It speaks vLLM's ``/v1/completions`` (ids in, ids out) and chat completions as peers ask for them, streamed or not.

Run: ``python -m tests.benchmarks.mock_engine``; prints its port, and ends with its standard input.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn

N_SAMPLED = 128
N_PROMPT = 2000
_IDS = list(range(1000, 1000 + N_SAMPLED))
_WORDS = [f" w{number}" for number in range(N_SAMPLED)]
_LOGPROBS = [-0.25 - number / 1000 for number in range(N_SAMPLED)]
_PROMPT = list(range(2000, 2000 + N_PROMPT))
_USAGE = {"prompt_tokens": N_PROMPT, "completion_tokens": N_SAMPLED, "total_tokens": N_PROMPT + N_SAMPLED}
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def _head(kind: str) -> dict[str, Any]:
    return {"id": "mock-1", "object": kind, "created": 1, "model": "policy"}


def _chat() -> bytes:
    entries: list[dict[str, Any]] = [
        {"token": w, "logprob": p, "top_logprobs": []} for w, p in zip(_WORDS, _LOGPROBS, strict=True)
    ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(_WORDS)},
        "finish_reason": "stop",
        "logprobs": {"content": entries},
        "token_ids": _IDS,
    }
    body: dict[str, Any] = {
        **_head("chat.completion"),
        "choices": [choice],
        "usage": _USAGE,
        "prompt_token_ids": _PROMPT,
    }
    return json.dumps(body).encode()


def _chat_chunks() -> Iterator[bytes]:
    for number, (word, token, logprob) in enumerate(zip(_WORDS, _IDS, _LOGPROBS, strict=True)):
        entry: dict[str, Any] = {"token": word, "logprob": logprob, "top_logprobs": []}
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"role": "assistant", "content": word},
            "finish_reason": "stop" if number == N_SAMPLED - 1 else None,
            "logprobs": {"content": [entry]},
            "token_ids": [token],
        }
        first = {"prompt_token_ids": _PROMPT} if number == 0 else {}
        yield (
            b"data: " + json.dumps({**_head("chat.completion.chunk"), "choices": [choice], **first}).encode() + b"\n\n"
        )
    yield b"data: [DONE]\n\n"


def _completion() -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "text": "".join(_WORDS),
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": _IDS,
        "logprobs": {
            "token_logprobs": _LOGPROBS,
            "tokens": _WORDS,
            "text_offset": [0] * N_SAMPLED,
            "top_logprobs": None,
        },
    }
    return json.dumps({**_head("text_completion"), "choices": [choice], "usage": _USAGE}).encode()


_MODELS = json.dumps(
    {
        "object": "list",
        "data": [{"id": "policy", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 200_000}],
    }
).encode()
_CHAT, _COMPLETION, _CHUNKS = _chat(), _completion(), list(_chat_chunks())


async def engine(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Answer one request."""
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    path = scope["path"]
    if path.endswith("/chat/completions") and b'"stream": true' in body.replace(b'"stream":true', b'"stream": true'):
        await _start(send, b"text/event-stream")
        for chunk in _CHUNKS:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    answers = {"/chat/completions": _CHAT, "/completions": _COMPLETION}
    await _start(send, b"application/json")
    answer = next((found for name, found in answers.items() if path.endswith(name)), _MODELS)
    await send({"type": "http.response.body", "body": answer})


async def _start(send: Send, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def _main() -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: no Nagle delay
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = uvicorn.Server(uvicorn.Config(engine, lifespan="off", access_log=False, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(_main())
