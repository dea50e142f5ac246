"""Reading a verifier's reward files: a finite panel with one headline, or a reason why there is none.

Harbor's contract: ``/logs/verifier/reward.json`` (a flat object of numbers) wins over ``reward.txt`` (one number).
Harbor also takes booleans, duplicated keys and an empty object; here each of them is a reason, never a number: a
reward that could mean two things must not train a model. Source: Harbor 0.26 ``verifier/verifier.py``.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

MAX_REWARD_BYTES = 65536
MAX_KEYS = 256
MAX_REWARD = 1e12
"""In size. Squares of larger ones leave what an interval, and the rewards themselves what a float32, can hold."""
HEADLINE = "reward"
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character: JSON can escape one, and no file or ledger can hold it."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReading:
    """What the files say. ``reward`` is None exactly when ``reason`` says why."""

    panel: Mapping[str, float] = field(default_factory=dict[str, float])
    reward: float | None = None
    reason: str = ""


class _RefusedError(Exception):
    """A reward file means nothing certain; the text says why."""


def read_rewards(json_file: bytes | None, text_file: bytes | None) -> RewardReading:
    """Read the contents of the two files, None where there is none."""
    if json_file is None and text_file is None:
        return RewardReading(reason="the verifier wrote no reward file")
    try:
        panel = _read_json(json_file) if json_file is not None else _read_text(text_file or b"")
        return RewardReading(panel=panel, reward=panel[_headline(panel)])
    except _RefusedError as error:
        return RewardReading(reason=str(error))


def _headline(panel: Mapping[str, float]) -> str:
    if HEADLINE in panel:
        return HEADLINE
    if len(panel) == 1:
        return next(iter(panel))
    raise _RefusedError(f"reward.json has {len(panel)} keys and none is {HEADLINE!r}")


def _read_text(content: bytes) -> dict[str, float]:
    text = _decode(content, "reward.txt").strip()
    if _NUMBER.fullmatch(text) is None:
        raise _RefusedError("reward.txt holds no plain finite number")
    return {HEADLINE: _finite(text, "reward.txt")}


def _read_json(content: bytes) -> dict[str, float]:
    try:
        value: object = json.loads(
            _decode(content, "reward.json"), object_pairs_hook=_object, parse_constant=_no_constant
        )
    except (json.JSONDecodeError, RecursionError, ValueError):
        raise _RefusedError("reward.json is not valid JSON") from None
    if not isinstance(value, dict):
        raise _RefusedError(f"reward.json holds a {type(value).__name__}, not an object")
    items = cast("dict[str, object]", value)
    if not items or len(items) > MAX_KEYS:
        raise _RefusedError(f"reward.json has {len(items)} keys, not 1 to {MAX_KEYS}")
    return {key: _number(key, item) for key, item in items.items()}


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise _RefusedError("reward.json has a duplicated key")
    if any(_SURROGATE.search(key) for key in items):
        raise _RefusedError("reward.json has a key that is no text")
    return items


def _no_constant(name: str) -> object:
    raise _RefusedError(f"reward.json holds {name}")


def _number(key: str, item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        raise _RefusedError(f"reward.json: {key!r} is a {type(item).__name__}, not a number")
    return _finite(item, f"reward.json: {key!r}")


def _finite(value: str | float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _RefusedError(f"{where} is not finite")
    if abs(number) > MAX_REWARD:
        raise _RefusedError(f"{where} is beyond {MAX_REWARD:g}")
    return number


def _decode(content: bytes, name: str) -> str:
    if len(content) > MAX_REWARD_BYTES:
        raise _RefusedError(f"{name} is larger than {MAX_REWARD_BYTES} bytes")
    if not content.strip():
        raise _RefusedError(f"{name} is empty")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _RefusedError(f"{name} is not UTF-8") from None
