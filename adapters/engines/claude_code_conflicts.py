"""What of a Claude Code configuration would take model calls elsewhere, past capture, or to another model.

Source: facts/proxy.md sections 1.8 and 1.9; the environment variables and settings that version 2.1.197 reads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

ROUTED = frozenset(
    {
        "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW",
    }
)  # fmt: skip
"""Variables that the platform sets itself."""
_OURS = frozenset({"CLAUDE_CONFIG_DIR", "DISABLE_AUTOUPDATER", "IS_SANDBOX", "CLAUDE_CODE_ATTRIBUTION_HEADER"})
PROVIDERS = frozenset(
    {
        "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_MANTLE",
        "CLAUDE_CODE_USE_GATEWAY", "CLAUDE_CODE_USE_ANTHROPIC_AWS", "CLAUDE_CODE_USE_CCR_V2", "ANTHROPIC_API_KEY",
        "ANTHROPIC_UNIX_SOCKET", "ANTHROPIC_CUSTOM_HEADERS",
    }
)  # fmt: skip
"""Variables that lead to somebody else's model, or past the token; empty, they do nothing."""
_ELSEWHERE = PROVIDERS | {
    "CLAUDE_API_KEY", "CLAUDE_CODE_AUTO_MODE_MODEL", "CLAUDE_CODE_BG_CLASSIFIER_MODEL",
    "CLAUDE_CONTEXT_COLLAPSE_MODEL", "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY", "CLAUDE_CODE_SESSION_ACCESS_TOKEN",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NODE_OPTIONS", "BUN_OPTIONS", "AWS_BEARER_TOKEN_BEDROCK",
}  # fmt: skip
_PREFIXES = (
    "ANTHROPIC_", "CLAUDE_CODE_OAUTH_", "CLAUDE_CODE_API_", "CLAUDE_CODE_HOST_", "CLAUDE_CODE_PROXY_",
    "CLAUDE_CODE_HTTP", "CLAUDE_BRIDGE_",
)  # fmt: skip
_BODY = "CLAUDE_CODE_EXTRA_BODY"
_BODY_KEPT = frozenset({"model", "stream", "messages", "system", "tools", "tool_choice", "max_tokens", "temperature",
                        "top_p", "top_k", "stop_sequences"})  # fmt: skip
"""Fields of a request that capture reads, or that the plan and the policy version decide."""
_SETTINGS = frozenset(
    {
        "apiKeyHelper", "model", "fallbackModel", "advisorModel", "availableModels", "modelOverrides",
        "proxyAuthHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "forceLoginMethod",
        "forceLoginOrgUUID", "forceLoginGatewayUrl",
    }
)  # fmt: skip
_FLAGS = {
    "--model": "the experiment binds the model",
    "--fallback-model": "the experiment binds the model",
    "--settings": "write them into settings.settings",
    "--session-id": "the platform names sessions",
    "--resume": "the platform names sessions",
    "-r": "the platform names sessions",
    "--continue": "the platform names sessions",
    "-c": "the platform names sessions",
    "--fork-session": "the platform names sessions",
    "--from-pr": "the platform names sessions",
    "--print": "the platform runs it so",
    "-p": "the platform runs it so",
    "--output-format": "the platform reads the output",
    "--input-format": "the profile's instruction_delivery says how the instruction comes",
    "--bare": "it takes no token from the environment",
    "--bg": "the trial would end before the work",
    "--background": "the trial would end before the work",
    "--tmux": "the trial would end before the work",
    "--remote-control": "it leads out of the box",
    "--teleport": "it leads out of the box",
    "--version": "nothing would run",
    "-v": "nothing would run",
    "--help": "nothing would run",
    "-h": "nothing would run",
}
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---", re.DOTALL)
_MODEL_LINE = re.compile(r"^model:\s*['\"]?([^'\"#\s]+)", re.MULTILINE)
_INHERIT = "inherit"
_SETTINGS_FILE = re.compile(r"(^|/)(\.claude/)?settings(\.local)?\.json$")
Conflict = tuple[str, str]
"""Name of what conflicts, and why."""


def of_environment(variables: Mapping[str, str], where: str, *, routed: bool = True) -> Iterator[Conflict]:
    """Yield the variables that conflict.

    Args:
        variables: name to value.
        where: prefix of each name: ``environment``.
        routed: whether those that the platform sets itself are conflicts, too.
    """
    for name, value in variables.items():
        upper = name.upper()
        if name in ROUTED | _OURS:
            if routed:
                yield f"{where}.{name}", "the platform sets the model's address, name, token and limits"
        elif upper in _ELSEWHERE or upper.startswith(_PREFIXES):
            if value:
                yield f"{where}.{name}", "it would take model calls elsewhere"
        elif name == _BODY:
            yield from _of_body(value, f"{where}.{name}")


def _of_body(value: str, where: str) -> Iterator[Conflict]:
    body = _json(value)
    if not isinstance(body, dict):
        yield where, "no JSON object"
        return
    for key in cast("dict[str, object]", body):
        if key in _BODY_KEPT:
            yield f"{where}.{key}", "capture needs it as the harness writes it"


def of_settings(settings: Mapping[str, object], where: str) -> Iterator[Conflict]:
    """Yield the keys of a ``settings.json`` that conflict."""
    for key, value in settings.items():
        if key in _SETTINGS:
            yield f"{where}.{key}", "the experiment binds the model and the platform its access"
        elif key == "env" and isinstance(value, Mapping):
            variables = {str(name): str(text) for name, text in cast("Mapping[object, object]", value).items()}
            yield from of_environment(variables, f"{where}.env")


def of_arguments(arguments: Sequence[str], where: str) -> Iterator[Conflict]:
    """Yield the command-line flags that conflict."""
    for index, argument in enumerate(arguments):
        flag, joined, value = argument.partition("=")
        if flag in _FLAGS:
            yield f"{where}.{flag}", _FLAGS[flag]
        elif flag == "--agents":
            yield from _of_agents(value if joined else "".join(arguments[index + 1 : index + 2]), f"{where}.{flag}")
        elif flag == "--":
            yield f"{where}.--", "the platform puts the instruction there"


def _of_agents(text: str, where: str) -> Iterator[Conflict]:
    agents = _json(text)
    if not isinstance(agents, dict):
        yield where, "no JSON object"
        return
    for name, agent in cast("dict[str, object]", agents).items():
        model = cast("dict[str, object]", agent).get("model", _INHERIT) if isinstance(agent, dict) else _INHERIT
        if model != _INHERIT:
            yield f"{where}.{name}.model", "every agent is the experiment's model; write inherit"


def of_file(path: str, content: str, where: str) -> Iterator[Conflict]:
    """Yield what conflicts in a file that Claude Code reads: settings, agents, skills, commands."""
    if _SETTINGS_FILE.search(path):
        settings = _json(content)
        if not isinstance(settings, dict):
            yield where, "no JSON object"
            return
        yield from of_settings(cast("dict[str, object]", settings), where)
    elif path.endswith(".md") and (front := _FRONT.match(content)) is not None:
        model = _MODEL_LINE.search(front[1])
        if model is not None and model[1] != _INHERIT:
            yield f"{where}.model", "every agent is the experiment's model; write inherit or nothing"


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
