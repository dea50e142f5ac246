"""What both of OpenAI's dialects are read with: fields that are refused, tools, contents, and the normal form.

A field that would change the answer is honoured or refused by name. What does not change it, and what the trial's
token decides (sampling), is recorded. Source: the ``openai`` SDK's ``CompletionCreateParams`` and
``ResponseCreateParams``; a test holds that each of their fields is decided here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from adapters.servers.wire import Block, WireMessage, WireRequest
from domain.errors import ConfigurationError
from domain.records.chat import ToolSpec

NO_LIMIT = 1_000_000_000
"""Tokens, where a client sets no limit; the token of the trial and the context have theirs."""
UNREAD = "unread_"
"""Starts the id under which a call that could not be read is delivered."""
REFUSED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "image": ({},),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "previous_response_id": (),
    "prompt": (),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "web_search_options": (),
}
"""Fields that would change the answer and cannot be honoured -> the values that ask for nothing, beside null."""
_HINTS = {
    "previous_response_id": "nothing is kept between requests: send the whole input",
    "conversation": "nothing is kept between requests: send the whole input",
    "n": "one sample a call",
    "truncation": "a prompt that is too long is an error, so that the harness can compact",
    "response_format": "ask for the format in words, or give a tool",
}
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_FREE_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as it is."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""A custom tool takes a text; the model gives it as the one argument of a function."""
_B = TypeVar("_B", bound=BaseModel)


class Tolerant(BaseModel):
    """Unknown fields are kept."""

    model_config = ConfigDict(extra="allow")


class _Tool(Tolerant):
    type: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A tool as the harness declared it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request in normal form, and what its answer needs to be put in the client's words."""

    request: WireRequest
    tools: Mapping[str, Declared]
    """By the name under which the model knows them."""
    with_usage: bool = True
    repeated: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the request that its answer repeats."""


def read_body(kind: type[_B], data: bytes) -> _B:
    """Read a body; a field that must be refused is named.

    Raises:
        ConfigurationError: naming the field that is wrong.
    """
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise _complaint(error) from None
    for name, value in (body.model_extra or {}).items():
        if name in REFUSED and value is not None and value not in REFUSED[name]:
            raise ConfigurationError(f"{name}: {_shown(value)} is not supported", hint=_HINTS.get(name, "leave it out"))
    return body


def extra_of(body: BaseModel) -> dict[str, Any]:
    """Return the fields that nothing here acts on."""
    return {name: value for name, value in (body.model_extra or {}).items() if name not in REFUSED}


def declare(raws: Iterable[Mapping[str, Any]], choice: object) -> tuple[tuple[ToolSpec, ...], dict[str, Declared]]:
    """Return tools for the model, and how the harness knows them. ``choice`` is the request's ``tool_choice``.

    Raises:
        ConfigurationError: a tool that this proxy would have to run itself, two of one name, a forced choice.
    """
    if choice not in (None, "auto", "none"):
        raise ConfigurationError(f"tool_choice: {_shown(choice)} cannot be forced on a model", hint='use "auto"')
    specs: list[ToolSpec] = []
    known: dict[str, Declared] = {}
    for index, raw in enumerate(raws):
        for spec, declared in _tools(raw, f"tools.{index}"):
            if spec.name in known:
                raise ConfigurationError(f"tools.{index}.name: there are two tools {spec.name!r}")
            known[spec.name] = declared
            specs.append(spec)
    return ((), {}) if choice == "none" else (tuple(specs), known)


def flat_name(name: str, namespace: object) -> str:
    """Return the name under which the model knows a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def blocks_of(content: object, where: str, kinds: Sequence[str] = ("text",)) -> list[Block]:
    """Return text blocks of a content.

    Raises:
        ConfigurationError: naming a part that is no text: this model reads text only.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ConfigurationError(f"{where}: is neither a text nor a list of parts")
    return [_part(part, f"{where}.{index}", kinds) for index, part in enumerate(cast("list[object]", content))]


def call_block(call_id: str, name: str, arguments: object) -> Block:
    """Return an echoed call; arguments that are no JSON object stay the text that they are."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
    return {
        "type": "tool_use",
        "id": call_id,
        "name": name,
        "input": value if isinstance(value, dict) else arguments,
    }


