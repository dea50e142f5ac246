"""Claude Code in a developer's own directory: what is laid over their environment, and what of it conflicts.

Their configuration directory, tools, plugins, permissions and sessions stay theirs; only routing is ours.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from adapters.engines import claude_code_conflicts as conflicts
from adapters.engines.claude_code_environment import direct, limits, routing
from domain.errors import ConfigurationError
from domain.ports import ModelBinding

_KEPT_FLAGS = ("--model", "--fallback-model", "--settings", "--bare", "--agents")
_OVERRIDDEN = ("model", "availableModels", "fallbackModel", "advisorModel", "modelOverrides")
"""Settings that the pins rank above."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def overlay(environment: Mapping[str, str], binding: ModelBinding) -> tuple[dict[str, str], str]:
    """Return the whole environment of the harness, and settings that rank above every file of the developer's.

    Args:
        environment: of the developer.
        binding: the model; its token goes into the environment alone.
    """
    ours = {
        **routing(base_url=binding.base_url, token=binding.token, model=binding.model),
        **limits(context_tokens=binding.context_tokens, max_tokens=binding.max_tokens),
        **direct(binding.base_url, environment),
    }
    kept = {name: value for name, value in environment.items() if name != "ANTHROPIC_API_KEY"}
    above = {name: value for name, value in ours.items() if name != "ANTHROPIC_AUTH_TOKEN"}
    return {**kept, **ours}, json.dumps({"env": above, "model": binding.model})


def check_developer(environment: Mapping[str, str], arguments: Sequence[str], directory: Path) -> None:
    """Refuse what would take calls elsewhere and cannot be laid over.

    Args:
        environment: of the developer.
        arguments: for Claude Code.
        directory: where it starts.

    Raises:
        ConfigurationError: naming every variable, flag and setting.
    """
    found = [f"{name}: {why}" for name, why in _conflicts(environment, arguments, directory)]
    if found:
        raise ConfigurationError("; ".join(found), hint="unset or remove it for this session")


def _conflicts(
    environment: Mapping[str, str], arguments: Sequence[str], directory: Path
) -> Iterator[conflicts.Conflict]:
    direct = {name: value for name, value in environment.items() if name.upper() not in _PROXIES}
    yield from conflicts.of_environment(direct, "environment", routed=False)
    for name, why in conflicts.of_arguments(arguments, "arguments"):
        if any(f".{flag}" in name for flag in _KEPT_FLAGS):
            yield name, why
    configured = environment.get("CLAUDE_CONFIG_DIR")
    user = Path(configured) if configured else Path(environment.get("HOME", "~")).expanduser() / ".claude"
    for path in (user / "settings.json", *(directory / ".claude" / f"settings{kind}.json" for kind in ("", ".local"))):
        yield from _of_settings(path)


def _of_settings(path: Path) -> Iterator[conflicts.Conflict]:
    try:
        read: object = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(read, dict):
        return
    settings = {key: value for key, value in cast("dict[str, object]", read).items() if key not in _OVERRIDDEN}
    variables = settings.pop("env", None)
    yield from conflicts.of_settings(settings, str(path))
    if isinstance(variables, dict):
        named = {str(name): str(value) for name, value in cast("dict[object, object]", variables).items()}
        direct = {name: value for name, value in named.items() if name.upper() not in _PROXIES}
        yield from conflicts.of_environment(direct, f"{path}.env", routed=False)
