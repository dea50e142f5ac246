"""What every native format shares: prompts that only grow, turns read by token id, text that cannot forge a turn.

A format is written as text in which control tokens stand literally; everything foreign was guarded before
(:class:`GuardedTokenizer`), so that one encoding is exact. ``render`` and ``bridge`` use the same pieces: a rendered
conversation is by construction what bridges would have made of it.

Why turns are ours and not those of ``renderers`` 0.1.12, which opens the prompts (``library_openings``) and referees
the tests: its full renders drop reasoning whatever ``thinking_retention`` says, so that with ``preserve`` they are
no continuation of its own bridges; it encodes what people and tools wrote with control tokens on; it types arguments
by ``json.loads``; its parsers let integers of thousands of digits and deep nesting escape as exceptions.

Source: facts/proxy.md sections 0 and 2, facts/learning.md sections 6.1 to 6.4.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, cast

from tokenizers import Tokenizer

from adapters.families.guarded_tokenizer import GuardedTokenizer
from adapters.families.turns import ROLES, THINK, THINK_END, in_call_order, reasoning_of
from domain.errors import ConfigurationError
from domain.ports import Store
from domain.records.canonical import Json
from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec
from domain.records.family import FamilyOptions, History
from domain.records.model import BasePolicy

TOKENIZER_FILE = "tokenizer.json"
_TAIL = 16  # ids at the end of a prompt that are looked at for an opened reasoning


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a turn without its reasoning says, still guarded."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class NativeFamily(ABC):
    """Renders, parses and bridges over one tokenizer. Calls are pure; an instance may be shared between threads."""

    family: ClassVar[str]
    controls: ClassVar[tuple[str, ...]]
    """Tokens that the format cannot do without."""
    stops: ClassVar[tuple[str, ...]]
    """Tokens that end a turn; the first closes a turn that was cut by length."""
    call_openers: ClassVar[tuple[str, ...]]
    """Any of them starts a tool call."""
    between: ClassVar[str] = ""
    """What stands between a sampled stop and whatever follows."""
    always_thinks: ClassVar[bool] = False
    """The format has no switch that keeps the model from reasoning."""
    drops_reasoning: ClassVar[bool] = True
    """The model's own template forgets reasoning once a user speaks again."""
    forgets_at_once: ClassVar[bool] = False
    """That template forgets reasoning as soon as anything follows, tool results too."""
    continues_after_results: ClassVar[bool] = False
    """After tool results the model goes on without a prompt of its own, so without opened reasoning."""

    def __init__(self, tokenizer: Tokenizer, options: FamilyOptions | None = None) -> None:
        """Take a tokenizer that knows the format's control tokens.

        Raises:
            ConfigurationError: a control token is missing, or the format has no such option.
        """
        self.options = options or FamilyOptions()
        self._tokens = GuardedTokenizer(tokenizer)
        for token in (*self.controls, *self.stops):
            if token not in self._tokens.control_ids:
                raise ConfigurationError(
                    f"{TOKENIZER_FILE} has no token {token!r}", hint=f"the base policy is not of family {self.family}"
                )
        if self.always_thinks and not self.options.thinking:
            raise ConfigurationError(f"family {self.family}: thinking cannot be switched off", hint="thinking = true")
        self._stop_ids = tuple(self._tokens.control_ids[token] for token in self.stops)
        self._stop_texts = dict(zip(self._stop_ids, self.stops, strict=True))

    @classmethod
    def from_json(cls, tokenizer_json: bytes, options: FamilyOptions | None = None) -> Self:
        """Read the bytes of a ``tokenizer.json``."""
        return cls(Tokenizer.from_str(tokenizer_json.decode()), options)

    @classmethod
    def from_directory(cls, directory: Path, options: FamilyOptions | None = None) -> Self:
        """Read ``tokenizer.json`` of a model directory."""
        return cls.from_json((directory / TOKENIZER_FILE).read_bytes(), options)

    @classmethod
    def from_base(cls, base: BasePolicy, store: Store, options: FamilyOptions | None = None) -> Self:
        """Read the tokenizer of a base policy from the store.

        Raises:
            ConfigurationError: the policy has no tokenizer.
        """
        for entry in base.files:
            if entry.path == TOKENIZER_FILE:
                return cls.from_json(store.get(entry.content), options)
        raise ConfigurationError(f"base policy {base.name} has no {TOKENIZER_FILE}")

    @property
    def name(self) -> str:
        """Return the family's name."""
        return self.family

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        return self._stop_ids

    @property
    def can_reason(self) -> bool:
        """Whether a turn may hold reasoning, given the options."""
        return self._reasons()

    def decode(self, ids: Sequence[int]) -> str:
        """Return text with special tokens shown."""
        return self._tokens.decode(ids)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return prompt ids that end where the assistant starts.

        Raises:
            ConfigurationError: there is no message, or one has an unknown role.
        """
        guarded = self._messages(messages)
        if not guarded:
            raise ConfigurationError("a conversation needs at least one message")
        system = guarded[0].content if guarded[0].role == "system" else None
        rest = guarded[1:] if system is not None else guarded
        opening = self._open(system, self._tools(tools))
        # What the model wrote is encoded apart from the prompt before it, as when it was sampled: a newline on each
        # side of that place would be one token otherwise. Source: facts/proxy.md section 5 ("partial encoding").
        pieces = self._conversation(rest, has_tools=bool(tools))
        return (*opening, *(number for piece in pieces for number in self._tokens.encode(piece)))

    def assistant_turn(self, message: ChatMessage) -> tuple[int, ...]:
        """Return the ids with which the model would have written this turn, stop id included.

        They follow a prompt of :meth:`render`; used to make supervised targets.

        Raises:
            ConfigurationError: it reasons although the prompt closes the reasoning, or the format cannot say it.
        """
        turn = self._messages([message])[0]
        if turn.reasoning and not self._reasons():
            raise ConfigurationError(
                f"family {self.family}: a turn that reasons after a prompt that closes the reasoning",
                hint="leave the reasoning out, or set thinking = true",
            )
        self._check_target(turn)
        return tuple(self._tokens.encode(self._body(turn, self._stop(turn, None))))

    def parse(
        self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec] = (), prompt_ids: Sequence[int] = ()
    ) -> ParsedTurn:
        """Read a sampled turn. Never raises on what a model wrote.

        A turn with any tool call that cannot be read (or that was cut) is ``malformed`` and carries its raw text
        and no call.
        """
        ids = [int(token) for token in sampled_ids]
        end = next((index for index, token in enumerate(ids) if token in self._stop_texts), len(ids))
        opened = self._opened(prompt_ids) if prompt_ids else self._opens_reasoning()
        stopped = end < len(ids)
        reasoning, rest = self._split(self._tokens.read(ids[:end]), opened=opened, stopped=stopped)
        reading = self._read(rest, tools, stopped=stopped)
        said = self._tokens.unguard(reasoning)
        if reading is None:
            return ParsedTurn(text=self._tokens.unguard(rest), reasoning=said, malformed=True)
        text = self._tokens.unguard(reading.text)
        return ParsedTurn(text=text if text.strip() else "", reasoning=said, tool_calls=reading.calls)

    def bridge(
        self,
        previous_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...] | None:
        """Return previous ids + sampled ids + suffix; a turn cut by length gets its stop id as observation.

        None when the suffix cannot follow: no new message, an assistant message among them, or one that makes the
        model's template forget reasoning (history rule ``template``).
        """
        roles = [message.role for message in new_messages]
        if not previous_ids or not roles or "assistant" in roles:
            return None
        forgetting = self.options.history is History.TEMPLATE and self._forgets(has_tools=bool(tools))
        if forgetting and (self.forgets_at_once or "user" in roles):
            return None
        stop = self._stop_texts.get(int(sampled_ids[-1])) if sampled_ids else None
        following = self._identified(self._messages(new_messages), sampled_ids)
        suffix = self._suffix(following, stop)
        if suffix is None:
            return None
        closed = self._cut(previous_ids, sampled_ids) if stop is None else ""
        return (*previous_ids, *sampled_ids, *self._tokens.encode(closed + suffix))

    # --- what a format says of itself; all text is guarded ------------------------------------------------

    @abstractmethod
    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        """Return the ids before the first message that is not the leading system message."""

    @abstractmethod
    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        """Return messages between two assistant turns; ``stop`` ended the turn before them."""

    @abstractmethod
    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        """Return what makes the model start, after ``run``."""

    @abstractmethod
    def _body(self, turn: ChatMessage, stop: str) -> str:
        """Return what the model writes after :meth:`_prompt`."""

    def _body_after(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        """Return what the model writes after the prompt that follows ``run``."""
        del run
        return self._body(turn, stop)

    @abstractmethod
    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        """Return a whole earlier turn as a template has it that forgets its reasoning."""

    @abstractmethod
    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        """Return what a turn says after its reasoning; None when it calls a tool in a way that cannot be read."""

    def _opens_reasoning(self) -> bool:
        """Whether the prompt ends inside the reasoning."""
        return self._prompt(()).rstrip("\n").endswith(THINK)

    def _reasons(self) -> bool:
        """Whether a turn may hold reasoning."""
        return self.options.thinking

    def _forgets(self, *, has_tools: bool) -> bool:
        """Whether the model's template forgets reasoning of earlier turns."""
        del has_tools
        return self.drops_reasoning

    def _check_target(self, turn: ChatMessage) -> None:
        """Refuse a turn that a model of the family cannot write at once. Raises ConfigurationError."""
        del turn

    def _stop(self, turn: ChatMessage, follower: str | None) -> str:
        """Return the token with which a turn ends, given the role that follows it."""
        del turn, follower
        return self.stops[0]

    def _suffix(self, messages: Sequence[ChatMessage], stop: str | None) -> str | None:
        """Return what follows a turn that ended with ``stop`` (None: it was cut); None when nothing can."""
        closing = "" if stop else self.stops[0]
        return closing + self.between + self._run(messages, stop) + self._prompt(messages)

    def _kept(self, messages: Sequence[ChatMessage], index: int) -> bool:
        """Whether a template that forgets keeps the reasoning of the turn at ``index``: no user spoke since."""
        return not self.forgets_at_once and all(message.role != "user" for message in messages[index:])

    def _trim(self, reasoning: str, rest: str) -> tuple[str, str]:
        """Return reasoning and rest without the format's own white space around ``</think>``."""
        return reasoning, rest

    def _identified(self, messages: Sequence[ChatMessage], sampled_ids: Sequence[int]) -> list[ChatMessage]:
        """Return tool results with what a format needs to know of their calls."""
        del sampled_ids
        return list(messages)

    # --- shared ---------------------------------------------------------------------------------------

    def _conversation(self, messages: Sequence[ChatMessage], *, has_tools: bool) -> list[str]:
        """Return the pieces of a conversation: in turn what prompts and what the model wrote."""
        forgetting = self.options.history is History.TEMPLATE and self._forgets(has_tools=has_tools)
        pieces = [""]
        run: list[ChatMessage] = []
        stop: str | None = None
        for index, message in enumerate(messages):
            if message.role != "assistant":
                run.append(message)
                continue
            pieces[-1] += self._run(run, stop)
            follower = messages[index + 1].role if index + 1 < len(messages) else None
            stop = self._stop(message, follower)
            if forgetting and not self._kept(messages, index):
                pieces[-1] += self._forgotten(message, stop, run) + self.between
            else:
                pieces[-1] += self._prompt(run)
                pieces += [self._body_after(message, stop, run), self.between]
            run = []
        pieces[-1] += self._run(run, stop) + self._prompt(run)
        return pieces

    def _messages(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return guarded messages, results in call order.

        Raises:
            ConfigurationError: an unknown role.
        """
        for message in messages:
            if message.role not in ROLES:
                raise ConfigurationError(f"unknown role {message.role!r}", hint=f"use {', '.join(ROLES)}")
        return [self._guarded(message) for message in in_call_order(messages)]

    def _guarded(self, message: ChatMessage) -> ChatMessage:
        reasoning, content = reasoning_of(message)
        return replace(
            message,
            content=self._tokens.guard(content),
            reasoning=self._tokens.guard(reasoning),
            tool_name=self._guarded_or_none(message.tool_name),
            tool_call_id=self._guarded_or_none(message.tool_call_id),
            native_call_id=self._guarded_or_none(message.native_call_id),
            tool_calls=tuple(self._guarded_call(call) for call in message.tool_calls),
        )

    def _guarded_call(self, call: ToolCall) -> ToolCall:
        arguments = call.arguments
        return ToolCall(
            name=self._tokens.guard(call.name),
            arguments=None if arguments is None else cast("Mapping[str, Json]", self._tokens.guard_json(arguments)),
            raw=self._tokens.guard(call.raw),
            call_id=self._guarded_or_none(call.call_id),
            native_id=self._guarded_or_none(call.native_id),
        )

    def _guarded_or_none(self, text: str | None) -> str | None:
        return None if text is None else self._tokens.guard(text)

    def _tools(self, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
        guard = self._tokens.guard
        return [
            ToolSpec(
                name=guard(tool.name),
                description=guard(tool.description),
                schema=cast("Mapping[str, Json]", self._tokens.guard_json(tool.schema)),
            )
            for tool in tools
        ]

    def _opened(self, prompt_ids: Sequence[int]) -> bool:
        return self._tokens.read(list(prompt_ids[-_TAIL:])).rstrip("\n").endswith(THINK)

    def _cut(self, previous_ids: Sequence[int], sampled_ids: Sequence[int]) -> str:
        """Return what closes the reasoning of a turn that was cut inside it."""
        text = self._tokens.read([int(token) for token in sampled_ids])
        inside = self._opened(previous_ids) or text.lstrip().startswith(THINK)
        ended = THINK_END in text or any(opener in text for opener in self.call_openers)
        return THINK_END if inside and not ended else ""

    def _split(self, text: str, *, opened: bool, stopped: bool) -> tuple[str, str]:
        """Return reasoning and rest; a call ends reasoning that was never closed, a second close is dropped.

        Source: facts/proxy.md section 2 ("Parsing rules").
        """
        if not opened and not text.lstrip().startswith(THINK):
            return "", text.replace(THINK_END, "")
        body = text.lstrip().removeprefix(THINK) if text.lstrip().startswith(THINK) else text
        reasoning, closed, rest = body.partition(THINK_END)
        if closed:
            return self._trim(reasoning, rest.replace(THINK_END, ""))
        starts = [body.find(opener) for opener in self.call_openers if opener in body]
        if starts:
            return self._trim(body[: min(starts)], body[min(starts) :])
        if stopped and self.continues_after_results:
            return "", body
        return self._trim(body, "")

    def _read_call(self, name: str, arguments: Mapping[str, Json] | None, raw: str) -> ToolCall | None:
        """Return a call with its guards off; None when it has no name or no readable arguments."""
        clean = self._tokens.unguard(name).strip()
        if not clean or arguments is None:
            return None
        return ToolCall(name=clean, arguments=arguments, raw=self._tokens.unguard(raw))
