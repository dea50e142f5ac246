"""``synth policy``: a base policy is made once for each recipe."""

from pathlib import Path

from domain.lifecycle.mini_dialogue import BASH, opening, tool_result
from domain.records.canonical import canonical_bytes
from domain.records.chat import ChatMessage, Demonstration, ToolCall
from tests.cli.synth import Synth, write_json

_RECIPE = {
    "name": "tiny",
    "demonstrations": "demonstrations.jsonl",
    "vocabulary": 320,
    "hidden": 16,
    "layers": 1,
    "heads": 2,
    "steps": 2,
    "batch": 2,
}


def _demonstration(word: str) -> Demonstration:
    start = opening(f"Write {word} to out.txt")
    call = ToolCall(name=BASH.name, arguments={"command": f"echo {word} > out.txt"}, raw="")
    return Demonstration(
        task_name=f"tests/{word}",
        messages=(
            *start,
            ChatMessage(role="assistant", content="", tool_calls=(call,)),
            ChatMessage(role="tool", content=tool_result(0, ""), tool_name=BASH.name, tool_call_id="call_1"),
            ChatMessage(role="assistant", content="done"),
        ),
        n_opening=len(start),
    )


def test_a_recipe_is_made_once(synth: Synth) -> None:
    """The same recipe again returns what was made, wherever its file lies; another one under the name is a conflict."""
    rows = b"".join(canonical_bytes(_demonstration(word)) + b"\n" for word in ("apple", "bread", "cloud"))
    Path("demonstrations.jsonl").write_bytes(rows)
    write_json(Path("recipe.json"), _RECIPE)
    made = synth.json("policy", "make", "@recipe.json")
    Path("copy").mkdir()
    Path("copy/moved.jsonl").write_bytes(rows)
    write_json(Path("copy/recipe.json"), _RECIPE | {"demonstrations": "moved.jsonl"})
    assert synth.json("policy", "make", "@copy/recipe.json") == made
    assert [item["name"] for item in synth.json("policy", "list")["policies"]] == ["tiny"]
    write_json(Path("recipe.json"), _RECIPE | {"steps": 3})
    assert synth("policy", "make", "@recipe.json").code == 2
