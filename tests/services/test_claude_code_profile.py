"""Profiles of Claude Code: what conflicts with routing, capture or the bound model is refused by its name."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.claude_code import HOME, ClaudeCodeEngine
from adapters.engines.claude_code_environment import compaction_threshold
from adapters.inputs.documents import read_profile
from adapters.sandboxes.local import LocalSandbox
from adapters.sandboxes.memory import MemorySandbox
from domain.errors import AdmissionError, ConfigurationError
from domain.lifecycle.refusals import toolchains_of
from domain.ports import ModelBinding
from domain.records.profile import InstructionDelivery, Profile, ProfileFile
from domain.records.task import McpServer, NetworkMode, ObjectRef, Phase, Task, TaskEnvironment

PROFILE = Profile(name="c", engine="claude-code", engine_version="2.1.197", model="base:tiny")
TASK = Task(
    name="o/t",
    digest="d",
    instruction="-- Do it.\n",
    archive=ObjectRef(digest="a", size_bytes=0),
    environment=TaskEnvironment(),
    agent=Phase(),
    verifier=Phase(),
)
BINDING = ModelBinding(
    base_url="http://127.0.0.1:1", token="secret-token", model="policy", max_tokens=4000, context_tokens=40_000
)
AGENT = "---\nname: reviewer\ndescription: reviews\nmodel: {}\n---\nReview.\n"


@pytest.fixture
def engine(tmp_path: Path) -> ClaudeCodeEngine:
    """An engine that has version 2.1.197."""
    package = tmp_path / "2.1.197" / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "2.1.197"}')
    return ClaudeCodeEngine(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": None}, "model: missing"),
        ({"engine_version": None}, "engine_version"),
        ({"engine_version": "latest"}, "engine_version"),
        ({"environment": {"ANTHROPIC_BASE_URL": "http://x"}}, r"environment\.ANTHROPIC_BASE_URL"),
        ({"environment": {"ANTHROPIC_AUTH_TOKEN": "x"}}, r"environment\.ANTHROPIC_AUTH_TOKEN"),
        ({"environment": {"ANTHROPIC_CUSTOM_HEADERS": "a: b"}}, r"environment\.ANTHROPIC_CUSTOM_HEADERS"),
        ({"environment": {"CLAUDE_CODE_USE_BEDROCK": "1"}}, r"environment\.CLAUDE_CODE_USE_BEDROCK"),
        ({"environment": {"CLAUDE_CODE_USE_VERTEX": "1"}}, r"environment\.CLAUDE_CODE_USE_VERTEX"),
        ({"environment": {"CLAUDE_CODE_OAUTH_TOKEN": "1"}}, r"environment\.CLAUDE_CODE_OAUTH_TOKEN"),
        ({"environment": {"https_proxy": "http://x"}}, r"environment\.https_proxy"),
        ({"environment": {"CLAUDE_CONFIG_DIR": "/x"}}, r"environment\.CLAUDE_CONFIG_DIR"),
        ({"environment": {"CLAUDE_CODE_EXTRA_BODY": '{"model": "x"}'}}, r"CLAUDE_CODE_EXTRA_BODY\.model"),
        ({"environment": {"CLAUDE_CODE_EXTRA_BODY": '{"stream": false}'}}, r"CLAUDE_CODE_EXTRA_BODY\.stream"),
        ({"environment": {"CLAUDE_CODE_EXTRA_BODY": "oops"}}, r"CLAUDE_CODE_EXTRA_BODY: no JSON"),
        ({"arguments": ("--model", "opus")}, r"arguments\.--model"),
        ({"arguments": ("--fallback-model=opus",)}, r"arguments\.--fallback-model"),
        ({"arguments": ("--output-format", "text")}, r"arguments\.--output-format"),
        ({"arguments": ("--settings", "{}")}, r"arguments\.--settings"),
        ({"arguments": ("--agents", '{"a": {"model": "opus"}}')}, r"arguments\.--agents\.a\.model"),
        ({"settings": {"settings": {"model": "opus"}}}, r"settings\.settings\.model"),
        ({"settings": {"settings": {"apiKeyHelper": "/x"}}}, r"settings\.settings\.apiKeyHelper"),
        ({"settings": {"settings": {"env": {"ANTHROPIC_MODEL": "x"}}}}, r"settings\.settings\.env\.ANTHROPIC_MODEL"),
        ({"settings": {"config": {"agents/r.md": AGENT.format("opus")}}}, r"settings\.config\.agents/r\.md\.model"),
        ({"settings": {"config": {"../x": ""}}}, r"settings\.config\.\.\./x"),
        ({"settings": {"config": {"settings.json": "{}"}}}, r"settings\.config\.settings\.json"),
        ({"settings": {"skils": 1}}, r"settings\.skils"),
        ({"settings": {"binary": "claude"}}, r"settings\.binary"),
        ({"files": (ProfileFile(path=".claude/settings.json", content='{"model": "x"}'),)}, r"files\.0\.model"),
        ({"files": (ProfileFile(path=".claude/agents/r.md", content=AGENT.format("opus")),)}, r"files\.0\.model"),
    ],
)
def test_conflicts_are_refused_by_name(engine: ClaudeCodeEngine, change: dict[str, Any], named: str) -> None:
    """What would route elsewhere, escape capture or change the model is named, wherever a profile can write it."""
    with pytest.raises(ConfigurationError, match=named):
        engine.check(replace(PROFILE, **change))


def test_every_conflict_is_named_at_once(engine: ClaudeCodeEngine) -> None:
    """A profile is corrected in one go."""
    wrong = replace(
        PROFILE, environment={"ANTHROPIC_MODEL": "x"}, arguments=("--model", "y"), settings={"settings": {"model": "z"}}
    )
    with pytest.raises(ConfigurationError) as caught:
        engine.check(wrong)
    for name in ("environment.ANTHROPIC_MODEL", "arguments.--model", "settings.settings.model"):
        assert name in str(caught.value)


def test_native_settings_pass_through(engine: ClaudeCodeEngine) -> None:
    """Everything else is Claude Code's own: settings, hooks, skills, agents, memory, tool servers, flags, variables."""
    native = replace(
        PROFILE,
        environment={"BASH_DEFAULT_TIMEOUT_MS": "9", "API_TIMEOUT_MS": "5", "CLAUDE_CODE_EXTRA_BODY": '{"x": 1}'},
        arguments=("--append-system-prompt", "Be brief.", "--disallowedTools", "Write"),
        settings={
            "settings": {"permissions": {"allow": ["Bash"]}, "env": {"FOO": "1"}, "effortLevel": "low"},
            "config": {
                "CLAUDE.md": "model: none of these\n",
                "agents/r.md": AGENT.format("inherit"),
                "hooks/h.sh": {"content": "#!/bin/sh\n", "executable": True},
            },
            "mcp_servers": {"mine": {"type": "stdio", "command": "x"}},
        },
    )
    served = replace(
        TASK, environment=replace(TASK.environment, mcp_servers=(McpServer(name="t", transport="sse", url="http://t"),))
    )
    launch = engine.launch(native, served, b"", BINDING)
    (upload,), (command,) = launch.uploads, launch.commands
    members = unpacked(upload.tar)
    assert json.loads(members["config/settings.json"][0]) == native.settings["settings"]
    assert members["config/CLAUDE.md"][0] == b"model: none of these\n"
    assert members["config/hooks/h.sh"][1] & 0o100
    assert set(json.loads(members["mcp.json"][0])["mcpServers"]) == {"mine", "t"}
    assert "API_TIMEOUT_MS" not in command.env, "a default of ours gives way to the profile's"
    assert command.argv[-6:-2] == native.arguments
    assert command.argv[-2:] == ("--", TASK.instruction)


