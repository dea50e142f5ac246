"""Task directories in Harbor's format, read strictly: what a task asks for is honoured or refused by name."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from pydantic import ValidationError

from adapters.benchmarks.harbor_schema import ArtifactTable, HarborTask
from adapters.benchmarks.task_archive import TaskFile, digest_files, pack, task_files
from domain.errors import TaskError
from domain.records.canonical import Json, canonical_bytes, digest_bytes
from domain.records.task import Artifact, NetworkMode, ObjectRef, Phase, Task, TaskEnvironment

_DEFAULT_WORKDIR = "/app"
_TEMPLATE = re.compile(r"^\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>.*))?\}$", re.DOTALL)
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(?P<path>/\S*)\s*$", re.IGNORECASE | re.MULTILINE)
_COMPOSE = ("environment/docker-compose.yaml", "environment/docker-compose.yml")
_DOCKERFILE = "environment/Dockerfile"


class HarborTaskSource:
    """Reads one task directory, or a directory of them."""

    def read(self, directory: str, *, host_runnable: bool) -> tuple[tuple[Task, bytes], ...]:
        """Return each task with its archive, in order of name.

        Args:
            directory: a task (it holds ``task.toml``) or a directory whose immediate sub-directories are tasks.
            host_runnable: boxes without the tasks' images may run them; ``[metadata] host_runnable`` says the
                same for one task.

        Raises:
            TaskError: naming file and field of every bad task at once; no task is ever left out silently.
        """
        root = Path(directory)
        if not root.is_dir():
            raise TaskError(f"{directory}: no such directory", hint="name a task or a directory of tasks")
        found: list[tuple[Task, bytes]] = []
        problems: list[str] = []
        for path in _task_directories(root):
            try:
                found.append(_Reader(path=path, host_runnable=host_runnable).read())
            except TaskError as error:
                problems.append(str(error))
        problems.extend(_doubled(found))
        if problems:
            raise TaskError("; ".join(problems), hint="correct the named fields; nothing was published")
        return tuple(sorted(found, key=lambda pair: pair[0].name))


def _task_directories(root: Path) -> list[Path]:
    if (root / "task.toml").exists():
        return [root]
    children = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not children:
        raise TaskError(f"{root}: holds no task", hint="a task is a directory with task.toml")
    return children


def _doubled(found: list[tuple[Task, bytes]]) -> list[str]:
    names = [task.name for task, _ in found]
    return [f"task name {name!r} is used more than once" for name in sorted({n for n in names if names.count(n) > 1})]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads one directory; collects all of its problems before it raises."""

    path: Path
    host_runnable: bool

    def read(self) -> tuple[Task, bytes]:
        """Return the task and its archive. Raises TaskError."""
        config = self._config()
        files = task_files(self.path)
        by_path = {file.path: file for file in files}
        task_host_runnable = self.host_runnable or self._flag(config, "host_runnable")
        problems = [*_unsupported(config, host_runnable=task_host_runnable), *_missing(config, by_path)]
        try:
            environment = self._environment(config, by_path, host_runnable=task_host_runnable)
            metadata = self._metadata(config)
        except TaskError as error:
            problems.append(str(error).removeprefix(f"{self.path}/"))
            environment, metadata = TaskEnvironment(), dict[str, Json]()
        envs, env_problems = _environments(config)
        problems.extend(env_problems)
        if problems:
            raise TaskError("; ".join(f"{self.path}/{problem}" for problem in problems))
        return self._task(config, files, environment, metadata, envs)

    def _config(self) -> HarborTask:
        where = self.path / "task.toml"
        try:
            document = tomllib.loads(where.read_bytes().decode())
        except FileNotFoundError:
            raise TaskError(f"{where}: missing", hint="every task directory has a task.toml") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TaskError(f"{where}: not valid TOML: {error}") from None
        try:
            return HarborTask.model_validate(document)
        except ValidationError as error:
            raise TaskError("; ".join(f"{where}: {problem}" for problem in _explain(error))) from None

    def _task(
        self,
        config: HarborTask,
        files: tuple[TaskFile, ...],
        environment: TaskEnvironment,
        metadata: Mapping[str, Json],
        envs: Mapping[str, Mapping[str, str]],
    ) -> tuple[Task, bytes]:
        archive = pack(files)
        family = metadata.get("family")
        instruction = next(file.content for file in files if file.path == "instruction.md")
        task = Task(
            name=config.task.name if config.task is not None else f"local/{self.path.resolve().name}",
            digest=digest_files(files),
            instruction=strip_canary(instruction.decode()),
            archive=ObjectRef(digest=digest_bytes(archive), size_bytes=len(archive)),
            environment=environment,
            agent=Phase(timeout_s=config.agent.timeout_sec, user=config.agent.user, env={}),
            verifier=Phase(timeout_s=config.verifier.timeout_sec, user=config.verifier.user, env=envs["verifier"]),
            solution_env=envs["solution"],
            artifacts=tuple(_artifact(entry) for entry in config.artifacts),
            family=family if isinstance(family, str) else None,
            metadata=metadata,
        )
        return task, archive

    def _environment(
        self, config: HarborTask, files: Mapping[str, TaskFile], *, host_runnable: bool
    ) -> TaskEnvironment:
        table = config.environment
        dockerfile = files.get(_DOCKERFILE)
        environment, _ = resolve_templates(table.env)
        return TaskEnvironment(
            dockerfile=dockerfile is not None,
            compose=any(path in files for path in _COMPOSE),
            docker_image=table.docker_image,
            host_runnable=host_runnable,
            host_files=self._host_files(config, files),
            workdir=_workdir(table.workdir, dockerfile),
            cpus=table.cpus,
            memory_mb=table.memory_mb if table.memory_mb is not None else table.memory,
            storage_mb=table.storage_mb if table.storage_mb is not None else table.storage,
            gpus=table.gpus,
            network_mode=NetworkMode(table.mode()),
            allowed_hosts=tuple(table.allowed_hosts or ()),
            env=environment,
        )

    def _host_files(self, config: HarborTask, files: Mapping[str, TaskFile]) -> str | None:
        """Return ``[metadata] host_files``, or ``environment`` where Harbor too uploads its loose files."""
        value = config.metadata.get("host_files")
        if value is None:
            loose = any(path.startswith("environment/") for path in files)
            image = config.environment.docker_image is not None
            return "environment" if image and loose and _DOCKERFILE not in files else None
        if not isinstance(value, str) or not any(path.startswith(value.strip("/") + "/") for path in files):
            raise TaskError(f"{self.path}/task.toml: metadata.host_files: {value!r} is no directory of the task")
        return value.strip("/")

    def _flag(self, config: HarborTask, name: str) -> bool:
        value = config.metadata.get(name, False)
        if not isinstance(value, bool):
            raise TaskError(f"{self.path}/task.toml: metadata.{name}: write true or false")
        return value

    def _metadata(self, config: HarborTask) -> Mapping[str, Json]:
        family = config.metadata.get("family")
        if family is not None and not isinstance(family, str):
            raise TaskError(f"{self.path}/task.toml: metadata.family: write a string")
        try:
            canonical_bytes(config.metadata)
        except (TypeError, ValueError) as error:
            raise TaskError(f"{self.path}/task.toml: metadata: {error}") from None
        return cast("Mapping[str, Json]", dict(config.metadata))


