"""A byte-level model family: small, exact, and as unforgiving as a real one about prefixes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec

START, END = 256, 257
_CALL, _CALL_END = "<call>", "</call>"


class ScriptedFamily:
    """Ids are UTF-8 bytes; 256 starts a message, 257 ends a turn. A call is ``<call>name {json}</call>``."""

    @property
    def name(self) -> str:
        """``scripted``."""
        return "scripted"

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end of a turn."""
        return (END,)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return prompt ids that end where the assistant starts."""
        names = ",".join(tool.name for tool in tools)
        return (*_frame("tools", names), *self._frames(messages), START, *b"assistant:")

    def assistant_turn(self, message: ChatMessage) -> tuple[int, ...]:
        """Return the ids of a turn as the model writes it."""
        calls = "".join(f"{_CALL}{call.name} {json.dumps(call.arguments)}{_CALL_END}" for call in message.tool_calls)
        return (*(message.content + calls).encode(), END)

    def parse(
        self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec] = (), prompt_ids: Sequence[int] = ()
    ) -> ParsedTurn:
        """Read a turn; arguments are taken as written."""
        del tools, prompt_ids
        text = self.decode([token for token in sampled_ids if token < START])
        before, *rest = text.split(_CALL)
        calls = tuple(_call(part) for part in rest)
        return ParsedTurn(text=before, tool_calls=calls, malformed=any(call.arguments is None for call in calls))

    def bridge(
        self,
        previous_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...] | None:
        """Return previous + sampled + suffix; None when an assistant message is new."""
        if any(message.role == "assistant" for message in new_messages):
            return None
        close = () if sampled_ids and sampled_ids[-1] == END else (END,)
        return (*previous_ids, *sampled_ids, *close, *self._frames(new_messages), START, *b"assistant:")

    def decode(self, ids: Sequence[int]) -> str:
        """Return text with special tokens shown."""
        shown = {START: b"<s>", END: b"</s>"}
        return b"".join(shown.get(token, bytes([token % 256])) for token in ids).decode(errors="replace")

    def _frames(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            if message.role == "assistant":
                ids += [START, *b"assistant:", *self.assistant_turn(message)]
            else:
                ids += _frame(f"{message.role}{'/' + message.tool_name if message.tool_name else ''}", message.content)
        return tuple(ids)


def _frame(role: str, content: str) -> list[int]:
    return [START, *f"{role}:{content}".encode(), END]


def _call(written: str) -> ToolCall:
    inner = written.removesuffix(_CALL_END)
    name, _, arguments = inner.partition(" ")
    try:
        value: Any = json.loads(arguments) if written.endswith(_CALL_END) else None
    except ValueError:
        value = None
    read = cast("Mapping[str, Any]", value) if isinstance(value, dict) else None
    return ToolCall(name=name, arguments=read, raw=f"{_CALL}{written}")
