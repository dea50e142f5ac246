"""A job directory of Harbor, or one that ``synth run export`` wrote, read whole before anything comes of it.

Source: Harbor 0.26 ``models/job``, ``models/trial``; facts/harbor.md section 4.
"""

import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from adapters.benchmarks.harbor_job_files import CONVENTION, digest_tree, phase_files, read_manifest
from adapters.benchmarks.harbor_job_schema import (
    AgentResult,
    ExceptionInfo,
    JobConfig,
    JobResult,
    ManifestEntry,
    OwnFacts,
    StepResult,
    Timing,
    TrialLock,
    TrialResult,
    VerifierResult,
    read_document,
)
from adapters.benchmarks.harbor_outcomes import is_of_the_verifier, outcome_of
from adapters.benchmarks.harbor_trajectory import interactions, n_calls, read_trajectories
from domain.errors import ConfigurationError
from domain.ports.foreign import ForeignJob, ForeignPhase, ForeignTrial
from domain.records.canonical import digest_bytes, digest_of
from domain.records.trial import Interaction, TrialOutcome

_TRAJECTORY = "agent/trajectory.json"
_MOST_PROBLEMS = 10
_HASHED = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_HASHED_BELOW = ("environment/", "tests/", "solution/", "steps/")


def read_job(directory: Path) -> ForeignJob:
    """Return a finished job; outputs, logs and trajectories are read again when they are asked for.

    Raises:
        ConfigurationError: naming file and field of every trial that cannot be read; nothing is left out silently.
    """
    config = read_document(JobConfig, directory / "config.json", shown=f"{directory}/config.json")
    result = read_document(JobResult, directory / "result.json", shown=f"{directory}/result.json")
    found: list[ForeignTrial] = []
    sources: set[str | None] = set()
    problems: list[str] = []
    digests: dict[str, str] = {}
    for place in sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()):
        try:
            digests[place.name] = digest_tree(place)
            reader = _Trial.open(place)
            found.append(reader.read())
            sources.add(reader.result.source)
        except ConfigurationError as error:
            problems.append(str(error))
    if not found and not problems:
        problems.append(f"{directory}: holds no trial")
    if problems:
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise ConfigurationError("; ".join(problems[:_MOST_PROBLEMS]) + more, hint="nothing was imported")
    return ForeignJob(
        name=config.job_name,
        where=str(directory),
        digest=digest_of({"job": config.job_name, "attempts": config.n_attempts, "trials": digests}),
        tool="harbor",
        dataset=sources.pop() if len(sources) == 1 else None,
        n_attempts=config.n_attempts,
        created_ms=_milliseconds(result.started_at),
        trials=tuple(found),
    )


