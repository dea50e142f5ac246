"""Messages before they enter a format: roles, the order of results, reasoning apart from content."""

from collections.abc import Sequence

from domain.records.chat import ChatMessage

ROLES = ("system", "user", "assistant", "tool")
THINK, THINK_END = "<think>", "</think>"


def in_call_order(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages with the results of one turn's calls in the order of the calls, where their ids tell it.

    Harnesses send results as they complete; prompts must not depend on it. Source: facts/proxy.md section 1.6.
    """
    ordered = list(messages)
    places: dict[str, int] = {}
    start = 0
    for index, message in enumerate([*messages, None]):
        if message is not None and message.role == "tool" and message.tool_call_id in places:
            continue
        ordered[start:index] = sorted(ordered[start:index], key=lambda one: places.get(one.tool_call_id or "", 0))
        start = index + 1
        if message is not None and message.role == "assistant":
            ids = [call.call_id or call.native_id for call in message.tool_calls]
            places = {one: place for place, one in enumerate(ids) if one is not None}
    return ordered


def reasoning_of(message: ChatMessage) -> tuple[str, str]:
    """Return an assistant turn's reasoning and its content; a leading ``<think>`` block is reasoning."""
    if message.role != "assistant" or message.reasoning or not message.content.startswith(THINK):
        return message.reasoning, message.content
    reasoning, closed, content = message.content.removeprefix(THINK).partition(THINK_END)
    return (reasoning.strip("\n"), content.lstrip("\n")) if closed else ("", message.content)
