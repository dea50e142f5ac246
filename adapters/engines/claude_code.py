"""The ``claude-code`` engine: the real Claude Code, pinned, in a directory of its own, on the bound model alone.

Source: facts/proxy.md section 1.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from adapters.engines import claude_code_conflicts as conflicts
from adapters.engines.claude_code_environment import DEFAULTS, check_size, direct, limits, routing
from adapters.engines.claude_code_profile import ClaudeCodeSettings, check_profile
from domain.errors import AdmissionError, ConfigurationError
from domain.ports import Command, Launch, ModelBinding, Toolchain, Upload
from domain.records.archive import pack_files
from domain.records.profile import InstructionDelivery, Profile
from domain.records.task import McpServer, NetworkMode, Task

HOME = "/opt/synth"
"""Where what is uploaded lies in the box."""
STATE = "/tmp/synth-claude-code"  # noqa: S108 - inside a box that is the trial's alone
"""The harness's own directory: any user of the box can make it, and a later step finds it."""
NAME = "claude-code"
_LAUNCHER = Path(__file__).parent / "box" / "claude_code.sh"
_WEB = ("WebFetch", "WebSearch")


class ClaudeCodeEngine:
    """The ``Engine`` port for ``claude-code``; ``claude_code_profile`` describes its settings.

    Args:
        packages: directory of this machine with one npm prefix for each version:
            ``npm install --prefix DIR/2.1.197 @anthropic-ai/claude-code-linux-x64@2.1.197``.
    """

    def __init__(self, packages: Path) -> None:
        self._packages = packages

    @property
    def name(self) -> str:
        """``claude-code``."""
        return NAME

    @property
    def needs_model(self) -> bool:
        """Always."""
        return True

    @property
    def takes(self) -> frozenset[str]:
        """The task's tool servers and skills, both in the harness's own way."""
        return frozenset({"mcp_servers", "skills_dir"})

    def check(self, profile: Profile) -> None:
        """Refuse what conflicts with routing, capture or the bound model; all else is the harness's own business.

        Raises:
            ConfigurationError: naming every such field.
        """
        if profile.model is None:
            raise ConfigurationError(
                f"profile {profile.name!r}: model: missing", hint="write base:NAME or checkpoint:ID"
            )
        check_profile(profile)

    def toolchains(self, profile: Profile) -> tuple[Toolchain, ...]:
        """Return the packages of the pinned version, one for each kind of machine; none for a binary in the image.

        Raises:
            AdmissionError: they are not installed here.
        """
        settings = check_profile(profile)
        if settings.binary is not None:
            return ()
        version = str(profile.engine_version)
        prefix = self._packages / version
        directory = prefix / "node_modules" / "@anthropic-ai"
        installed = {str(_version(package)) for package in directory.glob("claude-code-linux-*/package.json")}
        if installed != {version}:
            there = f"holds {', '.join(sorted(installed))}" if installed else "does not hold it"
            raise AdmissionError(
                f"profile {profile.name!r}: engine_version: Claude Code {version}: {directory} {there}",
                hint=f"npm install --ignore-scripts --prefix {prefix} @anthropic-ai/claude-code-linux-x64@{version}",
            )
        return (Toolchain(source=str(directory), name=NAME),)

    def check_model(self, profile: Profile, *, context_tokens: int, max_tokens: int) -> None:
        """Refuse a model that is too small for the harness.

        Raises:
            AdmissionError: with the sizes.
        """
        check_size(f"profile {profile.name!r}: model", context_tokens=context_tokens, max_tokens=max_tokens)

    def launch(self, profile: Profile, task: Task, archive: bytes, binding: ModelBinding | None) -> Launch:
        """Return the upload of launcher and configuration, and the one command that runs the harness.

        Raises:
            ConfigurationError: the profile or the task's environment conflicts, or there is no model.
        """
        del archive
        settings = check_profile(profile)
        if binding is None:
            raise ConfigurationError(f"profile {profile.name!r}: engine {NAME} needs a model")
        _check_task(task)
        self.check_model(profile, context_tokens=binding.context_tokens, max_tokens=binding.max_tokens)
        variables = _variables(binding, {**task.environment.env, **profile.environment})
        files = {"claude_code.sh": _launcher(), **_files(settings, profile, task, variables)}
        delivery = profile.instruction_delivery
        if delivery is InstructionDelivery.FILE:
            files["instruction.md"] = task.instruction.encode()
        source = {InstructionDelivery.FILE: f"{HOME}/instruction.md", InstructionDelivery.STDIN: "-"}
        argv = (
            "/bin/sh", f"{HOME}/claude_code.sh", HOME, str(profile.engine_version), settings.binary or "",
            task.environment.skills_dir or "", source.get(delivery, ""), "yes" if settings.resume else "no",
            *_arguments(settings, profile),
            *(("--", task.instruction) if delivery is InstructionDelivery.ARGUMENT else ()),
        )  # fmt: skip
        command = Command(
            argv=argv,
            env={**{name: text for name, text in DEFAULTS.items() if name not in profile.environment}, **variables},
            stdin=task.instruction.encode() if delivery is InstructionDelivery.STDIN else b"",
            dials_proxy=True,
        )
        executable = frozenset(
            f"config/{path}" for path, file in settings.config.items() if not isinstance(file, str) and file.executable
        )
        upload = Upload(tar=pack_files(files, executable=executable), target=HOME)
        return Launch(uploads=(upload,), commands=(command,))


