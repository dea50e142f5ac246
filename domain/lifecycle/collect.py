"""What a trial leaves: declared artifacts or the working directory, and logs. Taken after every process is dead."""

from domain.errors import NotFoundError
from domain.ports import Box, CommandResult
from domain.records.archive import merge_archives, pack_files, place
from domain.records.profile import Profile
from domain.records.task import Task


async def collect_outputs(box: Box, task: Task, profile: Profile) -> tuple[bytes, tuple[str, ...]]:
    """Return a tar with names relative to ``/``, and the declared paths that are missing.

    Raises:
        SandboxError: a path leaves the box or is no file: the caller treats the outputs as tampered with.
    """
    declared = [artifact.source for artifact in task.artifacts]
    if not declared:
        declared = [profile.workdir or task.environment.workdir]
    parts: dict[str, bytes] = {}
    missing: list[str] = []
    for path in dict.fromkeys([*declared, *profile.required_outputs]):
        absolute = path if path.startswith("/") else f"{task.environment.workdir.rstrip('/')}/{path}"
        try:
            parts[absolute] = await box.download(absolute)
        except NotFoundError:
            missing.append(absolute)
    return place(parts), tuple(missing)


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
