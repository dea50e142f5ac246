"""An experiment as a job directory of Harbor, which ``harbor view`` and Harbor's own models read.

Our three outcomes survive: what is ungraded has no reward there, and an error of a class that Harbor does not count
as valid. Source: Harbor 0.26 ``models/job``, ``models/trial``, facts/harbor.md sections 3.2 and 4.
"""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from adapters.reports.atif import Document, stamp, trajectory
from domain.ports import Store
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import Json, digest_bytes
from domain.records.experiment import Experiment
from domain.records.profile import Profile
from domain.records.task import ObjectRef
from domain.records.trial import Interaction, StepRecord, TrialOutcome, TrialRecord

_ERRORS = {
    TrialOutcome.AGENT_TIMEOUT: "AgentTimeoutError",
    TrialOutcome.AGENT_ERROR: "NonZeroAgentExitCodeError",
    TrialOutcome.INFRA_ERROR: "RuntimeRequestError",
    TrialOutcome.CANCELLED: "CancelledError",
}
"""Names whose policy in Harbor says what the outcome says here; any other name would count as a valid score."""
_UNGRADED = "VerifierOutputParseError"
_NAME_LENGTH, _SUFFIX_LENGTH = 32, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial with all that is kept of it."""

    trial: TrialRecord
    assessment: Assessment | None
    interactions: tuple[Interaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborJob:
    """Writes the documents of one experiment."""

    experiment: Experiment
    profile: Profile
    store: Store
    harbor_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our digest of a task -> Harbor's, where it is known; a lock without it would be a lie, so there is none then."""

    @property
    def dataset(self) -> str:
        """The task set."""
        return str(self.experiment.spec.task_set)

    def job_files(self, results: Sequence[Document]) -> dict[str, bytes]:
        """Return the files at the top of the job: configuration, result, log, and a lock where every trial has one."""
        spec = self.experiment.spec
        config: Document = {
            "schema_version": 1,
            "job_name": self.experiment.experiment_id,
            "n_attempts": spec.plan.attempts,
            "n_concurrent_trials": spec.plan.concurrency,
            "agents": [self._agent()],
            "datasets": [],
        }
        ends = [str(result["finished_at"]) for result in results]
        result: Document = {
            "schema_version": 1,
            "id": _uuid(self.experiment.experiment_id),
            "started_at": stamp(self.experiment.created_ms),
            "updated_at": max(ends, default=None),
            "finished_at": max(ends, default=None),
            "n_total_trials": len(results),
            "stats": self._stats(results),
        }
        files = {"config.json": _json(config), "result.json": _json(result), "job.log": _log(results)}
        locks: list[Json] = [lock for lock in map(self._lock, results) if lock is not None]
        if len(locks) < len(results):
            return files
        lock: Document = {
            "schema_version": 3,
            "created_at": stamp(self.experiment.created_ms),
            "harbor": {},
            "n_concurrent_trials": spec.plan.concurrency,
            "retry": {"max_retries": 0},
            "trials": locks,
        }
        return {**files, "lock.json": _json(lock)}

    def trial_files(self, finished: Finished) -> tuple[Document, dict[str, bytes]]:
        """Return a trial's ``result.json`` as a document, and all files of its directory by relative path."""
        trial = finished.trial
        result = self._result(finished)
        files = {
            "config.json": _json(cast_document(result["config"])),
            "result.json": _json(result),
            "trial.log": f"{trial.outcome.value}: {trial.detail}\n".encode(),
        }
        if (lock := self._lock(result)) is not None:
            files["lock.json"] = _json(lock)
        for step in trial.steps:
            files.update(self._phase_files(f"steps/{step.name}/" if step.name else "", step, step.assessment))
        if not trial.steps:
            files.update(self._phase_files("", trial, finished.assessment))
        version = self.profile.engine_version or "0"
        made = trajectory(finished.interactions, agent=self.profile.engine, version=version, model=trial.policy)
        if made is not None:
            files["agent/trajectory.json"] = _json(made)
        return result, files

    def _phase_files(
        self, prefix: str, phase: TrialRecord | StepRecord, assessment: Assessment | None
    ) -> dict[str, bytes]:
        files = {f"{prefix}agent/{name}": content for name, content in self._members(phase.logs).items()}
        outputs = self._members(phase.outputs)
        files |= {f"{prefix}artifacts/{name}": content for name, content in outputs.items()}
        manifest: list[Json] = [
            {"source": f"/{name}", "destination": f"artifacts/{name}", "type": "file", "status": "ok"}
            for name in outputs
        ]
        manifest += [
            {"source": name, "destination": f"artifacts{name}", "type": "file", "status": "failed"}
            for name in phase.missing_artifacts
        ]
        files[f"{prefix}artifacts/manifest.json"] = _json(manifest)
        if assessment is not None:
            files |= {f"{prefix}verifier/{name}": text for name, text in self._members(assessment.logs).items()}
            if assessment.reward is not None:
                files[f"{prefix}verifier/reward.json"] = _json(_rewards(assessment))
        return files

    def _members(self, ref: ObjectRef | None) -> dict[str, bytes]:
        """Return regular files alone, at names that stay below where they are put."""
        if ref is None:
            return {}
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(self.store.get(ref))) as archive:
            for member in archive:
                parts = [part for part in member.name.split("/") if part not in {"", "."}]
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is not None and parts and ".." not in parts:
                    found["/".join(parts)] = stream.read()
        return found

    def _result(self, finished: Finished) -> Document:
        trial = finished.trial
        name = trial_name(trial)
        timing: Document = {"started_at": stamp(trial.started_ms), "finished_at": stamp(trial.ended_ms)}
        task: Document = {"path": f"tasks/{trial.task_name}", "source": self.dataset}
        info: Document = {"name": self.profile.engine, "version": self.profile.engine_version or "0"}
        if trial.policy is not None:
            info["model_info"] = {"name": trial.policy}
        return {
            "schema_version": 1,
            "id": _uuid(trial.trial_id),
            "task_name": trial.task_name,
            "trial_name": name,
            "trial_uri": f"file:///{self.experiment.experiment_id}/{name}",
            "task_id": {"path": task["path"]},
            "source": self.dataset,
            "task_checksum": trial.task_digest,
            "config": {
                "schema_version": 1,
                "task": task,
                "trial_name": name,
                "agent": self._agent(),
                "job_id": _uuid(self.experiment.experiment_id),
            },
            "agent_info": info,
            "agent_result": _usage(trial) | _own(trial, finished.assessment),
            "verifier_result": _verdict(finished.assessment),
            "verifier_environment_mode": _mode(trial),
            "exception_info": _exception(trial.outcome, trial.detail, finished.assessment, trial.ended_ms),
            **timing,
            "agent_execution": timing,
            "step_results": [_step(step) for step in trial.steps if step.name] or None,
        }

    def _lock(self, result: Document) -> Document | None:
        """Return what pins a trial. Source: Harbor 0.26 ``models/job/lock.py``."""
        digest = self.harbor_digests.get(str(result["task_checksum"]))
        if digest is None:
            return None
        config = cast_document(result["config"])
        task: Document = {
            "name": result["task_name"],
            "type": "local",
            "digest": f"sha256:{digest}",
            "source": self.dataset,
            "path": cast_document(config["task"])["path"],
        }
        return {
            "schema_version": 2,
            "task": task,
            "agent": config["agent"],
            "environment": {},
            "verifier": {"environment_mode": result["verifier_environment_mode"]},
        }

    def _agent(self) -> Document:
        policy = self.experiment.spec.policy
        return {"name": self.profile.engine, "model_name": None if policy is None else policy.name}

    def _stats(self, results: Sequence[Document]) -> Document:
        """Return Harbor's counts, by policy; only trials with a reward are in a mean, and how many stands beside."""
        evals: dict[str, list[Document]] = {}
        for result in results:
            model = cast_document(cast_document(result["agent_info"]).get("model_info")).get("name")
            key = "__".join(str(part) for part in (self.profile.engine, model, self.dataset) if part)
            evals.setdefault(key, []).append(result)
        made = {key: _eval_stats(group) for key, group in evals.items()}
        n_errors = sum(bool(_errors(result)) for result in results)
        n_cancelled = sum("CancelledError" in _errors(result) for result in results)
        return {
            "n_completed_trials": len(results),
            "n_errored_trials": n_errors,
            "n_cancelled_trials": n_cancelled,
            "evals": made,
        }


