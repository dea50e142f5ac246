"""What a task's files give away, and what they leave open."""

import pytest

from domain.lifecycle.preflight import foreign_line_ends, leaks, unpinned_images
from domain.records.archive import pack_files
from domain.records.task import ObjectRef, Phase, Task, TaskEnvironment

SOLUTION = b"#!/bin/bash\nset -euo pipefail\nsort -k2,2n /app/in.csv | head -n 7 > /app/out.csv\n"
TESTS = b"import sys\nassert open('/app/out.csv').read() == EXPECTED_SEVEN\n"


def task(instruction: str = "Sort it.", **environment: str) -> Task:
    """Return a task without files."""
    return Task(
        name="t/x",
        digest="0" * 64,
        instruction=instruction,
        archive=ObjectRef(digest="0" * 64, size_bytes=0),
        environment=TaskEnvironment(**environment),  # type: ignore[arg-type]
        agent=Phase(),
        verifier=Phase(),
    )


def archive(**visible: bytes) -> bytes:
    """Return a task directory with these files in ``environment/``."""
    files = {f"environment/{name.replace('__', '/')}": content for name, content in visible.items()}
    return pack_files({"solution/solve.sh": SOLUTION, "tests/check.py": TESTS, **files})


def test_a_clean_task_leaks_nothing() -> None:
    """Short common lines, comments and expected data that equals an input are no leaks."""
    shared = b"#!/bin/bash\nset -euo pipefail\nimport sys\n# sort -k2,2n /app/in.csv | head -n 7 > /app/out.csv\n"
    assert list(leaks(task(), archive(run=shared))) == []


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"notes": b"x\n  sort -k2,2n /app/in.csv | head -n 7 > /app/out.csv\n"}, "solution/solve.sh"),
        ({"docs__old": b"assert open('/app/out.csv').read() == EXPECTED_SEVEN\n"}, "tests/check.py"),
        ({"tests__a": b"1"}, "would hold"),
        ({"solution__a": b"1"}, "would hold"),
    ],
)
def test_what_the_agent_could_read_is_named(files: dict[str, bytes], where: str) -> None:
    """A line of the solution or of the tests, or their directory, in the agent's image is named with its file."""
    (found,) = leaks(task(), archive(**files))
    assert found.startswith("environment/")
    assert where in found


def test_what_the_instruction_says_is_no_secret() -> None:
    """An instruction may tell the very command."""
    said = task(instruction="Run sort -k2,2n /app/in.csv | head -n 7 > /app/out.csv")
    assert list(leaks(said, archive(notes=b"sort -k2,2n /app/in.csv | head -n 7 > /app/out.csv"))) == []


def test_images_without_a_digest_are_named() -> None:
    """Every stage counts, a stage's own name does not, and scratch is nothing."""
    pinned = b"FROM debian@sha256:" + b"0" * 64 + b" AS base\nFROM base\nFROM scratch\n"
    assert list(unpinned_images(task(), archive(Dockerfile=pinned))) == []
    loose = b"from --platform=linux/amd64 python:3.12 as b\nFROM b\nRUN echo FROM x\nFROM debian\n"
    assert list(unpinned_images(task(docker_image="debian:12"), archive(Dockerfile=loose))) == [
        "environment.docker_image = 'debian:12' has no digest",
        "environment/Dockerfile: FROM python:3.12 has no digest",
        "environment/Dockerfile: FROM debian has no digest",
    ]


PATCH = (
    b"--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n def total(values: list) -> int:\n"
    b"-    return sum(values) + 1  # wrong\n+    return sum(values) if values else 0\n"
)


@pytest.mark.parametrize("ending", ["patch", "diff"])
def test_what_a_patch_adds_is_a_secret_and_what_it_removes_is_not(ending: str) -> None:
    """Lines removed or shown around are the code that the agent is given."""
    given = b"def total(values: list) -> int:\n    return sum(values) + 1  # wrong\n"
    told = b"    return sum(values) if values else 0\n"
    hidden = {f"solution/fix.{ending}": PATCH, "tests/test.sh": b"true\n"}
    assert list(leaks(task(), pack_files({**hidden, "environment/x.py": given}))) == []
    for name, content in {"environment/y.py": told, f"environment/fix.{ending}": PATCH}.items():
        (found,) = leaks(task(), pack_files({**hidden, name: content}))
        assert found.startswith(f"{name}: holds a line of solution/fix.{ending}")


def test_a_patched_file_may_have_an_added_line_elsewhere() -> None:
    """One of two is common code; both of them are the patch."""
    added = ["    for span in self._spans:", "    return merged(self._spans, other)"]
    patch = "--- a/p/x.py\n+++ b/p/x.py\n@@ -1 +1,3 @@\n x\n" + "".join(f"+{line}\n" for line in added)
    hidden = {"solution/gold.patch": patch.encode(), "tests/test.sh": b"true\n"}
    for lines, n_found in ((added[:1], 0), (added, 2)):
        content = "\n".join(lines).encode()
        assert len(list(leaks(task(), pack_files({**hidden, "environment/repo/p/x.py": content})))) == n_found
        elsewhere = list(leaks(task(), pack_files({**hidden, "environment/repo/other.py": content})))
        assert len(elsewhere) == len(lines)


def test_texts_of_another_system_are_named() -> None:
    """Data may have any line ends; what a shell or Harbor reads may not."""
    files = {"tests/test.sh": b"true\r\n", "instruction.md": b"\xef\xbb\xbfDo.\n", "environment/in.csv": b"a\r\n"}
    assert list(foreign_line_ends(pack_files(files))) == [
        "instruction.md: starts with a byte order mark",
        "tests/test.sh: has CRLF line ends",
    ]
