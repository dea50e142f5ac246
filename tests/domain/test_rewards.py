"""A reward is a finite number that means one thing, or it is a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.lifecycle.rewards import MAX_KEYS, MAX_REWARD_BYTES, read_rewards

REFUSED_JSON = {
    "empty file": b"",
    "blank": b"  \n",
    "NaN": b'{"reward": NaN}',
    "Infinity": b'{"reward": Infinity}',
    "minus Infinity": b'{"reward": -Infinity}',
    "overflow": b'{"reward": 1e309}',
    "huge integer": b'{"reward": 1' + b"0" * 400 + b"}",
    "endless digits": b'{"reward": ' + b"1" * 5000 + b"}",
    "true": b'{"reward": true}',
    "string": b'{"reward": "1"}',
    "null": b'{"reward": null}',
    "nested": b'{"reward": {"a": 1}}',
    "list value": b'{"reward": [1]}',
    "list": b"[1]",
    "scalar": b"1",
    "empty object": b"{}",
    "duplicated key": b'{"reward": 1, "reward": 0}',
    "two keys without a headline": b'{"a": 1, "b": 1}',
    "finite but without a finite square": b'{"reward": 1e308}',
    "half a character": b'{"reward": 1, "\\ud800": 2}',
    "torn": b'{"reward": 1',
    "text after": b'{"reward": 1} 1',
    "not UTF-8": b'{"reward\xff": 1}',
    "too large": b'{"reward": 1}' + b" " * MAX_REWARD_BYTES,
    "deep": b'{"reward": ' + b"[" * 30000,
    "too many keys": json.dumps({f"k{i}": 1 for i in range(MAX_KEYS + 1)}).encode(),
}
REFUSED_TEXT = [
    b"",
    b" \n",
    b"nan",
    b"inf",
    b"-Infinity",
    b"1e309",
    b"-1e200",
    b"1_0",
    b"0x1",
    b"one",
    b"1 1",
    b"1,0",
    b"True",
    "٣".encode(),
]


@pytest.mark.parametrize("content", REFUSED_JSON.values(), ids=REFUSED_JSON.keys())
def test_ambiguous_json_is_a_reason_never_a_number(content: bytes) -> None:
    """What could mean two things, or nothing, is refused; reward.txt does not stand in for it."""
    reading = read_rewards(content, b"1")
    assert (reading.reward, dict(reading.panel)) == (None, {})
    assert reading.reason


@pytest.mark.parametrize("content", REFUSED_TEXT)
def test_ambiguous_text_is_a_reason(content: bytes) -> None:
    """Only one plain decimal number is a reward."""
    reading = read_rewards(None, content)
    assert reading.reward is None
    assert reading.reason


def test_neither_file_is_a_reason() -> None:
    """A verifier that wrote nothing graded nothing."""
    assert read_rewards(None, None).reason == "the verifier wrote no reward file"


@pytest.mark.parametrize(
    ("json_file", "text_file", "reward"),
    [
        (b'{"reward": 0.5, "style": 2}', None, 0.5),
        (b'{"accuracy": 1}', None, 1.0),
        (b'{"reward": -3}', b"1", -3.0),
        (None, b"0\n", 0.0),
        (None, b" +1.5e-1\r\n", 0.15),
        (None, b".5", 0.5),
    ],
)
def test_plain_rewards_are_read(json_file: bytes | None, text_file: bytes | None, reward: float) -> None:
    """JSON wins over text; the headline is ``reward`` or the only key."""
    assert read_rewards(json_file, text_file).reward == reward


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(content: bytes) -> None:
    """Whatever a box writes, reading ends in a number or a reason."""
    for reading in (read_rewards(content, None), read_rewards(None, content)):
        assert (reading.reward is None) == bool(reading.reason)


@given(st.dictionaries(st.text(min_size=1), st.floats(-1e12, 1e12), min_size=1, max_size=5))
def test_a_written_panel_comes_back(panel: dict[str, float]) -> None:
    """Every panel of ordinary numbers with a headline is read as it was written."""
    wanted = {**panel, "reward": 1.0}
    assert dict(read_rewards(json.dumps(wanted).encode(), None).panel) == wanted
