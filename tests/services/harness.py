"""A harness that talks to the model proxy over real sockets, for tests of the proxy."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from domain.records.trial import Interaction
from tests.fakes.scripted_model import MODEL, Process

TOOLS = [{"name": "bash", "description": "Run.", "input_schema": {"type": "object"}}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Reading the system's certificates takes longer than a call."""
CALL = '<call>bash {"command": "ls"}</call>'


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
