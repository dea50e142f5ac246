"""The fields of Harbor's ``task.toml``, read strictly: an unknown field or a wrong type is an error with its name.

Harbor itself ignores unknown keys and drops integer ``memory``; both have made tasks run with other limits than
their authors wrote. Source: Harbor 0.26 ``models/task/config.py``, schema 1.0 to 1.4.
"""

import re
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from adapters.benchmarks.step_names import step_name, step_name_key

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_SIZE = re.compile(r"^(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>[KMGT])i?B?$", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_HOST_LABEL = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
_HEADER_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_CREDENTIAL = re.compile(r"KEY|SECRET|TOKEN(?!S)|PASSWORD|CREDENTIAL|AUTH|^(set-)?cookie$", re.IGNORECASE)
_ONLY_VARIABLES = re.compile(
    r"\s*(?:[A-Za-z]+\s+)?\$\{[A-Za-z_][A-Za-z0-9_]*\}(?:[\s:-]*\$\{[A-Za-z_][A-Za-z0-9_]*\})*\s*"
)
_PARTIAL_TEMPLATE = re.compile(r"\$\{[^}]*\}")
TEMPLATE = re.compile(r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\}$", re.DOTALL)
"""A value that the operator's variables fill. Source: Harbor 0.26 ``utils/env.py``: the whole value, or nothing."""
_LONGEST_NAME = 200
"""It becomes the name of a directory when results are exported."""
_TASK_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")


def _mebibytes(value: object) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('write a string with a unit such as "8G", or use memory_mb / storage_mb in MiB')
    return round(min(float(match["number"]), 1e18) * _MEBIBYTES[match["unit"].upper()])


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _variable(value: str) -> str:
    if TEMPLATE.fullmatch(value) is None and _PARTIAL_TEMPLATE.search(value) is not None:
        raise ValueError("${VAR} must be the whole value: inside a longer one it would stay as it is written")
    return value


def _host(value: str) -> str:
    host = value.strip().lower().rstrip(".")
    try:
        return (ip_network(host) if "/" in host else ip_address(host)).compressed
    except ValueError:
        labels = host.removeprefix("*.").split(".")
        if "/" in host or not all(_HOST_LABEL.fullmatch(label) for label in labels):
            raise ValueError("write a host name, *.name, an address or a CIDR range; no URL and no port") from None
        return host


def _source(value: str) -> str:
    if not value or ".." in value.split("/"):
        raise ValueError("write a path without '..'")
    return value


def _transport(value: object) -> object:
    return "streamable-http" if value == "http" else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Mebibytes = Annotated[int, Field(gt=0, le=1 << 40)]
"""No machine has more, and kernels and engines take no larger number."""
LegacySize = Annotated[int, BeforeValidator(_mebibytes), Field(le=1 << 40)]
"""A string such as ``"8G"``, as MiB."""
User = Annotated[str, BeforeValidator(_user), Field(pattern=r"^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,5})$")]
"""A user name or number."""
Text = Annotated[str, Field(min_length=1)]
Source = Annotated[str, AfterValidator(_source)]
"""A path inside the box."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Network = Literal["public", "no-network", "allowlist"]
Host = Annotated[str, AfterValidator(_host)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Annotated[str, AfterValidator(_variable)]]
"""Names and values of environment variables; a value may be one template."""
Service = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")]


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
    version: Text | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    @field_validator("name")
    @classmethod
    def _organised(cls, name: str) -> str:
        if ".." in name or len(name) > _LONGEST_NAME or _TASK_NAME.fullmatch(name) is None:
            raise ValueError("write org/name with letters, digits, '.', '_' and '-'")
        return name


class PhaseTable(Strict):
    """What ``[agent]`` and ``[verifier]`` share: a network of their own."""

    network_mode: Network | None = None
    allowed_hosts: list[Host] | None = None

    @model_validator(mode="after")
    def _one_network(self) -> Self:
        _check_hosts(self.network_mode, self.allowed_hosts)
        return self


def _check_hosts(mode: str | None, hosts: list[str] | None) -> None:
    if hosts and mode != "allowlist":
        raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
    if mode == "allowlist" and not hosts:
        raise ValueError("network_mode = 'allowlist' needs allowed_hosts")


class AgentTable(PhaseTable):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    user: User | None = None


class Healthcheck(Strict):
    """``healthcheck`` of an environment."""

    command: Text
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(default=0.0, ge=0, le=1e9, allow_inf_nan=False)
    start_interval_sec: Seconds = 5.0
    retries: int = Field(default=3, ge=1)


class Tpu(Strict):
    """``tpu`` of an environment."""

    type: Text
    topology: str = Field(pattern=r"^[1-9][0-9]*(x[1-9][0-9]*)+$")


class McpServerTable(Strict):
    """``[[environment.mcp_servers]]``."""

    name: Text
    transport: Annotated[Literal["stdio", "sse", "streamable-http"], BeforeValidator(_transport)] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _fits_transport(self) -> Self:
        if self.transport == "stdio" and (not self.command or self.url or self.headers):
            raise ValueError("transport 'stdio' takes command and args, no url and no headers")
        if self.transport != "stdio" and (not self.url or self.command or self.args):
            raise ValueError(f"transport {self.transport!r} takes url and headers, no command and no args")
        for name, value in self.headers.items():
            if _HEADER_NAME.fullmatch(name) is None or "\r" in value or "\n" in value:
                raise ValueError(f"headers: {name!r} is no HTTP header")
            if _CREDENTIAL.search(name) and _ONLY_VARIABLES.fullmatch(value) is None:
                raise ValueError(f"headers: {name}: write a credential as ${{VAR}} without a default")
        return self


class EnvironmentTable(Strict):
    """``[environment]`` and ``[verifier.environment]``."""

    build_timeout_sec: Seconds = 600.0
    docker_image: Text | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    memory_mb: Mebibytes | None = None
    storage_mb: Mebibytes | None = None
    memory: LegacySize | None = None
    storage: LegacySize | None = None
    allow_internet: bool | None = None
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[Text] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServerTable] = []
    env: Variables = {}
    skills_dir: str | None = Field(default=None, pattern=r"^/[^\x00]*$")
    healthcheck: Healthcheck | None = None
    workdir: str | None = Field(default=None, pattern=r"^/[^\x00]*$")
    network_mode: Network | None = None
    allowed_hosts: list[Host] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_hosts(self.network_mode, self.allowed_hosts)
        if self.workdir is not None and ".." in self.workdir.split("/"):
            raise ValueError("workdir must not contain '..'")
        if self.memory is not None and self.memory_mb not in {None, self.memory}:
            raise ValueError(f"memory says {self.memory} MiB and memory_mb says {self.memory_mb}: keep one")
        if self.storage is not None and self.storage_mb not in {None, self.storage}:
            raise ValueError(f"storage says {self.storage} MiB and storage_mb says {self.storage_mb}: keep one")
        if self.allow_internet is not None and self.network_mode is not None:
            raise ValueError("allow_internet is the old form of network_mode: keep network_mode")
        names = [server.name for server in self.mcp_servers]
        if len(set(names)) < len(names):
            raise ValueError("two mcp_servers have one name")
        return self

    def mode(self) -> Network:
        """Return the network mode with the legacy flag applied."""
        if self.network_mode is not None:
            return self.network_mode
        return "no-network" if self.allow_internet is False else "public"


class Collect(Strict):
    """``[[verifier.collect]]``."""

    command: Text
    service: Service = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierTable(PhaseTable):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: Variables = {}
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' and [verifier.environment] exclude each other")
        return self


class SolutionTable(Strict):
    """``[solution]``."""

    env: Variables = {}


class ArtifactTable(Strict):
    """An entry of ``artifacts`` written as a table."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: Service | None = None

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if not self.source or ".." in self.source.split("/"):
            raise ValueError("source must be a path without '..'")
        where = self.destination
        if where is not None and (
            not where.strip("./") or where.startswith("/") or "\\" in where or ".." in where.split("/")
        ):
            raise ValueError("destination must be a relative path without '..' and backslashes")
        if where is not None and where.rstrip("/") == "manifest.json":
            raise ValueError("destination manifest.json is taken by the list of artifacts")
        if self.service not in {None, "main"} and not self.source.startswith("/"):
            raise ValueError(f"source of service {self.service!r} must be absolute")
        return self


class StepTable(Strict):
    """``[[steps]]``."""

    name: str
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: Finite | dict[str, Finite] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[Source | ArtifactTable] = []

    @field_validator("name")
    @classmethod
    def _portable(cls, name: str) -> str:
        return step_name(name)


class HarborTask(Strict):
    """The whole file."""

    schema_version: str | None = None
    version: str | None = None
    source: str | None = None
    metadata: dict[str, object] = {}
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[Source | ArtifactTable] = []
    steps: list[StepTable] | None = Field(default=None, min_length=1)
    task: TaskTable | None = None
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()

    @model_validator(mode="after")
    def _distinct_steps(self) -> Self:
        keys = [step_name_key(step.name) for step in self.steps or []]
        if len(set(keys)) < len(keys):
            raise ValueError("steps: two names are one on a file system that folds case or Unicode forms")
        if self.multi_step_reward_strategy is not None and self.steps is None:
            raise ValueError("multi_step_reward_strategy: the task has no steps")
        return self

    @model_validator(mode="after")
    def _known_version(self) -> Self:
        if self.version is not None and self.schema_version not in {None, self.version}:
            raise ValueError("version is the old form of schema_version: keep schema_version")
        version = self.schema_version or self.version or SCHEMA_VERSIONS[-1]
        if version not in SCHEMA_VERSIONS:
            raise ValueError(f"schema_version {version!r} is not one of {', '.join(SCHEMA_VERSIONS)}")
        return self