def test_the_token_is_in_the_environment_alone(engine: ClaudeCodeEngine) -> None:
    """Neither a file nor an argument holds it, however the instruction is delivered."""
    for delivery in InstructionDelivery:
        launch = engine.launch(replace(PROFILE, instruction_delivery=delivery), TASK, b"", BINDING)
        (upload,), (command,) = launch.uploads, launch.commands
        files = unpacked(upload.tar)
        assert not any(b"secret-token" in content for content, _ in files.values())
        assert not any("secret-token" in part for part in command.argv)
        assert command.env["ANTHROPIC_AUTH_TOKEN"] == "secret-token"
        assert (TASK.instruction in command.argv) is (delivery is InstructionDelivery.ARGUMENT)
        assert (f"{HOME}/instruction.md" in command.argv) is (delivery is InstructionDelivery.FILE)
        assert bool(command.stdin) is (delivery is InstructionDelivery.STDIN)


def test_sealed_tasks_have_no_web(engine: ClaudeCodeEngine) -> None:
    """WebFetch and WebSearch are denied where the agent has no public network, above every settings file."""
    denied: dict[NetworkMode, object] = {}
    for mode in NetworkMode:
        task = replace(TASK, environment=replace(TASK.environment, network_mode=mode))
        above = json.loads(unpacked(engine.launch(PROFILE, task, b"", BINDING).uploads[0].tar)["above.json"][0])
        denied[mode] = above.get("permissions")
    sealed = {"deny": ["WebFetch", "WebSearch"]}
    assert denied == {NetworkMode.PUBLIC: None, NetworkMode.NO_NETWORK: sealed, NetworkMode.ALLOWLIST: sealed}