def _variables(binding: ModelBinding, environment: Mapping[str, str]) -> dict[str, str]:
    return {
        **routing(base_url=binding.base_url, token=binding.token, model=binding.model),
        **limits(context_tokens=binding.context_tokens, max_tokens=binding.max_tokens),
        **direct(binding.base_url, environment),
        "CLAUDE_CONFIG_DIR": STATE,
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


def _files(
    settings: ClaudeCodeSettings, profile: Profile, task: Task, variables: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the harness's directory as the profile wants it, and what the platform puts above every settings file.

    A task may bring a project's settings, which the harness ranks above the environment; so routing is repeated where
    it ranks above them, all but the token.
    """
    own = {name: text for name, text in variables.items() if name != "ANTHROPIC_AUTH_TOKEN"}
    own |= dict.fromkeys(conflicts.PROVIDERS, "")
    above: dict[str, object] = {"env": own}
    if not _has_web(task):
        above["permissions"] = {"deny": list(_WEB)}
    files = {"config/settings.json": json.dumps(settings.settings).encode(), "above.json": json.dumps(above).encode()}
    for path, file in settings.config.items():
        files[f"config/{path}"] = (file if isinstance(file, str) else file.content).encode()
    files["mcp.json"] = json.dumps({"mcpServers": _servers(settings, profile, task)}).encode()
    return files


def _arguments(settings: ClaudeCodeSettings, profile: Profile) -> tuple[str, ...]:
    permissions = ("--dangerously-skip-permissions",) if settings.skip_permissions else ()
    return (
        "-p", "--verbose", "--output-format", "stream-json", "--settings", f"{HOME}/above.json",
        "--mcp-config", f"{HOME}/mcp.json", *permissions, *profile.arguments,
    )  # fmt: skip


def _servers(settings: ClaudeCodeSettings, profile: Profile, task: Task) -> dict[str, object]:
    found: dict[str, object] = dict(settings.mcp_servers)
    for server in task.environment.mcp_servers:
        if server.name in found:
            where = f"profile {profile.name!r}: settings.mcp_servers.{server.name}"
            raise ConfigurationError(f"{where}: {task.name} brings one of that name", hint="call it otherwise")
        found[server.name] = _server(server)
    return found


def _server(server: McpServer) -> dict[str, object]:
    """Return a server in Claude Code's words. Source: its ``.mcp.json``, types stdio, sse and http."""
    if server.transport == "stdio":
        return {"type": "stdio", "command": server.command, "args": list(server.args)}
    kind = "sse" if server.transport == "sse" else "http"
    return {"type": kind, "url": server.url, "headers": dict(server.headers)}


def _has_web(task: Task) -> bool:
    policy = task.agent_network
    return (task.environment.network_mode if policy is None else policy.mode) is NetworkMode.PUBLIC


def _check_task(task: Task) -> None:
    found = [f"{name}: {why}" for name, why in conflicts.of_environment(task.environment.env, "environment.env")]
    if found:
        raise ConfigurationError(f"{task.name}: {'; '.join(found)}", hint="the task cannot run under claude-code")


def _version(package: Path) -> object:
    try:
        return json.loads(package.read_bytes()).get("version")
    except (OSError, ValueError, AttributeError):
        return None


@cache
def _launcher() -> bytes:
    return _LAUNCHER.read_bytes()