def _log(results: Sequence[Document]) -> bytes:
    lines = [f"{result['finished_at']} Trial {result['trial_name']}: {_ending(result)}\n" for result in results]
    return "".join(lines).encode()


def _ending(result: Document) -> str:
    error = cast_document(result["exception_info"])
    return f"{error['exception_type']}: {error['exception_message']}" if error else "finished"


def _eval_stats(results: Sequence[Document]) -> Document:
    by_key: dict[str, dict[str, list[str]]] = {}
    errors: dict[str, list[str]] = {}
    heads: list[float] = []
    for result in results:
        name = str(result["trial_name"])
        for kind in sorted(_errors(result)):
            errors.setdefault(kind, []).append(name)
        rewards = cast_document(cast_document(result["verifier_result"]).get("rewards"))
        for key, value in rewards.items():
            by_key.setdefault(key, {}).setdefault(str(value), []).append(name)
        if rewards:
            heads.append(float(str(rewards["reward"])))
    return {
        "n_trials": len(heads),
        "n_errors": sum(bool(_errors(result)) for result in results),
        "metrics": [{"mean": sum(heads) / len(heads)}] if heads else [],
        "reward_stats": by_key,
        "exception_stats": errors,
    }


def _errors(result: Document) -> set[str]:
    """Return the classes of what is recorded of a trial and of its steps."""
    steps = result["step_results"]
    parts = [result, *(steps if isinstance(steps, Sequence) and not isinstance(steps, str) else ())]
    found = [cast_document(cast_document(part)["exception_info"]) for part in parts]
    return {str(error["exception_type"]) for error in found if error}


