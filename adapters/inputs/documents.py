"""Documents people write: profiles, plans, policy recipes and demonstrations, read strictly.

Every error is a ConfigurationError that names the file and the field: ``agent.json: settings.max_turns: ...``.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError

from adapters import codec
from adapters.inputs.faults import wrong_document
from domain.errors import ConfigurationError
from domain.records.chat import Demonstration
from domain.records.model import PolicyRecipe
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.plan_checks import check_plan_values, check_profile, check_recipe

T = TypeVar("T")

DEMONSTRATIONS_LIMIT_BYTES = 1 << 30
"""They are held in memory."""
DOCUMENT_LIMIT_BYTES = 16_000_000
"""A profile may carry files, and still nobody writes more by hand."""

_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_ROLES = frozenset({"system", "user", "assistant", "tool"})


def read_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises:
        ConfigurationError: naming the file and the field.
    """
    return _document(Profile, Path(path), check_profile)


def reference_of_profile(text: str, *, where: str) -> str:
    """Return the reference or digest of a kept profile as it is written.

    Args:
        text: what stands where a profile is named, without ``@``.
        where: the option or field, for the message.

    Raises:
        ConfigurationError: it has another form; a file that is there is named.
    """
    if _DIGEST.fullmatch(text):
        return text
    try:
        return str(parse_reference(text, field=where))
    except ConfigurationError:
        forgotten = forgotten_file(text)
        hint = f"write @{forgotten}" if forgotten else "write team/name@v1 as `synth profile list` shows it, or @FILE"
        message = f"{where}: {text!r} is neither @FILE nor a published reference"
        raise ConfigurationError(message, hint=hint) from None


def forgotten_file(text: str) -> str:
    """Return the file that a text without ``@`` means: of that name, or the example of that name; empty: none."""
    names = (text, f"{text}.json", f"examples/{text}", f"examples/{text}.json")
    try:
        return next((name for name in names if Path(name).is_file()), "")
    except ValueError:  # no name of a file: it holds a NUL character
        return ""


def read_plan(path: str | Path) -> Plan:
    """Read a plan; what one kind of experiment needs of it is checked when it is submitted.

    Raises:
        ConfigurationError: naming the file and the field.
    """
    return _document(Plan, Path(path), check_plan_values)


def read_recipe(path: str | Path) -> PolicyRecipe:
    """Read how a base policy is made. Its path of demonstrations stays as written: it is part of its identity.

    Raises:
        ConfigurationError: naming the file and the field.
    """
    return _document(PolicyRecipe, Path(path), check_recipe)


def demonstrations_path(recipe_path: str | Path, recipe: PolicyRecipe) -> Path:
    """Return where a recipe's demonstrations are: relative to the recipe's own directory."""
    return Path(recipe_path).parent / recipe.demonstrations


def read_demonstrations(path: str | Path) -> tuple[Demonstration, ...]:
    """Read a JSON-lines file of demonstrations.

    Raises:
        ConfigurationError: naming the file, the line and the field; or the file has no line.
    """
    source = Path(path)
    lines = _text(source, limit_bytes=DEMONSTRATIONS_LIMIT_BYTES).splitlines()
    read = [_demonstration(f"{source}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not read:
        raise ConfigurationError(f"{source}: no demonstrations", hint="write one JSON object on each line")
    return tuple(read)


def _document(kind: type[T], path: Path, check: Callable[[T], None]) -> T:
    document = _decode(kind, str(path), _text(path, limit_bytes=DOCUMENT_LIMIT_BYTES))
    try:
        check(document)
    except ConfigurationError as error:
        problems = error.message.partition(": ")[2]
        raise ConfigurationError(f"{path}: {problems}", hint=error.hint) from None
    return document


def _demonstration(where: str, line: str) -> Demonstration:
    demonstration = _decode(Demonstration, where, line)
    messages, at = demonstration.messages, demonstration.n_opening
    for index, message in enumerate(messages):
        if message.role not in _ROLES:
            known = ", ".join(sorted(_ROLES))
            raise ConfigurationError(f"{where}: messages.{index}.role: {message.role!r} is unknown", hint=known)
    if not 0 < at < len(messages) or messages[at].role != "assistant":
        raise ConfigurationError(
            f"{where}: n_opening: message {at} is not the first assistant turn",
            hint="it counts the messages before the first assistant turn",
        )
    if any(message.role == "assistant" for message in messages[:at]) or messages[-1].role != "assistant":
        raise ConfigurationError(
            f"{where}: messages: the model's turns are those from n_opening on, and the last message is one",
            hint="move n_opening to the first assistant turn and end with an assistant turn",
        )
    return demonstration


def _text(path: Path, *, limit_bytes: int) -> str:
    try:
        if path.is_fifo() and not path.as_posix().startswith(("/dev/fd/", "/proc/")):  # of a shell's own making: fine
            raise ConfigurationError(f"{path}: a named pipe", hint="write the document to a file")
        with path.open("rb") as stream:
            content = stream.read(limit_bytes + 1)  # a device has size 0 and no end
        if len(content) > limit_bytes:
            raise ConfigurationError(f"{path}: larger than {limit_bytes} bytes", hint="is this the right file?")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file", hint="check the path after @") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8", hint="save it as UTF-8") from None
    except ValueError:
        raise ConfigurationError(f"{str(path)!r}: no path of a file", hint="check the path after @") from None


def _decode(kind: type[T], where: str, text: str) -> T:
    """Check the JSON beyond what a fast parser checks, then read the record from it."""
    try:
        value: object = json.loads(
            text, object_pairs_hook=_no_twice, parse_constant=_no_constant, parse_float=_finite, parse_int=_sane
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise ConfigurationError(f"{where}: not JSON: {error.msg} at {at}", hint="correct the JSON") from None
    except RecursionError:
        raise ConfigurationError(f"{where}: nested too deeply", hint="flatten the document") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where}: holds no JSON object", hint=f"a {kind.__name__} is one object")
    try:
        return codec.decode(kind, text, error=ConfigurationError)
    except ConfigurationError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        raise wrong_document(kind, cast("object", value), error.__cause__, where=where) from None


def _no_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read: dict[str, object] = {}
    for name, value in pairs:
        if name in read:
            raise ConfigurationError(f"{name}: written twice in one object", hint="keep one of them")
        read[name] = value
    return read


def _no_constant(text: str) -> object:
    raise ConfigurationError(f"{text} is not a JSON number", hint="write a finite number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ConfigurationError(f"{text} is not a finite number", hint="write a finite number")
    return value


def _sane(text: str) -> int:
    """Refuse integers that other readers of JSON would round."""
    limit_digits = 18
    if len(text.lstrip("-")) > limit_digits:
        raise ConfigurationError(f"{text[:20]}... is too long a number", hint=f"at most {limit_digits} digits")
    return int(text)