def strip_canary(text: str) -> str:
    """Return an instruction without leading canary lines and the blank lines after them.

    Source: Harbor 0.26 ``models/task/task.py``: HTML comment or ``#`` lines that hold "canary".
    """
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and _is_canary(lines[start]):
        start += 1
    if start:
        while start < len(lines) and not lines[start].strip():
            start += 1
    return "".join(lines[start:])


def _is_canary(line: str) -> bool:
    text = line.strip().lower()
    return "canary" in text and (text.startswith("#") or (text.startswith("<!--") and text.endswith("-->")))


def resolve_templates(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return ``env`` with ``${VAR:-default}`` as its default, and the names whose value has no default.

    The host's environment is never read: a task must run the same everywhere.
    """
    resolved: dict[str, str] = {}
    missing: list[str] = []
    for name, value in env.items():
        match = _TEMPLATE.match(value)
        if match is None:
            resolved[name] = value
        elif match["default"] is None:
            missing.append(name)
        else:
            resolved[name] = match["default"]
    return resolved, missing


def _environments(config: HarborTask) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the resolved environments by table, and a problem for each template without a default."""
    tables = {"environment": config.environment.env, "verifier": config.verifier.env, "solution": config.solution.env}
    resolved: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for table, env in tables.items():
        resolved[table], missing = resolve_templates(env)
        problems.extend(
            f"task.toml: {table}.env.{name}: {env[name]} reads the host's environment, which tasks never see"
            " (give a default: ${VAR:-value})"
            for name in missing
        )
    return resolved, problems


def _explain(error: ValidationError) -> list[str]:
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"]) or "the document"
        what = "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}")
    return lines


