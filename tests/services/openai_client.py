"""The vendor's own client against a running model process, for tests of OpenAI's dialects."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from domain.records.trial import Interaction
from tests.fakes.scripted_model import MODEL, Process

CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}
]
TOOLS: Any = [{"type": "function", "name": "bash", "description": "Run.", "parameters": {"type": "object"}}]


@contextlib.asynccontextmanager
async def client_of(process: Process, trial: str = "t1", **token: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    """Give a client that tries nothing twice."""
    secret = process.tokens.issue(trial, **token)
    async with openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key=secret, max_retries=0) as client:
        yield client


class Chat:
    """An agent over chat completions that keeps its own history."""

    def __init__(self, client: openai.AsyncOpenAI, system: str = "") -> None:
        self.client = client
        self.messages: list[Any] = [{"role": "system", "content": system}] if system else []

    async def ask(self, *messages: Any, **extra: Any) -> ChatCompletion:
        """Add messages, take the answer and add it as the SDK dumps it."""
        self.messages.extend(messages)
        asked = {"model": MODEL, "tools": CHAT_TOOLS, "messages": self.messages, **extra}
        create: Any = self.client.chat.completions.create
        answer: ChatCompletion = await create(**asked)
        self.messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        return answer


class Agent:
    """An agent over Responses that keeps its own items."""

    def __init__(self, client: openai.AsyncOpenAI, **fixed: Any) -> None:
        self.client = client
        self.items: list[Any] = []
        self.fixed = {"model": MODEL, "tools": TOOLS, **fixed}

    async def ask(self, *items: Any, **extra: Any) -> Response:
        """Add items, take the answer and add what it holds."""
        self.items.extend(items)
        create: Any = self.client.responses.create
        answer: Response = await create(**{"input": self.items, **self.fixed, **extra})
        self.items.extend(item.model_dump(exclude_none=True) for item in answer.output)
        return answer


def user(text: str) -> dict[str, str]:
    """Return a user's message, in the form that both dialects take."""
    return {"role": "user", "content": text}


def chat_results(answer: ChatCompletion, *texts: str) -> list[dict[str, str]]:
    """Answer every tool call of a completion."""
    calls = answer.choices[0].message.tool_calls or []
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)]


def outputs(answer: Response, *texts: str) -> list[dict[str, str]]:
    """Answer every call of a response."""
    calls: Sequence[Any] = [item for item in answer.output if item.type in {"function_call", "custom_tool_call"}]
    return [
        {"type": f"{call.type}_output", "call_id": call.call_id, "output": text}
        for call, text in zip(calls, texts, strict=True)
    ]


async def recorded(process: Process, trial: str = "t1") -> tuple[Interaction, ...]:
    """Return what the journal has."""
    return await process.evidence.staged(trial)