def test_a_task_may_not_route_either(engine: ClaudeCodeEngine) -> None:
    """A task's environment that conflicts is named at launch; a server of one name cannot come from both."""
    task = replace(TASK, environment=replace(TASK.environment, env={"CLAUDE_CODE_USE_VERTEX": "1"}))
    with pytest.raises(ConfigurationError, match=r"o/t: environment\.env\.CLAUDE_CODE_USE_VERTEX"):
        engine.launch(PROFILE, task, b"", BINDING)
    served = replace(
        TASK, environment=replace(TASK.environment, mcp_servers=(McpServer(name="m", transport="sse", url="http://t"),))
    )
    with pytest.raises(ConfigurationError, match=r"settings\.mcp_servers\.m"):
        engine.launch(replace(PROFILE, settings={"mcp_servers": {"m": {}}}), served, b"", BINDING)


def test_the_windows_are_the_models(engine: ClaudeCodeEngine) -> None:
    """The rules of the harness, at the setting that was measured; a model that is too small is refused with sizes."""
    assert compaction_threshold(40_000, 4_000) == 23_000
    (command,) = engine.launch(PROFILE, TASK, b"", BINDING).commands
    assert command.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "4000"
    assert command.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40000"
    assert command.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "100000"
    with pytest.raises(AdmissionError, match=r"at least 19000 tokens .* has 16000"):
        engine.check_model(PROFILE, context_tokens=16_000, max_tokens=4_000)


def test_the_program_comes_from_this_machine_or_the_image(engine: ClaudeCodeEngine, tmp_path: Path) -> None:
    """The pinned version is bound into boxes that can, and its absence is said with the command that ends it."""
    local, memory = LocalSandbox(tmp_path / "boxes", None), MemorySandbox()
    (toolchain,) = toolchains_of(PROFILE, engine, local)
    assert (toolchain.name, Path(toolchain.source).name) == ("claude-code", "@anthropic-ai")
    with pytest.raises(AdmissionError, match="sandbox 'memory' binds no programs"):
        toolchains_of(PROFILE, engine, memory)
    own = replace(PROFILE, settings={"binary": "/usr/bin/claude"})
    assert toolchains_of(own, engine, memory) == ()
    with pytest.raises(AdmissionError, match=r"2\.1\.200.*npm install"):
        toolchains_of(replace(PROFILE, engine_version="2.1.200"), engine, local)


def unpacked(tar: bytes) -> dict[str, tuple[bytes, int]]:
    """Return content and mode of each file of a tar."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        opened = {member.name: (archive.extractfile(member), member.mode) for member in archive}
        return {name: (file.read(), mode) for name, (file, mode) in opened.items() if file is not None}


def test_the_example_is_a_profile(engine: ClaudeCodeEngine) -> None:
    """The document that people copy is read and checked."""
    engine.check(read_profile(Path("examples/claude-code.json")))
