"""What a trial leaves: declared artifacts or the working directory, and logs. Taken after every process is dead."""

import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from domain.errors import BoxContentError, NotFoundError, SandboxError
from domain.lifecycle.compose_rules import MAIN
from domain.ports import Box, Command, CommandResult, HasServices
from domain.records.archive import merge_archives, pack_files, paths, place
from domain.records.profile import Profile
from domain.records.task import Task

CONVENTION = "/logs/artifacts"
"""Collected whether declared or not. Source: Harbor 0.26 ``models/trial/paths.py``."""

_ANY_SHELL = 'command -v bash >/dev/null && exec bash -c "$0"; exec /bin/sh -c "$0"'
"""An agent's box has bash; another service may have less."""


async def collect_outputs(box: Box, task: Task, profile: Profile) -> tuple[bytes, tuple[str, ...]]:
    """Return a tar with names relative to ``/``, and the declared paths that are missing.

    Raises:
        BoxContentError: a path leaves the box or is no file: the caller treats the outputs as tampered with.
        SandboxError: the box failed.
    """
    excluded = {artifact.source: artifact.exclude for artifact in task.artifacts}
    services = {artifact.source: artifact.service for artifact in task.artifacts}
    declared = list(excluded)
    if not declared:
        declared = [profile.workdir or task.environment.workdir]
    parts: dict[str, bytes] = {}
    missing: list[str] = []
    for path in dict.fromkeys([*declared, *profile.required_outputs]):
        absolute = path if path.startswith("/") else f"{task.environment.workdir.rstrip('/')}/{path}"
        try:
            owner = await _in_service(box, services.get(path))
            parts[absolute] = without(await owner.download(absolute), excluded.get(path, ()))
        except NotFoundError:
            missing.append(absolute)
    await _add_convention(box, parts, excluded)
    return place(parts), tuple(missing)


async def _in_service(box: Box, name: str | None) -> Box:
    """Return where a service's files and commands are; the agent's own box for none, and for ``main``.

    Raises:
        SandboxError: the box has no such service, or it has ended.
    """
    if name in {None, MAIN}:
        return box
    if not isinstance(box, HasServices):
        raise SandboxError(f"service {name!r}: this box has no services", hint="admission names this before it runs")
    return await box.service(str(name))


async def _add_convention(box: Box, parts: dict[str, bytes], excluded: Mapping[str, tuple[str, ...]]) -> None:
    """Add what lies at the place where agents publish without a declaration."""
    if CONVENTION in parts:
        return
    with suppress(NotFoundError):
        published = without(await box.download(CONVENTION), excluded.get(CONVENTION, ()))
        if paths(published):
            parts[CONVENTION] = published


async def collect_logs(box: Box, transcript: tuple[CommandResult, ...], *, with_directory: bool) -> bytes:
    """Return a tar of the harness's output, and of /logs/agent when the harness writes there."""
    files: dict[str, bytes] = {}
    for number, result in enumerate(transcript):
        files[f"{number}.stdout"] = result.stdout
        files[f"{number}.stderr"] = result.stderr
    parts = {"": pack_files(files)}
    if with_directory:
        try:
            parts["agent"] = await box.download("/logs/agent")
        except NotFoundError:
            return parts[""]
    return merge_archives(parts)


async def run_hooks(box: Box, task: Task) -> str:
    """Run the task's collect hooks and say which of them failed; empty: none.

    A hook that fails settles nothing: what it should have written is missing, and that is graded as such. It runs
    as the user it declares, bounded, when everything the agent started is dead.

    Raises:
        SandboxError: the box failed.
    """
    failed: list[str] = []
    for hook in task.collect:
        own = hook.service == MAIN
        where = await _in_service(box, hook.service)
        result = await where.exec(
            Command(
                argv=("bash", "-c", hook.command) if own else ("/bin/sh", "-c", _ANY_SHELL, hook.command),
                cwd=task.environment.workdir if own else "/",
                env=task.environment.env,
                timeout_s=hook.timeout_s,
                user=hook.user,
            )
        )
        if result.exit_code != 0:
            how = f"did not end within {hook.timeout_s:g} s" if result.timed_out else f"ended with {result.exit_code}"
            failed.append(f"collect hook {hook.command!r} {how}")
    return "; ".join(failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What was taken out of a box."""

    archive: bytes | None = None
    missing: tuple[str, ...] = ()
    problem: str = ""
    """Why there is no archive: something there cannot be an honest output."""


async def collect_surely(box: Box, task: Task, profile: Profile) -> Outputs:
    """Collect, and once more when it failed in a box that still answers.

    What cannot be taken out because of what it is was the agent's doing; any other failure is no verdict on it.

    Raises:
        SandboxError: the box no longer answers, or its files cannot be copied: infrastructure.
    """
    with suppress(SandboxError):
        archive, missing = await collect_outputs(box, task, profile)
        return Outputs(archive=archive, missing=missing)
    await box.exec(Command(argv=("true",)))
    try:
        archive, missing = await collect_outputs(box, task, profile)
    except BoxContentError as error:
        return Outputs(problem=error.message)
    return Outputs(archive=archive, missing=missing)


def without(archive: bytes, patterns: tuple[str, ...]) -> bytes:
    """Return a download without what ``tar --exclude`` would leave out.

    A pattern matches from any component of a path on, ``*`` crosses slashes, and a directory takes what is below it
    along. Source: GNU tar manual, section 6.5, the defaults of ``--exclude``.
    """
    if not patterns:
        return archive
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in source:
            if not _excluded(member.name, patterns):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def _excluded(name: str, patterns: tuple[str, ...]) -> bool:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    return any(
        fnmatchcase("/".join(parts[start:end]), pattern.strip("/").removeprefix("./"))
        for end in range(1, len(parts) + 1)
        for start in range(end)
        for pattern in patterns
    )