def task_digests(archive: bytes) -> frozenset[str]:
    """Return by which digest Harbor knows a task's content; empty where links or an ignore list of its own decide.

    Source: Harbor 0.26 ``publisher/packager.py:Packager.compute_content_hash``; facts/harbor.md section 5.1.
    """
    found: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
        for member in source:
            stream = source.extractfile(member) if member.isreg() else None
            if member.name == ".gitignore" or (stream is None and not member.isdir()):
                return frozenset()
            if stream is not None and (member.name in _HASHED or member.name.startswith(_HASHED_BELOW)):
                found[member.name] = digest_bytes(stream.read())
    lines = "".join(f"{name}\0{found[name]}\n" for name in sorted(found))
    return frozenset({digest_bytes(lines.encode())})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One trial directory."""

    place: Path
    result: TrialResult

    @classmethod
    def open(cls, place: Path) -> "_Trial":
        """Read the result. Raises ConfigurationError."""
        shown = f"{place.name}/result.json"
        result = read_document(TrialResult, place / "result.json", shown=shown)
        if result.trial_name != place.name:
            raise ConfigurationError(f"{shown}: trial_name: {result.trial_name!r} is not its directory")
        return cls(place=place, result=result)

    def read(self) -> ForeignTrial:
        """Return the trial. Raises ConfigurationError."""
        result, name = self.result, self.place.name
        stepped = result.step_results is not None
        phases = self._steps(result.step_results or ()) if stepped else (self._only(),)
        files = self._trajectories()
        trajectories = read_trajectories(files)
        outcome, detail = self._ending(phases)
        model = result.agent_info.model_info
        usage = result.agent_result or AgentResult()
        return ForeignTrial(
            name=name,
            task_name=result.task_name,
            task_digests=self._task_digests(),
            agent=result.agent_info.name,
            agent_version=result.agent_info.version,
            model=None if model is None else "/".join(part for part in (model.provider, model.name) if part),
            sandbox=f"harbor:{result.config.environment.type or result.config.environment.import_path or 'unknown'}",
            outcome=outcome,
            detail=detail,
            phases=phases,
            started_ms=_milliseconds(result.started_at),
            ended_ms=_milliseconds(result.finished_at),
            n_calls=n_calls(trajectories) or _own(usage).calls,
            n_prompt_tokens=self._tokens("n_input_tokens"),
            n_sampled_tokens=self._tokens("n_output_tokens"),
            interactions=partial(_interactions, files),
        )

    def _task_digests(self) -> frozenset[str]:
        lock = self.place / "lock.json"
        found = {self.result.task_checksum}
        if os.path.lexists(lock):
            digest = read_document(TrialLock, lock, shown=f"{self.place.name}/lock.json").task.digest
            found.add(digest.removeprefix("sha256:"))
        return frozenset(found)

    def _tokens(self, field: str) -> int:
        """Return the trial's count, or the sum of its steps'."""
        parts = [self.result.agent_result, *(step.agent_result for step in self.result.step_results or ())]
        return sum(getattr(part, field) or 0 for part in parts if part is not None)

    def _trajectories(self) -> list[tuple[Path, str]]:
        names = [_TRAJECTORY, *(f"steps/{step.step_name}/{_TRAJECTORY}" for step in self.result.step_results or ())]
        return [
            (self.place / name, f"{self.place.name}/{name}") for name in names if os.path.lexists(self.place / name)
        ]

    def _ending(self, phases: Sequence[ForeignPhase]) -> tuple[TrialOutcome, str]:
        """Return how the trial ended: as it says itself, else as its first phase that did not just complete."""
        exception, own = self.result.exception_info, _own(self.result.agent_result or AgentResult()).detail
        if exception is not None and outcome_of(exception.exception_type) is not TrialOutcome.COMPLETED:
            return outcome_of(exception.exception_type), own or _words(exception)
        bad = next((phase for phase in phases if phase.outcome is not TrialOutcome.COMPLETED), None)
        if bad is not None:
            return bad.outcome, own or bad.detail
        if not phases:
            return TrialOutcome.INFRA_ERROR, "no step of the trial ran"
        return TrialOutcome.COMPLETED, own or phases[-1].stopped or phases[-1].detail

    def _only(self) -> ForeignPhase:
        result = self.result
        return self._phase(
            "",
            result.agent_result,
            result.verifier_result,
            result.exception_info,
            Timing(started_at=result.started_at, finished_at=result.finished_at),
        )

    def _steps(self, steps: Sequence[StepResult]) -> tuple[ForeignPhase, ...]:
        names = [step.step_name for step in steps]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"{self.place.name}/result.json: step_results: a step is there twice")
        return tuple(
            self._phase(
                step.step_name,
                step.agent_result,
                step.verifier_result,
                step.exception_info,
                step.agent_execution or Timing(),
            )
            for step in steps
        )

    def _phase(
        self,
        name: str,
        usage: AgentResult | None,
        verdict: VerifierResult | None,
        exception: ExceptionInfo | None,
        timing: Timing,
    ) -> ForeignPhase:
        where = f"steps/{name}" if name else ""
        place = self.place / where
        entries = read_manifest(place, f"{self.place.name}/{where}".rstrip("/"))
        kind = None if exception is None else exception.exception_type
        own = _own(usage or AgentResult())
        is_ours = usage is not None and usage.metadata is not None and usage.metadata.synth is not None
        words = "" if exception is None else _words(exception)
        of_verifier = is_of_the_verifier(kind)
        return ForeignPhase(
            name=name,
            outcome=outcome_of(kind),
            detail=own.detail or ("" if of_verifier else words),
            rewards=None if verdict is None else verdict.rewards,
            ungraded=words if of_verifier else "",
            is_shared=self.result.verifier_environment_mode == "shared",
            lost=() if is_ours else _lost(entries),
            missing=own.missing,
            is_whole=own.whole,
            reason=own.reason,
            stopped=own.stopped,
            is_tampered=own.tampered,
            is_fail_closed=own.fail_closed,
            started_ms=_milliseconds(timing.started_at or self.result.started_at),
            ended_ms=_milliseconds(timing.finished_at or self.result.finished_at),
            files=partial(phase_files, place, entries),
        )


def _interactions(files: Sequence[tuple[Path, str]], trial_id: str) -> tuple[Interaction, ...]:
    return interactions(read_trajectories(files), trial_id)


def _own(usage: AgentResult) -> OwnFacts:
    own = usage.metadata.synth if usage.metadata is not None else None
    return own or OwnFacts()


def _lost(entries: Sequence[ManifestEntry]) -> tuple[str, ...]:
    """Return declared artifacts that were not collected: Harbor does not tell a missing one from a failed copy."""
    bad = {"failed", "skipped"}
    return tuple(entry.source for entry in entries if entry.status in bad and entry.source.rstrip("/") != CONVENTION)


def _words(exception: ExceptionInfo) -> str:
    first = exception.exception_message.strip().partition("\n")[0]
    return f"{exception.exception_type}: {first}".removesuffix(": ")


def _milliseconds(at: datetime) -> int:
    """Return a time; where Harbor writes no zone, it is that of the machine."""
    return int(at.timestamp() * 1000)
