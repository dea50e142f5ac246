"""A step as a task of its own: what engine, collector and verifier see of it."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace

from domain.records.archive import paths, subtree
from domain.records.task import Step, Task

SETUP = "setup.sh"


def step_view(task: Task, step: Step) -> Task:
    """Return the task that one step amounts to, in the same environment; its archive is :func:`step_archive`."""
    return replace(
        task,
        instruction=step.instruction,
        agent=step.agent,
        verifier=step.verifier,
        artifacts=step.artifacts,
        collect=step.collect,
        verifier_mode=step.verifier_mode,
        verifier_environment=step.verifier_environment,
        verifier_network=step.verifier_network,
        bundles_tests=step.bundles_tests,
        steps=(),
    )


def step_archive(archive: bytes, step: Step) -> bytes:
    """Return a task's archive as one step sees it.

    The step's tests lie over the shared ones; its solution, if it has one, is there instead of the shared one.
    Source: Harbor 0.26, facts/harbor.md section 1.1.
    """
    inside = subtree(archive, f"steps/{step.name}")
    solution = inside if "solution/solve.sh" in paths(inside) else archive
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        _copy(archive, target, "", lambda name: name.split("/")[0] not in {"tests", "solution", "steps"})
        _copy(subtree(solution, "solution"), target, "solution/", lambda _: True)
        above = subtree(inside, "tests")
        replaced = set(_names(above))
        _copy(subtree(archive, "tests"), target, "tests/", lambda name: name not in replaced)
        _copy(above, target, "tests/", lambda _: True)
    return out.getvalue()


def step_files(archive: bytes, step: Step) -> tuple[bytes, bool]:
    """Return what goes into the working directory before the step, and whether a set-up script is in it."""
    files = subtree(archive, f"steps/{step.name}/workdir")
    return files, SETUP in paths(files)


def _names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
        return source.getnames()


def _copy(archive: bytes, target: tarfile.TarFile, prefix: str, keep: Callable[[str], bool]) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
        for member in source:
            if keep(member.name):
                stream = source.extractfile(member) if member.isreg() else None
                member.name = prefix + member.name
                member.pax_headers = {}
                target.addfile(member, stream)