def trial_name(trial: TrialRecord) -> str:
    """Return the name of a trial's directory: Harbor's form, its suffix from our id and attempt."""
    short = trial.task_name.rpartition("/")[2][:_NAME_LENGTH]
    return f"{short}__{digest_bytes(trial.trial_id.encode())[:_SUFFIX_LENGTH]}"


def _step(step: StepRecord) -> Document:
    return {
        "step_name": step.name,
        "agent_result": _own(step, step.assessment),
        "verifier_result": _verdict(step.assessment),
        "exception_info": _exception(step.outcome, step.stopped or step.detail, step.assessment, step.ended_ms),
        "agent_execution": {"started_at": stamp(step.started_ms), "finished_at": stamp(step.ended_ms)},
    }


def _usage(trial: TrialRecord) -> Document:
    usage = trial.usage
    return {"n_input_tokens": usage.n_prompt_tokens, "n_output_tokens": usage.n_sampled_tokens}


def _mode(trial: TrialRecord) -> str | None:
    """Return where the verifier ran; Harbor says it of trials without steps alone."""
    if not trial.steps:
        return "separate"
    return None if trial.steps[0].name else "shared"


def _own(phase: TrialRecord | StepRecord, assessment: Assessment | None) -> Document:
    """Return what Harbor's fields have no place for, where it leaves room; an import reads it again."""
    own: Document = {"detail": phase.detail, "whole": phase.outputs is not None, "missing": [*phase.missing_artifacts]}
    if isinstance(phase, StepRecord):
        own["stopped"] = phase.stopped
    else:
        own["calls"] = phase.usage.n_calls
    if assessment is not None:
        own["reason"] = assessment.reason
        own["tampered"] = assessment.tampered
        own["fail_closed"] = assessment.outcome is AssessmentOutcome.FAIL_CLOSED
    return {"metadata": {"synth": own}}


def _verdict(assessment: Assessment | None) -> Document | None:
    if assessment is None or assessment.reward is None:
        return None
    return {"rewards": _rewards(assessment)}


def _rewards(assessment: Assessment) -> Document:
    return {**assessment.panel, "reward": assessment.reward}


def _exception(outcome: TrialOutcome, detail: str, assessment: Assessment | None, at_ms: int) -> Document | None:
    kind = _ERRORS.get(outcome)
    if kind is None and assessment is not None and assessment.reward is None:
        kind, detail = _UNGRADED, assessment.reason
    if kind is None:
        return None
    return {
        "exception_type": kind,
        "exception_message": detail,
        "exception_traceback": "",
        "occurred_at": stamp(at_ms),
    }


def cast_document(value: Json) -> Document:
    """Return a JSON object as one."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items()}


def _uuid(text: str) -> str:
    return str(UUID(digest_bytes(text.encode())[:32]))


def _json(value: Json) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
