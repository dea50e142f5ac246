"""The settings of a ``claude-code`` profile, read strictly, and every conflict of the whole profile by name."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.engines import claude_code_conflicts as conflicts
from domain.errors import ConfigurationError
from domain.records.profile import Profile

_VERSION = re.compile(r"^\d+\.\d+\.\d+$")
_IN_PROJECT = re.compile(r"(^|/)\.claude/")
_PATH = re.compile(r"^(?!/)(?!.*(^|/)\.\.(/|$))[^\x00]+$")


class ConfigFile(BaseModel):
    """A file of the harness's own directory."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    content: str
    executable: bool = False


class ClaudeCodeSettings(BaseModel):
    """What ``settings`` of a profile may hold."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    settings: dict[str, Any] = Field(default_factory=dict)
    """The user's ``settings.json``: permissions, hooks, plugins ... in Claude Code's own words."""
    config: dict[str, str | ConfigFile] = Field(default_factory=dict)
    """Path below the harness's directory -> text: ``CLAUDE.md``, ``skills/x/SKILL.md``, ``agents/y.md``, hooks."""
    mcp_servers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name -> definition, as in ``.mcp.json``; the task's own come to them."""
    binary: str | None = Field(default=None, pattern="^/")
    """Path of the program in the task's image; None: this machine's is bound into the box."""
    skip_permissions: bool = True
    """Whether every tool may be used without a question; false: as the settings say."""
    resume: bool = True
    """Whether a later step of a task goes on in the session of the step before."""


def read_settings(profile: Profile) -> ClaudeCodeSettings:
    """Return a profile's settings.

    Raises:
        ConfigurationError: naming the field.
    """
    try:
        return ClaudeCodeSettings.model_validate(dict(profile.settings))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in ("settings", *first["loc"]))
        hint = f"there are {', '.join(ClaudeCodeSettings.model_fields)}"
        raise ConfigurationError(f"profile {profile.name!r}: {where}: {first['msg']}", hint=hint) from None


def check_profile(profile: Profile) -> ClaudeCodeSettings:
    """Return the settings of a profile that conflicts with nothing.

    Raises:
        ConfigurationError: naming every field that conflicts with routing, capture or the bound model.
    """
    if profile.engine_version is None or not _VERSION.fullmatch(profile.engine_version):
        raise ConfigurationError(
            f"profile {profile.name!r}: engine_version: {profile.engine_version!r} is no version of Claude Code",
            hint='pin one of npm, such as "2.1.197"',
        )
    settings = read_settings(profile)
    found = [f"{name}: {why}" for name, why in _conflicts(profile, settings)]
    if found:
        raise ConfigurationError(f"profile {profile.name!r}: {'; '.join(found)}", hint="remove it")
    return settings


def _conflicts(profile: Profile, settings: ClaudeCodeSettings) -> Iterator[conflicts.Conflict]:
    yield from conflicts.of_environment(profile.environment, "environment")
    yield from conflicts.of_arguments(profile.arguments, "arguments")
    yield from conflicts.of_settings(settings.settings, "settings.settings")
    for path, file in settings.config.items():
        where = f"settings.config.{path}"
        if not _PATH.match(path):
            yield where, "not a path below the harness's directory"
        elif path in {"settings.json", ".claude.json"}:
            yield where, "write it into settings.settings"
        else:
            yield from conflicts.of_file(path, file if isinstance(file, str) else file.content, where)
    for index, file in enumerate(profile.files):
        if _IN_PROJECT.search(file.path):
            yield from conflicts.of_file(file.path, file.content, f"files.{index}")