def result_block(call_id: str, blocks: Sequence[Block]) -> Block:
    """Return a tool's result."""
    content = blocks[0]["text"] if len(blocks) == 1 else list(blocks)
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def is_results(message: tuple[str, list[Block]] | None) -> bool:
    """Tell whether a message holds results of tools, to which the next result belongs too."""
    return message is not None and any(block["type"] == "tool_result" for block in message[1])


def wire_messages(
    pairs: Iterable[tuple[str, list[Block]]], before: Sequence[WireMessage]
) -> tuple[str, tuple[WireMessage, ...]]:
    """Return the system prompt, which is the leading run of system messages, and the messages after it.

    Args:
        pairs: roles and blocks, in order.
        before: messages of an earlier request of the conversation; one that is there again is not worked out again.

    Raises:
        ConfigurationError: nothing is said, or the assistant said it last.
    """
    leading: list[str] = []
    found: list[WireMessage] = []
    for role, blocks in pairs:
        if role == "system" and not found:
            leading.append("\n".join(str(block["text"]) for block in blocks))
            continue
        known = before[len(found)] if len(found) < len(before) else None
        same = known is not None and (known.role, known.blocks) == (role, tuple(blocks))
        found.append(known if known is not None and same else WireMessage(role=role, blocks=tuple(blocks)))
    if not found:
        raise ConfigurationError("messages: there is none but the system prompt")
    if found[-1].role == "assistant":
        raise ConfigurationError("messages: the last message may not be the assistant's: prefill is not supported")
    return "\n\n".join(text for text in leading if text), tuple(found)


def _part(part: object, where: str, kinds: Sequence[str]) -> Block:
    fields = cast("Mapping[str, object]", part if isinstance(part, dict) else {})
    text = fields.get("refusal" if fields.get("type") == "refusal" else "text")
    if fields.get("type") not in kinds or not isinstance(text, str):
        raise ConfigurationError(
            f"{where}: {_shown(fields.get('type'))} cannot be read: this model reads text", hint="send text parts only"
        )
    return {"type": "text", "text": text}


def _tools(raw: Mapping[str, Any], where: str, namespace: str | None = None) -> list[tuple[ToolSpec, Declared]]:
    kind = raw.get("type")
    if kind not in ("function", "custom", "namespace") or (namespace and kind == "namespace"):
        raise ConfigurationError(
            f"{where}.type: {_shown(kind)} is no tool that the harness runs, and nothing else would run it",
            hint='switch it off in the harness (codex: web_search = "disabled")',
        )
    try:
        tool = _Tool.model_validate(raw)
    except ValidationError as error:
        raise _complaint(error, where) from None
    if kind == "namespace":
        inner = enumerate(tool.tools or [])
        return [pair for index, each in inner for pair in _tools(each, f"{where}.tools.{index}", tool.name)]
    schema = _FREE_FORM if kind == "custom" else tool.parameters or _NO_PARAMETERS
    described = (tool.description or "") + _grammar(tool.format)
    spec = ToolSpec(name=flat_name(tool.name, namespace), description=described, schema=schema)
    return [(spec, Declared(name=tool.name, namespace=namespace, is_custom=kind == "custom"))]


def _grammar(form: Mapping[str, Any] | None) -> str:
    if not form or form.get("type") != "grammar":
        return ""
    return f"\n\nThe input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"


def _complaint(error: ValidationError, *place: str) -> ConfigurationError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in (*place, *first["loc"])) or "body"
    return ConfigurationError(f"{where}: {first['msg']}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - enough to know it again
