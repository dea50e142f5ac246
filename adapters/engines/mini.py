"""The ``mini`` engine: our own small native agent, which needs only python3 in the box."""

import json
from functools import cache
from pathlib import Path

from domain.errors import ConfigurationError
from domain.lifecycle.mini_dialogue import AGENT, BASH, MALFORMED, OUTPUT_LIMIT_CHARACTERS, SYSTEM_PROMPT
from domain.ports import Command, Launch, ModelBinding, Upload
from domain.records.archive import pack_files
from domain.records.profile import InstructionDelivery, Profile
from domain.records.task import Task
from domain.records.wording import one_of

HOME = "/opt/synth"
"""Where program and configuration lie in the box."""
LOGS = "/logs/agent"
MODEL_TIMEOUT_S = 600.0
"""Longest wait for one answer."""
RETRY_S = 90.0
"""How long a lost model is asked again: longer than the model process takes to be started again."""
_PROGRAM = Path(__file__).parent / "box" / "mini_agent.py"
_DEFAULTS: dict[str, float] = {"max_turns": 8, "command_timeout_s": 20}
_FLAGS = ("stream", "agents")
_LIMITS: dict[str, float] = {"max_turns": 1000, "command_timeout_s": 3600}


class MiniEngine:
    """The ``Engine`` port for ``mini``.

    Settings: ``max_turns`` (8, of all its agents together), ``command_timeout_s`` (20), ``stream`` (false: answers come
    whole) and ``agents`` (false: no tool that starts sub-agents).
    """

    @property
    def name(self) -> str:
        """``mini``."""
        return "mini"

    @property
    def needs_model(self) -> bool:
        """Always."""
        return True

    def check(self, profile: Profile) -> None:
        """Refuse what conflicts with routing or capture, or what the engine does not know.

        Raises:
            ConfigurationError: naming the field.
        """
        where = f"profile {profile.name!r}"
        if profile.model is None:
            raise ConfigurationError(f"{where}: model: missing", hint="write base:NAME or checkpoint:ID")
        if profile.engine_version is not None:
            raise ConfigurationError(f"{where}: engine_version: mini has no versions", hint="leave it out")
        if profile.arguments:
            raise ConfigurationError(f"{where}: arguments: mini takes none", hint="use settings")
        for name in profile.environment:
            if name.startswith("ANTHROPIC_"):
                reason = f"{where}: environment.{name}: the platform sets the model's address and token"
                raise ConfigurationError(reason, hint="remove it")
        _check_settings(profile)

    def launch(self, profile: Profile, task: Task, archive: bytes, binding: ModelBinding | None) -> Launch:
        """Return the upload of the program and the one command that runs it.

        Raises:
            ConfigurationError: the profile is refused, or there is no model.
        """
        del archive
        self.check(profile)
        if binding is None:
            raise ConfigurationError(f"profile {profile.name!r}: engine mini needs a model")
        delivery = profile.instruction_delivery
        files = {
            "mini_agent.py": _program(),
            "config.json": json.dumps(_config(profile, binding), ensure_ascii=False).encode(),
        }
        argv = ["python3", "-S", "-E", "-I", f"{HOME}/mini_agent.py", f"{HOME}/config.json"]
        if delivery is InstructionDelivery.FILE:
            files["instruction.md"] = task.instruction.encode()
        elif delivery is InstructionDelivery.ARGUMENT:
            argv.append(task.instruction)
        command = Command(
            argv=tuple(argv),
            env={"ANTHROPIC_BASE_URL": binding.base_url, "ANTHROPIC_AUTH_TOKEN": binding.token},
            stdin=task.instruction.encode() if delivery is InstructionDelivery.STDIN else b"",
            dials_proxy=binding.socket is None,
        )
        return Launch(uploads=(Upload(tar=pack_files(files), target=HOME),), commands=(command,))


def _config(profile: Profile, binding: ModelBinding) -> dict[str, object]:
    tools = (BASH, AGENT) if profile.settings.get("agents") else (BASH,)
    in_file = profile.instruction_delivery is InstructionDelivery.FILE
    return {
        "model": binding.model,
        "max_tokens": binding.max_tokens,
        "system": SYSTEM_PROMPT,
        "tools": [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools],
        "stream": bool(profile.settings.get("stream")),
        "next_agent": 1,
        "malformed": MALFORMED,
        "output_limit": OUTPUT_LIMIT_CHARACTERS,
        "max_turns": int(_number(profile, "max_turns")),
        "command_timeout_s": _number(profile, "command_timeout_s"),
        "model_timeout_s": MODEL_TIMEOUT_S,
        "retry_s": RETRY_S,
        "socket": binding.socket,
        "instruction_file": f"{HOME}/instruction.md" if in_file else None,
        "logs": LOGS,
    }


def _check_settings(profile: Profile) -> None:
    for name, value in profile.settings.items():
        where = f"profile {profile.name!r}: settings.{name}"
        if name not in _DEFAULTS and name not in _FLAGS:
            raise ConfigurationError(f"{where}: unknown to mini", hint=one_of(name, [*_DEFAULTS, *_FLAGS]))
        if name in _FLAGS and not isinstance(value, bool):
            raise ConfigurationError(f"{where}: not true or false")
    for name in _DEFAULTS:
        _number(profile, name)


def _number(profile: Profile, name: str) -> float:
    value = profile.settings.get(name, _DEFAULTS[name])
    if not isinstance(value, bool) and isinstance(value, int if name == "max_turns" else (int, float)):
        number = float(value)
        if 0 < number <= _LIMITS[name]:
            return number
    kind = "a whole number" if name == "max_turns" else "a number"
    raise ConfigurationError(
        f"profile {profile.name!r}: settings.{name}: not {kind} above 0, {_LIMITS[name]:g} at most"
    )


@cache
def _program() -> bytes:
    return _PROGRAM.read_bytes()
