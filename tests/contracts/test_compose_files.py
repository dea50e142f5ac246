"""Compose files as people write them: read strictly, and refused with the file's name before anything runs."""

from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from domain.errors import TaskError
from tests.fakes.platform import write_task

_GOOD = "services:\n  main: {image: debian}\n  db: {image: debian, command: sleep 9}\n"


def _read(directory: Path, compose: str, more: str = "", place: str = "environment") -> None:
    task = write_task(directory, "t")
    (task / place).mkdir(exist_ok=True)
    (task / place / "docker-compose.yaml").write_text(compose)
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(more + text)
    list(HarborTaskSource().read(str(directory), host_runnable=False))


def test_a_task_may_have_services(tmp_path: Path) -> None:
    """Artifacts and hooks may name them."""
    _read(tmp_path, _GOOD, 'artifacts = [{source = "/a", service = "db"}, "/b"]\n')


_BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize(
    ("compose", "more", "words"),
    [
        ("services: [", "", "no YAML"),
        ("- a", "", "no mapping"),
        ("services:\n  main: {image: a}\n  main: {image: b}\n", "", "'main' is there twice"),
        (f"{_BOMB}services: {{main: {{image: a}}}}\n", "", "once its aliases are written out"),
        ("services: {main: {image: a, privileged: true}}", "", "services.main.privileged"),
        ("services: {main: {image: '${SECRET}'}}", "", r"\$\{SECRET\}"),
        (_GOOD, 'artifacts = [{source = "/a", service = "cache"}]\n', "'cache' is no service"),
        (_GOOD, 'artifacts = [{source = "/a", service = "db"}, "/a"]\n', "of two services"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, compose: str, more: str, words: str) -> None:
    """The message has the file and the field."""
    with pytest.raises(TaskError, match=words):
        _read(tmp_path, compose, more)


def test_a_verifiers_services_are_read_as_strictly(tmp_path: Path) -> None:
    """``tests/docker-compose.yaml`` makes the verifier's box."""
    with pytest.raises(TaskError, match=r"tests/docker-compose.yaml: services.main.privileged"):
        _read(tmp_path, "services: {main: {image: a, privileged: true}}", place="tests")
