"""Qwen3's native format: ChatML turns, JSON tool calls, token-exact bridges.

Source: PyPI ``renderers`` 0.1.12 (``Qwen3Renderer``), facts/learning.md sections 6.1 to 6.4.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from tokenizers import Tokenizer

from adapters.families.guarded_tokenizer import GuardedTokenizer
from domain.errors import ConfigurationError
from domain.ports import Store
from domain.records.canonical import Json, canonical_bytes
from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec
from domain.records.model import BasePolicy

TOKENIZER_FILE = "tokenizer.json"


class Qwen3Family:
    """Renders, parses and bridges over one tokenizer. Calls are pure; an instance may be shared between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer that knows the format's control tokens.

        Raises:
            ConfigurationError: a control token is missing.
        """
        self._tokens = GuardedTokenizer(tokenizer)
        for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "</think>"):
            if self._tokens.convert_tokens_to_ids(token) is None:
                raise ConfigurationError(
                    f"{TOKENIZER_FILE} has no token {token!r}", hint="the base policy is not of family qwen3"
                )
        # Reasoning stays in the history: what was sampled is never taken out of a prompt again.
        config = Qwen3RendererConfig(thinking_retention="all")
        self._renderer = Qwen3Renderer(cast("Any", self._tokens), config)
        self._stop_ids = tuple(self._renderer.get_stop_token_ids())

    @classmethod
    def from_json(cls, tokenizer_json: bytes) -> "Qwen3Family":
        """Read the bytes of a ``tokenizer.json``."""
        return cls(Tokenizer.from_str(tokenizer_json.decode()))

    @classmethod
    def from_directory(cls, directory: Path) -> "Qwen3Family":
        """Read ``tokenizer.json`` of a model directory."""
        return cls.from_json((directory / TOKENIZER_FILE).read_bytes())

    @classmethod
    def from_base(cls, base: BasePolicy, store: Store) -> "Qwen3Family":
        """Read the tokenizer of a base policy from the store.

        Raises:
            ConfigurationError: the policy has no tokenizer.
        """
        for entry in base.files:
            if entry.path == TOKENIZER_FILE:
                return cls.from_json(store.get(entry.content))
        raise ConfigurationError(f"base policy {base.name} has no {TOKENIZER_FILE}")

    @property
    def name(self) -> str:
        """Return ``qwen3``."""
        return "qwen3"

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: ``<|im_end|>`` and ``<|endoftext|>``."""
        return self._stop_ids

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return prompt ids that end where the assistant starts.

        Raises:
            ConfigurationError: there is no message, or one has an unknown role.
        """
        wire = [self._message(message) for message in messages]
        if not wire:
            raise ConfigurationError("a conversation needs at least one message")
        return tuple(
            self._renderer.render_ids(
                cast("Any", wire), tools=cast("Any", self._tools(tools)), add_generation_prompt=True
            )
        )

    def assistant_turn(self, message: ChatMessage) -> tuple[int, ...]:
        """Return the ids with which the model would have written this turn, stop id included.

        They follow a prompt of :meth:`render`; used to make supervised targets.
        """
        wire = [{"role": "user", "content": "x"}, self._message(message)]
        rendered = self._renderer.render(cast("Any", wire))
        # The template shows an empty thinking block on a last assistant turn; a demonstration does not think.
        written = self._renderer.render(cast("Any", [*wire, {"role": "user", "content": "x"}]))
        chosen = rendered if "</think>" in message.content else written
        pairs = zip(chosen.token_ids, chosen.message_indices, chosen.sampled_mask, strict=True)
        return tuple(token for token, index, sampled in pairs if index == 1 and sampled)

    def parse(self, sampled_ids: Sequence[int]) -> ParsedTurn:
        """Read a sampled turn. Never raises on what a model wrote.

        A turn with any tool call that cannot be read is ``malformed`` and carries its raw text and no call.
        """
        ids = [int(token) for token in sampled_ids]
        try:
            parsed = self._renderer.parse_response(ids)
        except (ValueError, TypeError, RecursionError, KeyError, AttributeError):
            # The parser lets huge integers and deep nesting escape; a model may write both.
            return ParsedTurn(text=self._raw(ids), malformed=True)
        calls = [_tool_call(call) for call in parsed.tool_calls]
        if any(call is None for call in calls):
            return ParsedTurn(text=self._raw(ids), reasoning=_reasoning(parsed), malformed=True)
        return ParsedTurn(
            text=parsed.content,
            reasoning=_reasoning(parsed),
            tool_calls=tuple(call for call in calls if call is not None),
        )

    def bridge(
        self,
        previous_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...] | None:
        """Return previous ids + sampled ids + suffix; a turn cut by length gets its stop id as observation.

        None when the suffix cannot follow: no new message, an assistant message among them, or a thinking block
        that was never closed.
        """
        if any(message.role == "assistant" for message in new_messages):
            return None
        prefix = [*previous_ids, *sampled_ids]
        bridged = self._renderer.bridge_to_next_turn(
            list(previous_ids),
            list(sampled_ids),
            cast("Any", [self._message(message) for message in new_messages]),
            tools=cast("Any", self._tools(tools)),
        )
        if bridged is None or bridged.token_ids[: len(prefix)] != prefix:
            return None
        return tuple(bridged.token_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return text with special tokens shown."""
        return self._tokens.decode(ids)

    def _raw(self, ids: list[int]) -> str:
        """Decode up to the stop id."""
        end = next((index for index, token in enumerate(ids) if token in self._stop_ids), len(ids))
        return self.decode(ids[:end])

    def _message(self, message: ChatMessage) -> dict[str, object]:
        if message.role not in {"system", "user", "assistant", "tool"}:
            raise ConfigurationError(f"unknown role {message.role!r}", hint="use system, user, assistant or tool")
        # The model's own markup (thinking, calls it could not finish) stays markup in its own turns.
        content = self._tokens.guard(message.content, keep_format=message.role == "assistant")
        wire: dict[str, object] = {"role": message.role, "content": content}
        if message.tool_calls:
            wire["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return wire

    def _call(self, call: ToolCall) -> dict[str, object]:
        arguments = self._tokens.guard_json(call.arguments) if call.arguments is not None else call.raw or "{}"
        return {"type": "function", "function": {"name": self._tokens.guard(call.name), "arguments": arguments}}

    def _tools(self, tools: Sequence[ToolSpec]) -> list[Json] | None:
        """Return tools in the envelope Qwen3's template prints."""
        specs: list[Json] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in tools
        ]
        return [self._tokens.guard_json(spec) for spec in specs] or None


def _reasoning(parsed: ParsedResponse) -> str:
    return (parsed.reasoning_content or "").strip()


def _tool_call(call: ParsedToolCall) -> ToolCall | None:
    """Return a readable call, or None: bad JSON, no name, arguments that are no JSON object."""
    arguments: object = call.arguments
    if call.status is not ToolCallParseStatus.OK or not isinstance(cast("object", call.name), str):
        return None
    if not isinstance(arguments, Mapping):
        return None
    try:
        canonical_bytes(arguments)
    except (ValueError, TypeError, RecursionError):
        return None
    return ToolCall(name=str(call.name), arguments=cast("Mapping[str, Json]", arguments), raw=call.raw)
