"""Task directories in Harbor's format, read strictly: what a task asks for is honoured or refused by name."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from adapters.benchmarks.harbor_checks import unsupported, wrong_files
from adapters.benchmarks.harbor_fields import explain
from adapters.benchmarks.harbor_record import RecordMaker, artifacts, hooks
from adapters.benchmarks.harbor_schema import HarborTask
from adapters.benchmarks.instructions import strip_canary
from adapters.benchmarks.task_archive import TaskFile, digest_files, pack, read_files
from domain.errors import TaskError
from domain.records.canonical import Json, canonical_bytes, digest_bytes
from domain.records.task import ObjectRef, RewardStrategy, Task

_DEEPEST = 64
"""Levels of a document; the readers behind this one recurse."""
_LONGEST_PATH = 200


class HarborTaskSource:
    """Reads one task directory, or a directory of them."""

    def read(self, directory: str, *, host_runnable: bool) -> Iterator[tuple[Task, bytes]]:
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
        found: list[tuple[str, Path, str]] = []
        problems: list[str] = []
        for path in _task_directories(root):
            try:
                task, _ = _Reader(path=path, host_runnable=host_runnable).read()
                found.append((task.name, path, task.digest))
            except TaskError as error:
                problems.append(str(error))
        problems.extend(_doubled([name for name, _, _ in found]))
        if problems:
            raise TaskError("; ".join(problems), hint="correct the named fields; nothing was published")
        return _again(sorted(found), host_runnable=host_runnable)


def _unusable(value: object, path: str, levels: int) -> str:
    """Say which field no program, file, database or codec could be given; empty: there is none."""
    shown = path.lstrip(".").replace("\0", "\\0")[:_LONGEST_PATH]
    if levels == 0:
        return f"{shown}: nested too deeply"
    if isinstance(value, str):
        return f"{shown}: holds a NUL character" if "\0" in value else ""
    inner: dict[object, object] = {}
    if isinstance(value, dict):
        inner = cast("dict[object, object]", value)
    elif isinstance(value, list):
        inner = dict(enumerate(cast("list[object]", value)))
    for key, item in inner.items():
        where = f"{path}.{key}"
        if problem := _unusable(key, where, levels) or _unusable(item, where, levels - 1):
            return problem
    return ""


def _task_directories(root: Path) -> list[Path]:
    if (root / "task.toml").exists():
        return [root]
    children = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not children:
        raise TaskError(f"{root}: holds no task", hint="a task is a directory with task.toml")
    return children


def _doubled(names: list[str]) -> list[str]:
    more = sorted(name for name, n_uses in Counter(names).items() if n_uses > 1)
    return [f"task name {name!r} is used more than once" for name in more]


def _again(found: list[tuple[str, Path, str]], *, host_runnable: bool) -> Iterator[tuple[Task, bytes]]:
    """Read what was found right once more, one at a time: a set of any size is never in memory."""
    for _, path, digest in found:
        task, archive = _Reader(path=path, host_runnable=host_runnable).read()
        if task.digest != digest:
            raise TaskError(f"{path}: changed while it was read", hint="publish again; nothing was published")
        yield task, archive


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads one directory; collects all of its problems before it raises."""

    path: Path
    host_runnable: bool

    def read(self) -> tuple[Task, bytes]:
        """Return the task and its archive. Raises TaskError."""
        config = self._config()
        found = read_files(self.path)
        by_path = {file.path: file for file in found.files}
        problems: list[str] = []
        host_files: str | None = None
        metadata: Mapping[str, Json] = {}
        host_runnable = self.host_runnable or config.metadata.get("host_runnable") is True
        try:
            self._flag(config, "host_runnable")
            host_files = self._host_files(config, by_path)
            metadata = self._metadata(config)
        except TaskError as error:
            problems.append(str(error).removeprefix(f"{self.path}/"))
        maker = RecordMaker(config=config, files=by_path, host_runnable=host_runnable)
        problems = [*unsupported(maker), *wrong_files(maker, found.ignored), *problems]
        if problems:
            raise TaskError("; ".join(f"{self.path}/{problem}" for problem in problems))
        return self._task(maker, found.files, host_files, metadata)

    def _config(self) -> HarborTask:
        where = self.path / "task.toml"
        if not where.exists():
            raise TaskError(f"{where}: missing", hint="every task directory has a task.toml")
        if not where.is_file():  # a FIFO would hold us, and a device has no end
            raise TaskError(f"{where}: no file")
        try:
            document = tomllib.loads(where.read_bytes().decode().removeprefix("\ufeff"))
        except OSError as error:
            raise TaskError(f"{where}: cannot be read: {error.strerror}") from None
        except RecursionError:
            raise TaskError(f"{where}: nested too deeply") from None
        except ValueError as error:  # of TOML, of UTF-8, and of an integer with thousands of digits
            raise TaskError(f"{where}: not valid TOML: {error}") from None
        if problem := _unusable(document, "", _DEEPEST):
            raise TaskError(f"{where}: {problem}")
        try:
            return HarborTask.model_validate(document)
        except ValidationError as error:
            raise TaskError("; ".join(f"{where}: {problem}" for problem in explain(error))) from None

    def _task(
        self, maker: RecordMaker, files: tuple[TaskFile, ...], host_files: str | None, metadata: Mapping[str, Json]
    ) -> tuple[Task, bytes]:
        config, archive = maker.config, pack(files)
        family = metadata.get("family")
        steps, place = maker.steps(), maker.verifier_place()
        instruction = maker.files.get("instruction.md")
        task = Task(
            name=config.task.name if config.task is not None else f"local/{self.path.resolve().name}",
            digest=digest_files(files),
            instruction=steps[0].instruction if instruction is None else strip_canary(instruction.content.decode()),
            archive=ObjectRef(digest=digest_bytes(archive), size_bytes=len(archive)),
            environment=maker.environment(host_files),
            agent=maker.agent_phase(),
            verifier=maker.verifier_phase(),
            solution_env=config.solution.env,
            artifacts=artifacts(config.artifacts),
            family=family if isinstance(family, str) else None,
            metadata=metadata,
            steps=steps,
            reward_strategy=RewardStrategy(config.multi_step_reward_strategy or "mean"),
            collect=hooks(config.verifier.collect),
            verifier_mode=place.mode,
            verifier_environment=place.environment,
            verifier_network=place.network,
            bundles_tests=place.bundles_tests,
            agent_network=maker.agent_network(),
        )
        return task, archive

    def _host_files(self, config: HarborTask, files: Mapping[str, TaskFile]) -> str | None:
        """Return ``[metadata] host_files``, or ``environment`` where Harbor too uploads its loose files."""
        value = config.metadata.get("host_files")
        if value is None:
            loose = any(path.startswith("environment/") for path in files)
            image = config.environment.docker_image is not None
            return "environment" if image and loose and "environment/Dockerfile" not in files else None
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
