"""Arguments are typed by the tool's schema, in the order null, integer, number, boolean, object, array, string."""

import pytest

from adapters.families.arguments import (
    candidate_types,
    parameter_schema,
    read_json,
    typed_json,
    typed_object,
    typed_text,
)
from domain.records.canonical import Json
from domain.records.chat import ToolSpec

EDIT = ToolSpec(
    name="edit",
    description="",
    schema={"type": "object", "properties": {"line": {"type": "integer"}, "all": {"type": "boolean"}}},
)

TEXTS: list[tuple[str, dict[str, Json] | None, Json]] = [
    ("007", {"type": "string"}, "007"),
    ("true", {"type": "string"}, "true"),
    ("2", {"type": "integer"}, 2),
    (" -2 ", {"type": "integer"}, -2),
    ("2.5", {"type": "integer"}, "2.5"),
    ("2.50", {"type": "number"}, 2.5),
    ("1e3", {"type": "number"}, 1000),
    ("nan", {"type": "number"}, "nan"),
    ("Infinity", {"type": "number"}, "Infinity"),
    ("9" * 5000, {"type": "integer"}, "9" * 5000),
    ("True", {"type": "boolean"}, True),
    ("0", {"type": "boolean"}, False),
    ("yes", {"type": "boolean"}, "yes"),
    ("null", {"type": ["string", "null"]}, None),
    ("null", {"type": "string"}, "null"),
    ("123", {"type": ["integer", "string"]}, 123),
    ("1", {"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, 1),
    ('{"a":1}', {"type": "object"}, {"a": 1}),
    ("[1", {"type": "array"}, "[1"),
    ("[1]", {"oneOf": [{"type": "null"}, {"type": "array"}]}, [1]),
    ("3", {"enum": [1, 2, 3]}, 3),
    ("a", {"enum": ["a", 1]}, "a"),
    ("5", {}, "5"),
    ("5", None, 5),
    ("007", None, "007"),
    ("null", None, None),
    ("True", None, "True"),
]


@pytest.mark.parametrize(("text", "schema", "value"), TEXTS)
def test_bare_text_takes_the_type_of_its_schema(text: str, schema: dict[str, Json] | None, value: Json) -> None:
    """The first candidate type that reads the text wins; without any tool the text is JSON or itself."""
    read = typed_text(text, schema)
    assert (read, type(read)) == (value, type(value))


def test_json_strings_are_typed_and_nothing_else_is_touched() -> None:
    """``"2"`` for an integer becomes 2; values that are no strings, and unknown parameters, stay."""
    assert typed_object({"line": "2", "all": "true", "more": "3"}, (EDIT,), "edit") == {
        "line": 2,
        "all": True,
        "more": "3",
    }
    assert typed_json(2.5, {"type": "integer"}) == 2.5
    assert typed_object({"line": "2"}, (), "edit") == {"line": "2"}
    assert typed_object({"line": "two"}, (EDIT,), "edit") == {"line": "two"}


def test_what_is_not_declared_is_a_string() -> None:
    """A tool or a parameter that nobody declared has the empty schema; without any tool nothing is known."""
    assert parameter_schema((EDIT,), "edit", "line") == {"type": "integer"}
    assert parameter_schema((EDIT,), "edit", "other") == parameter_schema((EDIT,), "other", "line") == {}
    assert parameter_schema((), "edit", "line") is None


def test_schemas_without_end_and_json_that_cannot_be_recorded() -> None:
    """A schema nested without end, lone surrogates, endless digits and nesting are no trouble."""
    schema: dict[str, Json] = {"type": "integer"}
    for _ in range(500):
        schema = {"anyOf": [schema]}
    assert candidate_types(schema) == {"string"}
    for text in ('"\\ud800"', "[" * 100_000, "9" * 5000, "NaN", "{"):
        assert read_json(text) is None
