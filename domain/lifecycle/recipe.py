"""The one interpreter of profiles: recipe and task in, uploads and commands out, over any Sandbox."""

from dataclasses import dataclass, replace

from domain.errors import AgentError
from domain.ports import Box, Clock, Command, CommandResult, Launch, Upload
from domain.records.archive import pack_files, subtree
from domain.records.profile import Profile
from domain.records.task import Task
from domain.records.trial import TrialOutcome

SETUP_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the agent phase ended, and what it printed."""

    outcome: TrialOutcome
    detail: str
    transcript: tuple[CommandResult, ...]


def preparation(profile: Profile, task: Task, archive: bytes) -> tuple[Upload, ...]:
    """Return what goes into a fresh box before the harness: the task's own files, then the profile's."""
    workdir = profile.workdir or task.environment.workdir
    uploads: list[Upload] = []
    if task.environment.host_files is not None:
        uploads.append(Upload(tar=subtree(archive, task.environment.host_files), target=task.environment.workdir))
    for target, relative in ((workdir, False), ("/", True)):
        chosen = [file for file in profile.files if file.path.startswith("/") is relative]
        if chosen:
            uploads.append(
                Upload(
                    tar=pack_files(
                        {file.path.lstrip("/"): file.content.encode() for file in chosen},
                        executable=frozenset(file.path.lstrip("/") for file in chosen if file.executable),
                    ),
                    target=target,
                )
            )
    return tuple(uploads)


async def run_recipe(box: Box, clock: Clock, profile: Profile, task: Task, launch: Launch, limit_s: float) -> Ending:
    """Set the profile up in the box and run its harness within the agent phase's limit.

    Raises:
        AgentError: a setup command failed: the recipe is broken, whatever the model would do.
        SandboxError: the box failed.
    """
    environment = {**task.environment.env, **profile.environment}
    workdir = profile.workdir or task.environment.workdir
    started_s = clock.monotonic_s()
    for line in profile.setup:
        setup = Command(argv=("sh", "-c", line), cwd=workdir, env=environment, timeout_s=SETUP_TIMEOUT_S)
        result = await box.exec(setup)
        if result.exit_code != 0:
            raise AgentError(f"profile {profile.name!r}: setup: {line!r} ended with {result.exit_code}")
    for upload in launch.uploads:
        await box.upload(upload.tar, upload.target)
    transcript: list[CommandResult] = []
    for command in launch.commands:
        left_s = limit_s - (clock.monotonic_s() - started_s)
        if left_s <= 0:
            return Ending(outcome=TrialOutcome.AGENT_TIMEOUT, detail="no time left", transcript=tuple(transcript))
        result = await box.exec(
            replace(
                command,
                cwd=command.cwd or workdir,
                env={**environment, **command.env},
                user=command.user or task.agent.user,
                timeout_s=left_s,
            )
        )
        transcript.append(result)
        if (ending := _ended_badly(result)) is not None:
            return Ending(outcome=ending[0], detail=ending[1], transcript=tuple(transcript))
    return Ending(outcome=TrialOutcome.COMPLETED, detail="", transcript=tuple(transcript))


def _ended_badly(result: CommandResult) -> tuple[TrialOutcome, str] | None:
    if result.timed_out:
        return TrialOutcome.AGENT_TIMEOUT, f"time-out after {result.duration_s:.1f} s"
    if result.limit_exceeded is not None:
        return TrialOutcome.AGENT_ERROR, f"over its {result.limit_exceeded} limit"
    if result.exit_code != 0:
        last_line = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return TrialOutcome.AGENT_ERROR, f"exit code {result.exit_code}: {last_line}".rstrip(": ")
    return None