def _unsupported(config: HarborTask, *, host_runnable: bool) -> list[str]:
    """Name what the format allows and no sandbox here realises; silence would change what is measured."""
    environment, verifier, agent = config.environment, config.verifier, config.agent
    asked = {
        "steps": bool(config.steps),
        "multi_step_reward_strategy": config.multi_step_reward_strategy is not None,
        "environment.os": environment.os.lower() != "linux",
        "environment.tpu": environment.tpu is not None,
        "environment.gpu_types": bool(environment.gpu_types),
        "environment.mcp_servers": bool(environment.mcp_servers),
        "environment.skills_dir": environment.skills_dir is not None,
        "environment.healthcheck": environment.healthcheck is not None,
        "verifier.collect": bool(verifier.collect),
        "verifier.environment": verifier.environment is not None and not host_runnable,
        "agent.network_mode": agent.network_mode not in {None, environment.mode()},
        "agent.allowed_hosts": agent.allowed_hosts not in (None, environment.allowed_hosts),
        "verifier.network_mode": verifier.network_mode not in {None, environment.mode()},
        "verifier.allowed_hosts": verifier.allowed_hosts not in (None, environment.allowed_hosts),
        "artifacts.service": any(isinstance(a, ArtifactTable) and a.service is not None for a in config.artifacts),
    }
    return [f"task.toml: {name}: not supported yet" for name, present in asked.items() if present]


def _missing(config: HarborTask, files: Mapping[str, TaskFile]) -> list[str]:
    problems: list[str] = []
    instruction = files.get("instruction.md")
    if config.steps is None:
        if instruction is None or not _readable(instruction):
            problems.append("instruction.md: missing, empty or not UTF-8")
        if "tests/test.sh" not in files:
            problems.append("tests/test.sh: missing")
    has_definition = _DOCKERFILE in files or any(path in files for path in _COMPOSE)
    host_runnable = config.metadata.get("host_runnable") is True
    if config.environment.docker_image is None and not has_definition and not host_runnable:
        problems.append("environment/: neither Dockerfile nor docker-compose.yaml, and no environment.docker_image")
    return problems


def _readable(file: TaskFile) -> bool:
    try:
        return bool(strip_canary(file.content.decode()).strip())
    except UnicodeDecodeError:
        return False


def _workdir(declared: str | None, dockerfile: TaskFile | None) -> str:
    """Return the declared directory, else the image's last absolute ``WORKDIR``, else ``/app``."""
    if declared is not None:
        return str(PurePosixPath(declared))
    found = _WORKDIR.findall(dockerfile.content.decode(errors="replace")) if dockerfile is not None else []
    return str(PurePosixPath(found[-1])) if found else _DEFAULT_WORKDIR


def _artifact(entry: str | ArtifactTable) -> Artifact:
    if isinstance(entry, str):
        return Artifact(source=entry)
    return Artifact(source=entry.source, destination=entry.destination, exclude=tuple(entry.exclude))
