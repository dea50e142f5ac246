"""What is read of Harbor's results. Other fields are left alone: they say nothing about outcome, work or score.

Source: Harbor 0.26 ``models/job``, ``models/trial/result.py``, ``models/trial/artifact_manifest.py``,
``models/trajectories``; facts/harbor.md section 4.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError

from adapters.benchmarks.step_names import step_name
from domain.errors import ConfigurationError

LARGEST_BYTES = 256_000_000
"""Of one JSON document: trajectories hold every token id."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class ModelInfo(_Model):
    """A model."""

    name: str
    provider: str | None = None


class AgentInfo(_Model):
    """A harness."""

    name: str = Field(min_length=1)
    version: str
    model_info: ModelInfo | None = None


class OwnFacts(_Model):
    """What our own export adds, under ``metadata.synth``: what Harbor's fields have no place for."""

    reason: str = ""
    stopped: str = ""
    detail: str = ""
    tampered: bool = False
    fail_closed: bool = False
    whole: bool = False
    missing: tuple[str, ...] = ()
    calls: int = Field(default=0, ge=0)


class Metadata(_Model):
    """Where Harbor leaves room."""

    synth: OwnFacts | None = None


class AgentResult(_Model):
    """What the harness consumed."""

    n_input_tokens: int | None = Field(default=None, ge=0)
    n_output_tokens: int | None = Field(default=None, ge=0)
    metadata: Metadata | None = None


class VerifierResult(_Model):
    """The rewards."""

    rewards: dict[str, float] | None = None


class ExceptionInfo(_Model):
    """What ended a phase, by the name of its class."""

    exception_type: str
    exception_message: str = ""


class Timing(_Model):
    """When a phase ran."""

    started_at: datetime | None = None
    finished_at: datetime | None = None


class StepResult(_Model):
    """One step."""

    step_name: Annotated[str, AfterValidator(step_name)]
    agent_result: AgentResult | None = None
    verifier_result: VerifierResult | None = None
    exception_info: ExceptionInfo | None = None
    agent_execution: Timing | None = None
    verifier: Timing | None = None


class EnvironmentConfig(_Model):
    """Where a trial ran."""

    type: str | None = None
    import_path: str | None = None


class TrialConfig(_Model):
    """How a trial ran."""

    environment: EnvironmentConfig = EnvironmentConfig()


class TrialResult(_Model):
    """``result.json`` of a trial."""

    schema_version: Literal[1] = 1
    task_name: str = Field(min_length=1)
    trial_name: str
    source: str | None = None
    task_checksum: str
    config: TrialConfig
    agent_info: AgentInfo
    agent_result: AgentResult | None = None
    verifier_result: VerifierResult | None = None
    verifier_environment_mode: Literal["shared", "separate"] | None = None
    exception_info: ExceptionInfo | None = None
    started_at: datetime
    finished_at: datetime
    step_results: tuple[StepResult, ...] | None = None


class TaskLock(_Model):
    """Which task a trial was of."""

    digest: str


class TrialLock(_Model):
    """``lock.json`` of a trial."""

    task: TaskLock


class JobConfig(_Model):
    """``config.json`` of a job."""

    schema_version: Literal[1] = 1
    job_name: str = Field(min_length=1)
    n_attempts: int = Field(default=1, ge=1, le=10_000)


class JobResult(_Model):
    """``result.json`` of a job."""

    schema_version: Literal[1] = 1
    started_at: datetime
    n_total_trials: int = Field(ge=0)


class ManifestEntry(_Model):
    """One artifact that was asked for."""

    source: str
    destination: str
    status: Literal["ok", "failed", "empty", "skipped"]


class Manifest(RootModel[tuple[ManifestEntry, ...]]):
    """``artifacts/manifest.json``."""

    model_config = ConfigDict(strict=True, frozen=True)


M = TypeVar("M", bound=BaseModel)


def read_document(kind: type[M], path: Path, *, shown: str) -> M:
    """Return a document of a job.

    Args:
        kind: the model.
        path: of the file.
        shown: its path inside the job, for messages.

    Raises:
        ConfigurationError: naming the file, and the first field that is wrong.
    """
    try:
        if not path.is_file() or path.is_symlink():
            raise ConfigurationError(f"{shown}: missing, or no file", hint="is this a finished job of Harbor 0.26?")
        if path.stat().st_size > LARGEST_BYTES:
            raise ConfigurationError(f"{shown}: larger than {LARGEST_BYTES} bytes")
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise ConfigurationError(f"{shown}: {field}: {first['msg']}") from None
    except OSError as error:
        raise ConfigurationError(f"{shown}: cannot be read: {error.strerror}") from None
