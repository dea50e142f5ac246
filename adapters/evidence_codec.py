"""Interactions as bytes. A prompt that extends an earlier call is kept as that call's number and the new ids.

A conversation of T turns repeats its history in every prompt; written this way it takes O(T), not O(T^2), bytes.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from pydantic_core import from_json

from domain.errors import EvidenceError, boundary
from domain.records.task import ObjectRef
from domain.records.trial import EvidenceRef, Interaction, Purpose, StopReason

_FIELDS = tuple(field.name for field in fields(Interaction))
_SCHEMA_VERSION = 1
_KINDS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("purpose", Purpose),
    ("stop_reason", StopReason),
    ("prompt_ids", tuple),
    ("sampled_ids", tuple),
    ("logprobs", tuple),
)
"""Fields that JSON gives back as something simpler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An interaction whose ``prompt_ids`` follow the prompt and sampled ids of call number ``base``."""

    base: int | None
    interaction: Interaction


def pack(interaction: Interaction, previous: Interaction | None) -> Packed:
    """Write the prompt relative to ``previous``, an earlier call of the same trial, when it extends it."""
    if previous is not None:
        known = previous.prompt_ids + previous.sampled_ids
        if interaction.prompt_ids[: len(known)] == known:
            suffix = interaction.prompt_ids[len(known) :]
            return Packed(base=previous.sequence, interaction=replace(interaction, prompt_ids=suffix))
    return Packed(base=None, interaction=interaction)


def unpack(packed: Iterable[Packed]) -> tuple[Interaction, ...]:
    """Return whole interactions in order of sequence; a base comes before what builds on it.

    Raises:
        EvidenceError: a base is missing.
    """
    found: dict[int, Interaction] = {}
    for item in packed:
        interaction = item.interaction
        if item.base is not None:
            base = found.get(item.base)
            if base is None:
                raise EvidenceError(f"interaction {interaction.interaction_id}: call {item.base} is missing")
            prompt_ids = base.prompt_ids + base.sampled_ids + interaction.prompt_ids
            interaction = replace(interaction, prompt_ids=prompt_ids)
        found[interaction.sequence] = interaction
    return tuple(found[sequence] for sequence in sorted(found))


def encode(packed: Packed) -> bytes:
    """Return canonical JSON.

    Raises:
        EvidenceError: a number is not finite, or a value has no JSON form.
    """
    return _dump(_body(packed), packed.interaction.interaction_id)


def decode(data: bytes) -> Packed:
    """Read what :func:`encode` wrote.

    Raises:
        EvidenceError: it is something else.
    """
    with boundary(EvidenceError, "reading an interaction"):
        return _packed(json.loads(data))


def encode_trial(trial_id: str, interactions: Sequence[Interaction]) -> bytes:
    """Return the published object of a trial: its interactions in order of sequence; the same in, the same out."""
    latest: dict[str, Interaction] = {}
    bodies: list[dict[str, Any]] = []
    for interaction in interactions:
        bodies.append(_body(pack(interaction, latest.get(interaction.agent))))
        latest[interaction.agent] = interaction
    return _dump({"schema_version": _SCHEMA_VERSION, "trial_id": trial_id, "interactions": bodies}, trial_id)


def decode_trial(data: bytes) -> tuple[Interaction, ...]:
    """Read a published object.

    Raises:
        EvidenceError: it is something else.
    """
    with boundary(EvidenceError, "reading published evidence"):
        return unpack(_packed(item) for item in published_body(data)["interactions"])


def published_body(data: bytes) -> dict[str, Any]:
    """Return the decoded JSON of a published object.

    Raises:
        EvidenceError: it has another schema version.
        ValueError: it is no JSON.
    """
    try:
        body = from_json(data)
    except ValueError:
        # That parser reads numbers four times as fast, but refuses documents that nest deeper than 200 levels.
        body = json.loads(data)
    if body["schema_version"] != _SCHEMA_VERSION:
        raise EvidenceError(f"evidence of schema version {body['schema_version']}", hint="use a newer synth")
    return body


def reference(content: ObjectRef, interactions: Sequence[Interaction]) -> EvidenceRef:
    """Return the reference with its token counts."""
    return EvidenceRef(
        object=content,
        n_interactions=len(interactions),
        n_prompt_tokens=sum(len(interaction.prompt_ids) for interaction in interactions),
        n_sampled_tokens=sum(len(interaction.sampled_ids) for interaction in interactions),
    )


def encode_mark(trial_id: str, published: EvidenceRef) -> bytes:
    """Return the journal's note that a trial is published."""
    content = {"digest": published.object.digest, "size_bytes": published.object.size_bytes}
    counts = {
        "n_interactions": published.n_interactions,
        "n_prompt_tokens": published.n_prompt_tokens,
        "n_sampled_tokens": published.n_sampled_tokens,
    }
    return _dump({"trial_id": trial_id, "object": content, **counts}, trial_id)


def decode_mark(data: bytes) -> tuple[str, EvidenceRef]:
    """Read what :func:`encode_mark` wrote.

    Raises:
        EvidenceError: it is something else.
    """
    with boundary(EvidenceError, "reading the note of a published trial"):
        body = cast("dict[str, Any]", json.loads(data))
        trial_id = str(body.pop("trial_id"))
        return trial_id, EvidenceRef(object=ObjectRef(**body.pop("object")), **body)


def _body(packed: Packed) -> dict[str, Any]:
    body: dict[str, Any] = {name: getattr(packed.interaction, name) for name in _FIELDS}
    body["base"] = packed.base
    return body


def _packed(body: Mapping[str, Any]) -> Packed:
    values: dict[str, Any] = dict(body)
    base = values.pop("base")
    for name, kind in _KINDS:
        values[name] = kind(values[name])
    interaction = Interaction(**values)
    return Packed(base=base, interaction=interaction)


def _dump(body: Mapping[str, Any], name: str) -> bytes:
    """Encode as :func:`domain.records.canonical.canonical_bytes` does, without walking long id lists in Python."""
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"evidence of {name}: {error}") from error
