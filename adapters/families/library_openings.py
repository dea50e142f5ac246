"""How a prompt begins (tools, leading system message), taken from the ``renderers`` library where it has it right.

Right means: equal to every prompt of ``native_formats.json`` (tests/contracts/test_family_vectors.py). The library
is given guarded text over our tokenizer, so that no tool description or schema becomes a control token.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from adapters.families.guarded_tokenizer import GuardedTokenizer
from domain.records.chat import ToolSpec

_KEPT = 32  # openings; each is the tools of one harness, thousands of ids


class _Rendered(Protocol):
    token_ids: list[int]
    message_indices: list[int]


class LibraryOpening:
    """Openings by one renderer, the newest remembered."""

    def __init__(
        self,
        tokens: GuardedTokenizer,
        make: Callable[[Any], Any],
        *,
        wrapped: bool = False,
    ) -> None:
        """Take a constructor of the library.

        Args:
            tokens: encodes.
            make: makes the renderer over a tokenizer.
            wrapped: whether a tool is shown inside ``{"type": "function", "function": ...}``.
        """
        self._renderer = make(tokens)
        self._wrapped = wrapped
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, system: str | None, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return ids up to the first message that is not the leading system message."""
        declared = [tool_json(tool, wrapped=self._wrapped) for tool in tools]
        key = json.dumps([system, declared])
        found = self._known.get(key)
        if found is None:
            found = self._render(system, declared)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found
        return found

    def _render(self, system: str | None, tools: list[Mapping[str, object]]) -> tuple[int, ...]:
        leading = [] if system is None else [{"role": "system", "content": system}]
        # Some templates refuse a conversation in which no user speaks, so one does and is cut off again.
        messages = [*leading, {"role": "user", "content": "x"}]
        rendered = cast("_Rendered", self._renderer.render(messages, tools=tools or None))
        end = rendered.message_indices.index(len(leading))
        return tuple(rendered.token_ids[:end])


def tool_json(tool: ToolSpec, *, wrapped: bool) -> Mapping[str, object]:
    """Return the JSON that declares a tool."""
    bare = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": bare} if wrapped else bare
