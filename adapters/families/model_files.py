"""The files of a model that tell its native format."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from domain.errors import ConfigurationError
from domain.ports import Store
from domain.records.canonical import Json
from domain.records.model import BasePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What a model's directory says of its format; None where a file is missing."""

    tokenizer_json: bytes | None = None
    tokens: frozenset[str] | None = None
    """Texts of the added tokens."""
    model_type: str | None = None
    quantized: bool = False
    template: str | None = None
    """Its chat template; of several, all."""

    @classmethod
    def of_directory(cls, directory: Path) -> Self:
        """Read a model directory. Raises ConfigurationError."""
        return cls.read(lambda name: path.read_bytes() if (path := directory / name).is_file() else None)

    @classmethod
    def of_policy(cls, base: BasePolicy, store: Store) -> Self:
        """Read a base policy's files. Raises ConfigurationError."""
        entries = {entry.path: entry.content for entry in base.files}
        return cls.read(lambda name: store.get(entries[name]) if name in entries else None)

    @classmethod
    def read(cls, file: Callable[[str], bytes | None]) -> Self:
        """Read through a function that returns a file's bytes, None when there is no such file.

        Raises:
            ConfigurationError: a file is no JSON object.
        """
        tokenizer = file("tokenizer.json")
        config = _object("config.json", file("config.json"))
        settings = _object("tokenizer_config.json", file("tokenizer_config.json"))
        template = file("chat_template.jinja")
        written = settings.get("chat_template") if template is None else template.decode(errors="replace")
        added = _object("tokenizer.json", tokenizer).get("added_tokens")
        return cls(
            tokenizer_json=tokenizer,
            tokens=None if tokenizer is None else frozenset(_contents(added)),
            model_type=_text(config.get("model_type")),
            quantized="quantization_config" in config,
            template=_template(written),
        )


def _object(name: str, data: bytes | None) -> Mapping[str, Json]:
    if data is None:
        return {}
    try:
        value = cast("Json", json.loads(data))
    except ValueError as error:
        raise ConfigurationError(f"{name} is no JSON: {error}", hint="fetch the model again") from error
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} is no JSON object", hint="fetch the model again")
    return value


def _contents(added: Json) -> list[str]:
    entries = added if isinstance(added, Sequence) and not isinstance(added, str) else ()
    return [str(entry["content"]) for entry in entries if isinstance(entry, Mapping) and "content" in entry]


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _template(written: Json) -> str | None:
    """Return a template; several named ones (``[{"name": ..., "template": ...}]``) in one text."""
    if isinstance(written, str):
        return written
    named = written if isinstance(written, Sequence) else ()
    texts = [str(one["template"]) for one in named if isinstance(one, Mapping) and "template" in one]
    return "\n".join(texts) or None
