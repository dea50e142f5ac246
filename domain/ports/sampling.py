"""Ports of sampling: the model as ids in and ids out, and its family's native format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.records.chat import ChatMessage, ParsedTurn, ToolSpec
from domain.records.model import PolicyVersion
from domain.records.trial import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One generation from exact prompt ids."""

    version: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    seed: int
    session: str = ""
    """What goes on from call to call, as an agent of a trial does: its calls go where their prefix is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """What came back; a stop id is the last sampled id and has a logprob."""

    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    version: str


class Sampler(Protocol):
    """Prompt ids in, sampled ids and their logprobs out."""

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation."""
        ...

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable beside the others; idempotent; a name never changes its weights."""
        ...

    def versions(self) -> tuple[str, ...]:
        """Return the names that can be sampled now."""
        ...

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample. Raises ContextOverflowError, OverloadError, SamplerError, NotFoundError (unknown version)."""
        ...


class Family(Protocol):
    """A model family's native format, over its tokenizer."""

    @property
    def name(self) -> str:
        """``qwen3``."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return prompt ids that end where the assistant starts."""
        ...

    def assistant_turn(self, message: ChatMessage) -> tuple[int, ...]:
        """Return the ids with which the model writes this turn, its stop id included: supervised targets."""
        ...

    def parse(
        self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec] = (), prompt_ids: Sequence[int] = ()
    ) -> ParsedTurn:
        """Read a sampled turn. Never raises on what a model wrote.

        Args:
            sampled_ids: as sampled, stop id included.
            tools: what the model could call; their schemas type the arguments.
            prompt_ids: the prompt (its end is enough); tells whether it opened the reasoning. Without it the
                prompt is taken to end as ``render`` ends it.
        """
        ...

    def bridge(
        self,
        previous_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...] | None:
        """Return the full next prompt: previous ids + sampled ids + ids of the new suffix.

        None when the suffix cannot follow (the caller starts a new segment with ``render``).
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return text with special tokens shown, for transcripts."""
        ...
