"""What one agent of a trial has said so far, as ids: a next prompt extends exactly what was sampled.

An assistant turn that a harness echoes is never rendered again. It is found by its tool ids, or by its text at
the same place, and the next prompt is previous ids + sampled ids + the new suffix. Where the history was
rewritten, the prompt is rendered whole and a new segment starts. Source: facts/proxy.md section 0.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from adapters.servers.wire import WireMessage, WireRequest, chat_messages
from domain.ports import Family
from domain.records.canonical import digest_bytes
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
class _Step:
    """What a conversation is known to be, up to and with one message."""

    message: WireMessage
    turn: Turn | None
    """That the message echoes."""
    digest: str
    """Of all up to here."""
    last: int | None
    """Index of the last echoed turn so far, when all before it is as it was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A request's conversation, message by message."""

    preamble: str
    steps: tuple[_Step, ...]

    @property
    def context(self) -> str:
        """Digest of the whole."""
        return self.steps[-1].digest if self.steps else self.preamble

    @property
    def messages(self) -> tuple[WireMessage, ...]:
        """The messages."""
        return tuple(step.message for step in self.steps)


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
    newest: Trace = field(default_factory=lambda: Trace(preamble="", steps=()))
    """Of the newest request: what the next one repeats of it is not worked out again."""

    def plan(self, request: WireRequest, family: Family) -> Prompt:
        """Return the exact ids of the next prompt."""
        trace = self.newest = self._trace(request)
        parsed = {index: step.turn.parsed for index, step in enumerate(trace.steps) if step.turn is not None}
        last = trace.steps[-1].last
        base = None if last is None else trace.steps[last].turn
        if last is not None and base is not None:
            known = base.segment.ids[: base.n_end]
            suffix = chat_messages(request, parsed, start=last + 1)
            ids = family.bridge(known[: base.n_prompt], known[base.n_prompt :], suffix, request.tools)
            if ids is not None and tuple(ids[: len(known)]) == known:
                return Prompt(ids=tuple(ids), base=base, context=trace.context, n_known=last + 1)
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
        self.add(interaction, family.parse(interaction.sampled_ids, (), interaction.prompt_ids), context)

    def _trace(self, request: WireRequest) -> Trace:
        steps: list[_Step] = []
        if self.newest.preamble == request.preamble:
            pairs = zip(self.newest.steps, request.messages, strict=False)
            same = itertools.takewhile(lambda pair: pair[0].message.digest == pair[1].digest, pairs)
            steps = [step for step, _ in same]
        digest, last = (steps[-1].digest, steps[-1].last) if steps else (request.preamble, None)
        for index in range(len(steps), len(request.messages)):
            message = request.messages[index]
            turn = self._find(message, digest)
            if turn is not None:
                last = index if turn.context == digest else None
            digest = _chain(digest, message.digest if turn is None else turn.interaction_id)
            steps.append(_Step(message=message, turn=turn, digest=digest, last=last))
        return Trace(preamble=request.preamble, steps=tuple(steps))

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
