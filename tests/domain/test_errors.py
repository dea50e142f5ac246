"""The error tree: its drawing is true, and every error survives a pickle."""

import inspect
import pickle
import re

import pytest

from domain import errors
from domain.errors import SandboxError, StoreError, SynthError, boundary

_CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SynthError)]


def test_the_drawing_shows_every_class_below_its_parent() -> None:
    """The tree in the module's docstring is read back and compared with the classes."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ((?:│   |    )*)(?:[├└]── )?(\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + ("──" in line)
        path[depth:] = [match[2]]
        drawn[match[2]] = path[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: (kind.__base__ or object).__name__ for kind in _CLASSES}


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda kind: kind.__name__)
def test_errors_survive_a_pickle(kind: type[SynthError]) -> None:
    """Class, message and hint cross a process boundary."""
    error = pickle.loads(pickle.dumps(kind("what, where", hint="do this")))  # noqa: S301 - our own bytes
    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("what, where", "do this", "what, where (do this)")


def test_a_boundary_translates_once() -> None:
    """Foreign exceptions become the boundary's class with the cause kept; our own pass unchanged."""
    with (
        pytest.raises(SandboxError, match="exec in box b-1: KeyError") as caught,
        boundary(SandboxError, "exec in box b-1"),
    ):
        raise KeyError
    assert isinstance(caught.value.__cause__, KeyError)
    own = StoreError("damaged")
    with pytest.raises(StoreError) as passed, boundary(SandboxError, "exec"):
        raise own
    assert passed.value is own
