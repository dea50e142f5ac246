"""What is too long for a model's context is cut where the cut can be seen, the same way each time.

Only what a harness adds by itself is cut: results of tools, and texts after the first message, as expanded skills are.
The instruction stays whole, and so does all that the model said. The cut message is the one that is recorded, so a
record shows what the model saw.
"""

from dataclasses import replace
from typing import Any

from adapters.servers.wire import WireMessage, WireRequest, content_text

SHARE = 0.25
"""Of the context, for one text."""
BYTES_PER_TOKEN = 4
"""As vocabularies of today have it for English and code; counting tokens would make a cut depend on the vocabulary."""
_HEAD = 0.75
"""Share of what is kept that comes from the beginning; the end of an output often says how it went."""
_MOST_BYTES = 4
"""Of one character in UTF-8: shorter messages need not be encoded to know that they fit."""


def fitted(request: WireRequest, context_tokens: int) -> WireRequest:
    """Return a request no single result or later text of which takes more than about a quarter of the context.

    Args:
        request: as read; the same object when nothing is too long.
        context_tokens: of the model.
    """
    limit_bytes = int(context_tokens * SHARE * BYTES_PER_TOKEN)
    long = {
        index: _cut_message(message, limit_bytes, is_first=index == 0)
        for index, message in enumerate(request.messages)
        if message.role == "user" and message.n_characters * _MOST_BYTES > limit_bytes
    }
    if all(request.messages[index] is message for index, message in long.items()):
        return request
    messages = (long.get(index, message) for index, message in enumerate(request.messages))
    return replace(request, messages=tuple(messages))


def _cut_message(message: WireMessage, limit_bytes: int, *, is_first: bool) -> WireMessage:
    blocks = tuple(_cut_block(block, limit_bytes, is_first=is_first) for block in message.blocks)
    changed = any(new is not old for new, old in zip(blocks, message.blocks, strict=True))
    return replace(message, blocks=blocks) if changed else message


def _cut_block(block: dict[str, Any], limit_bytes: int, *, is_first: bool) -> dict[str, Any]:
    if block["type"] == "tool_result":
        return _with_text(block, "content", content_text(block.get("content", "")), limit_bytes)
    if block["type"] == "text" and not is_first:
        return _with_text(block, "text", str(block.get("text", "")), limit_bytes)
    return block


def _with_text(block: dict[str, Any], name: str, text: str, limit_bytes: int) -> dict[str, Any]:
    kept = cut(text, limit_bytes)
    return block if kept == text else {**block, name: kept}


def cut(text: str, limit_bytes: int) -> str:
    """Return a text of at most ``limit_bytes`` of UTF-8: its beginning, how much is left out, its end.

    What was cut once is not cut again. A limit below the words themselves leaves nothing but them.
    """
    data = text.encode(errors="surrogatepass")
    if len(data) <= limit_bytes:
        return text
    words = f"\n\n[of {len(data)} bytes, the middle is left out here: too long for this model]\n\n"
    room = max(0, limit_bytes - len(words))
    head = int(room * _HEAD)
    return data[:head].decode(errors="ignore") + words + data[len(data) - (room - head) :].decode(errors="ignore")
