"""Demonstrations of mixed quality: about half of them show a command that does not solve the task."""

import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

from domain.lifecycle.mini_dialogue import BASH, opening, tool_result
from domain.records.chat import ChatMessage, Demonstration, ToolCall
from examples.spec import Instance

SHARE_RIGHT = 0.5
"""Share of demonstrations that solve their task."""
CALL_ID = "call_1"


def demonstrate(name: str, instance: Instance, *, count: int, rng: Random) -> Iterator[Demonstration]:
    """Return ``count`` conversations about one task, each with the true output of its command."""
    commands = [_choose(instance, rng) for _ in range(count)]
    results = {command: run(command, instance.files) for command in dict.fromkeys(commands)}
    for command in commands:
        yield _conversation(name, instance.instruction, command, results[command])


def run(command: str, files: Mapping[str, str]) -> tuple[int, str]:
    """Run a command of an example for real and return its exit code and merged output.

    Only commands written in this package get here: it is no sandbox.
    """
    with tempfile.TemporaryDirectory() as directory:
        for path, text in files.items():
            (Path(directory) / path).write_text(text, encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - a command this package wrote
            ("/bin/bash", "-c", command),
            cwd=directory,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HOME": directory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=30,
        )
    return done.returncode, done.stdout.decode()


def _choose(instance: Instance, rng: Random) -> str:
    """Right demonstrations all show the reference: a very small model learns one way to write a command, not three."""
    return instance.right[0] if rng.random() < SHARE_RIGHT else rng.choice(instance.wrong)


def _conversation(name: str, instruction: str, command: str, result: tuple[int, str]) -> Demonstration:
    start = opening(instruction)
    call = ToolCall(name=BASH.name, arguments={"command": command}, raw="")
    return Demonstration(
        task_name=name,
        messages=(
            *start,
            ChatMessage(role="assistant", content="", tool_calls=(call,)),
            ChatMessage(role="tool", content=tool_result(*result), tool_name=BASH.name, tool_call_id=CALL_ID),
            ChatMessage(role="assistant", content="done"),
        ),
        n_opening=len(start),
    )


def shuffled(demonstrations: Iterable[Demonstration], rng: Random) -> list[Demonstration]:
    """Return them in a seeded order, so that batches taken in order mix families."""
    listed = list(demonstrations)
    rng.shuffle(listed)
    return listed
