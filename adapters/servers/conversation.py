"""What one agent of a trial has said so far, as ids: a next prompt extends exactly what was sampled.

An assistant turn that a harness echoes is never rendered again. It is found by its tool ids, or by its text at
the same place, and the next prompt is previous ids + sampled ids + the new suffix. Where the history was
rewritten, the prompt is rendered whole and a new segment starts. Source: facts/proxy.md section 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from adapters.servers.wire import WireMessage, WireRequest, chat_messages
from domain.ports import Family
from domain.records.canonical import digest_bytes, digest_of
from domain.records.chat import ParsedTurn
from domain.records.trial import Interaction


@dataclass(slots=True, kw_only=True)
class Segment:
    """A chain of calls, each prompt of which extends the call before."""

    number: int
    ids: tuple[int, ...] = ()
    """Prompt and sampled ids of its newest call."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """A sampled assistant turn."""

    interaction_id: str
    segment: Segment
    n_prompt: int
    n_end: int
    """Its prompt is ``segment.ids[:n_prompt]``, its sampled ids end at ``n_end``."""
    context: str
    """Digest of everything before it in the conversation."""
    parsed: ParsedTurn
    message: Mapping[str, Any]
    """As delivered."""
    delivered: bool = False
    """Whether the last byte was handed over; a retry of the same call gets the same message otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The ids of a next call."""

    ids: tuple[int, ...]
    base: Turn | None
    """The turn that it extends exactly; None: rendered whole."""
    context: str
    n_known: int
    """How many messages of the request the journal has already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    context: str
    turns: Mapping[int, Turn]
    """Index of a message -> the turn it echoes."""
    last: int | None
    """Index of the last echoed turn, when all before it is as it was sampled."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The turns of one agent."""

    by_tool: dict[str, Turn] = field(default_factory=dict[str, Turn])
    by_place: dict[tuple[str, str], Turn] = field(default_factory=dict[tuple[str, str], Turn])
    """(Digest of what came before, digest of its text) -> the newest such turn."""
    by_context: dict[str, Turn] = field(default_factory=dict[str, Turn])
    segments: dict[int, Segment] = field(default_factory=dict[int, Segment])
    n_calls: int = 0
    """Calls begun; the next seed is derived from it."""

    def context(self, request: WireRequest) -> str:
        """Return the digest of the whole request's conversation."""
        return self._trace(request).context

    def plan(self, request: WireRequest, family: Family) -> Prompt:
        """Return the exact ids of the next prompt."""
        trace = self._trace(request)
        parsed = {index: turn.parsed for index, turn in trace.turns.items()}
        if trace.last is not None:
            base = trace.turns[trace.last]
            known = base.segment.ids[: base.n_end]
            suffix = chat_messages(request, parsed, start=trace.last + 1)
            ids = family.bridge(known[: base.n_prompt], known[base.n_prompt :], suffix, request.tools)
            if ids is not None and tuple(ids[: len(known)]) == known:
                return Prompt(ids=tuple(ids), base=base, context=trace.context, n_known=trace.last + 1)
        rendered = tuple(family.render(chat_messages(request, parsed), request.tools))
        return Prompt(ids=rendered, base=None, context=trace.context, n_known=0)

    def next_segment(self, base: Turn | None) -> int:
        """Return the segment of a call that extends ``base``: its own unless another call went on from there."""
        if base is not None and base.n_end == len(base.segment.ids):
            return base.segment.number
        return max(self.segments, default=-1) + 1

    def add(self, interaction: Interaction, parsed: ParsedTurn, context: str) -> Turn:
        """Remember a recorded call, so that its turn is known when it is echoed."""
        segment = self.segments.setdefault(interaction.segment, Segment(number=interaction.segment))
        segment.ids = interaction.prompt_ids + interaction.sampled_ids
        turn = Turn(
            interaction_id=interaction.interaction_id,
            segment=segment,
            n_prompt=len(interaction.prompt_ids),
            n_end=len(segment.ids),
            context=context,
            parsed=parsed,
            message=interaction.response,
        )
        blocks = cast("list[dict[str, Any]]", interaction.response.get("content", []))
        message = WireMessage(role="assistant", blocks=tuple(blocks))
        self.by_tool.update(dict.fromkeys(message.tool_ids, turn))
        self.by_place[context, _text_key(message)] = turn
        self.by_context[context] = turn
        return turn

    def restore(self, interaction: Interaction, family: Family) -> None:
        """Take a call over from the journal, after a restart."""
        self.n_calls += 1
        context = str(interaction.request.get("context", ""))
        self.add(interaction, family.parse(interaction.sampled_ids), context)

    def _trace(self, request: WireRequest) -> _Trace:
        digest = request.preamble
        turns: dict[int, Turn] = {}
        last: int | None = None
        for index, message in enumerate(request.messages):
            turn = self._find(message, digest)
            if turn is None:
                digest = _chain(digest, digest_of(message.plain()))
                continue
            turns[index] = turn
            last = index if turn.context == digest else None
            digest = _chain(digest, turn.interaction_id)
        return _Trace(context=digest, turns=turns, last=last)

    def _find(self, message: WireMessage, before: str) -> Turn | None:
        if message.role != "assistant":
            return None
        for tool_id in message.tool_ids:
            if tool_id in self.by_tool:
                return self.by_tool[tool_id]
        return self.by_place.get((before, _text_key(message)))


def _text_key(message: WireMessage) -> str:
    return digest_bytes(message.text.strip().encode())


def _chain(digest: str, item: str) -> str:
    return digest_bytes(f"{digest}{item}".encode())
