"""The fields of Harbor's ``task.toml``, read strictly: an unknown field or a wrong type is an error with its name.

Harbor itself ignores unknown keys and drops integer ``memory``; both have made tasks run with other limits than
their authors wrote. Source: Harbor 0.26 ``models/task/config.py``, schema 1.0 to 1.4.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_SIZE = re.compile(r"^(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>[KMGT])i?B?$", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_TASK_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")


def _mebibytes(value: object) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('write a string with a unit such as "8G", or use memory_mb / storage_mb in MiB')
    return round(float(match["number"]) * _MEBIBYTES[match["unit"].upper()])


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


LegacySize = Annotated[int, BeforeValidator(_mebibytes)]
"""A string such as ``"8G"``, as MiB."""
User = Annotated[str, BeforeValidator(_user), Field(pattern=r"^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,5})$")]
"""A user name or number."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Network = Literal["public", "no-network", "allowlist"]


class Strict(BaseModel):
    """Base of every table: unknown fields and coerced types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Author(Strict):
    """Who wrote the task."""

    name: str
    email: str | None = None


class TaskTable(Strict):
    """``[task]``."""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    @field_validator("name")
    @classmethod
    def _organised(cls, name: str) -> str:
        if ".." in name or _TASK_NAME.match(name) is None:
            raise ValueError("write org/name with letters, digits, '.', '_' and '-'")
        return name


class AgentTable(Strict):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    user: User | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(Strict):
    """``healthcheck`` of an environment."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: Seconds = 5.0
    retries: int = 3


class EnvironmentTable(Strict):
    """``[environment]`` and ``[verifier.environment]``."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    memory: LegacySize | None = None
    storage: LegacySize | None = None
    allow_internet: bool | None = None
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: dict[str, str] | None = None
    mcp_servers: list[dict[str, object]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = Field(default=None, pattern=r"^/[^\x00]*$")
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _one_network(self) -> "EnvironmentTable":
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        if self.network_mode == "allowlist" and not self.allowed_hosts:
            raise ValueError("network_mode = 'allowlist' needs allowed_hosts")
        if self.workdir is not None and ".." in self.workdir.split("/"):
            raise ValueError("workdir must not contain '..'")
        return self

    def mode(self) -> Network:
        """Return the network mode with the legacy flag applied."""
        if self.network_mode is not None:
            return self.network_mode
        return "no-network" if self.allow_internet is False else "public"


class Collect(Strict):
    """``[[verifier.collect]]``."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierTable(Strict):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> "VerifierTable":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' and [verifier.environment] exclude each other")
        return self


class SolutionTable(Strict):
    """``[solution]``."""

    env: dict[str, str] = {}


class ArtifactTable(Strict):
    """An entry of ``artifacts`` written as a table."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="after")
    def _inside(self) -> "ArtifactTable":
        if not self.source or ".." in self.source.split("/"):
            raise ValueError("source must be a path without '..'")
        where = self.destination
        if where is not None and (where.startswith("/") or ".." in where.split("/") or where == "manifest.json"):
            raise ValueError("destination must be relative, without '..' and not manifest.json")
        return self


class HarborTask(Strict):
    """The whole file."""

    schema_version: str | None = None
    version: str | None = None
    source: str | None = None
    metadata: dict[str, object] = {}
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | ArtifactTable] = []
    steps: list[dict[str, object]] | None = None
    task: TaskTable | None = None
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()

    @model_validator(mode="after")
    def _known_version(self) -> "HarborTask":
        version = self.schema_version or self.version or SCHEMA_VERSIONS[-1]
        if version not in SCHEMA_VERSIONS:
            raise ValueError(f"schema_version {version!r} is not one of {', '.join(SCHEMA_VERSIONS)}")
        return self
