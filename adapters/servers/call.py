"""One model call as the desk sees it: its job, its place in its trial, and what is recorded of it."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.servers.conversation import Conversation, Prompt, Turn
from adapters.servers.wire import WireRequest
from domain.errors import SamplerError
from domain.ports import Family, SampleResult
from domain.records.experiment import TokenScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A recorded message and the turn it belongs to."""

    message: Mapping[str, Any]
    turn: Turn


@dataclass(slots=True, kw_only=True)
class Call:
    """A call under way."""

    task: asyncio.Task[Answer]
    abandoned: bool = False
    """Its harness went away before the answer; a retry takes it over instead of sampling again."""


@dataclass(slots=True)
class Trial:
    """Live state of one trial."""

    conversations: dict[str, Conversation] = field(default_factory=dict[str, Conversation])
    calls: dict[tuple[str, str], Call] = field(default_factory=dict[tuple[str, str], Call])
    tasks: set[asyncio.Task[Answer]] = field(default_factory=set[asyncio.Task[Answer]])
    n_recorded: int = 0
    n_tokens: int = 0
    """Of prompts and samples so far, calls under way included as far as they are known."""
    closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a number is given and the call is written, so that numbers have no holes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one generation needs."""

    scope: TokenScope
    agent: str
    request: WireRequest
    prompt: Prompt
    family: Family
    trial: Trial
    conversation: Conversation
    n_call: int


def call_seed(seed: int, agent: str, n_call: int) -> int:
    """Return the seed of an agent's n-th call: 63 bits of SHA-256 over the trial's seed, the agent and the number."""
    digest = hashlib.sha256(f"{seed}/{agent}/{n_call}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def recorded_request(job: Job, granted: int) -> dict[str, Any]:
    """Return what this call added to the conversation; a whole conversation where a segment starts.

    Args:
        job: the call.
        granted: tokens that the model might sample; said where the harness asked for more.
    """
    added = job.request.messages[job.prompt.n_known :]
    body: dict[str, Any] = {
        "messages": [message.plain() for message in added],
        "context": job.prompt.context,
        "max_tokens": job.request.max_tokens,
    }
    if granted < job.request.max_tokens:
        body["max_tokens_granted"] = granted
    if job.request.extra:
        body["extra"] = dict(job.request.extra)
    if job.prompt.base is None:
        body["system"] = job.request.system
        body["tools"] = [tool.name for tool in job.request.tools]
    return body


def check_result(result: SampleResult, version: str) -> None:
    """Refuse a sample that cannot be evidence.

    Raises:
        SamplerError: it is of another version, empty, or without a logprob for each id.
    """
    if result.version != version:
        raise SamplerError(f"asked for {version}, sampled by {result.version}")
    if len(result.logprobs) != len(result.sampled_ids) or not result.sampled_ids:
        raise SamplerError(f"{version}: {len(result.sampled_ids)} ids with {len(result.logprobs)} logprobs")


async def ready(answer: Answer) -> Answer:
    """Return what is there already, as a task's work."""
    return answer
