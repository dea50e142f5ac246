"""The mini engine: its launches, and its program against a real proxy with a scripted sampler."""

import asyncio
import importlib.util
import io
import json
import sys
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engines import mini
from adapters.engines.mini import HOME, LOGS, MiniEngine
from domain.errors import ConfigurationError, SamplerError
from domain.lifecycle.mini_dialogue import MALFORMED, SYSTEM_PROMPT, tool_result
from domain.ports import ModelBinding
from domain.records.profile import InstructionDelivery, Profile
from domain.records.task import ObjectRef, Phase, Task, TaskEnvironment
from domain.records.trial import Interaction
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import MODEL, Process, ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import assert_exact

PROFILE = Profile(name="m", engine="mini", model="base:tiny")
TASK = Task(
    name="o/t",
    digest="d",
    instruction="Do it.\n",
    archive=ObjectRef(digest="a", size_bytes=0),
    environment=TaskEnvironment(),
    agent=Phase(),
    verifier=Phase(),
)
BINDING = ModelBinding(base_url="http://127.0.0.1:1", token="secret-token", model=MODEL, max_tokens=64)
PROGRAM = Path(mini.__file__).parent / "box" / "mini_agent.py"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"environment": {"ANTHROPIC_BASE_URL": "http://x"}}, "environment.ANTHROPIC_BASE_URL"),
        ({"environment": {"ANTHROPIC_AUTH_TOKEN": "x"}}, "environment.ANTHROPIC_AUTH_TOKEN"),
        ({"settings": {"turns": 3}}, "settings.turns"),
        ({"settings": {"max_turns": 0}}, "settings.max_turns"),
        ({"settings": {"max_turns": 2.5}}, "settings.max_turns"),
        ({"settings": {"max_turns": True}}, "settings.max_turns"),
        ({"settings": {"command_timeout_s": "20"}}, "settings.command_timeout_s"),
        ({"settings": {"stream": 1}}, "settings.stream"),
        ({"arguments": ("--fast",)}, "arguments"),
        ({"engine_version": "2"}, "engine_version"),
        ({"model": None}, "model"),
    ],
)
def test_conflicting_profiles_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    """A profile that conflicts with routing or that mini does not understand names its field."""
    with pytest.raises(ConfigurationError, match=field):
        MiniEngine().check(replace(PROFILE, **change))


def test_a_launch_needs_a_model() -> None:
    """Without a binding there is nothing to launch."""
    with pytest.raises(ConfigurationError):
        MiniEngine().launch(PROFILE, TASK, b"", None)


def test_the_instruction_is_delivered_as_the_profile_says() -> None:
    """As an argument, on standard input or in a file; the token is in the environment alone."""
    engine = MiniEngine()
    for delivery in InstructionDelivery:
        launch = engine.launch(replace(PROFILE, instruction_delivery=delivery), TASK, b"", BINDING)
        (command,), (upload,) = launch.commands, launch.uploads
        files = unpacked(upload.tar)
        assert upload.target == HOME
        assert (TASK.instruction in command.argv) is (delivery is InstructionDelivery.ARGUMENT)
        assert command.stdin == (TASK.instruction.encode() if delivery is InstructionDelivery.STDIN else b"")
        assert ("instruction.md" in files) is (delivery is InstructionDelivery.FILE)
        assert command.env["ANTHROPIC_AUTH_TOKEN"] == BINDING.token
        assert not any(BINDING.token.encode() in content for content in files.values())


def test_a_harness_that_speaks_the_socket_dials_no_url() -> None:
    """Where the box has the proxy's socket, the program uses it and no relay is started for it."""
    dialled = MiniEngine().launch(PROFILE, TASK, b"", BINDING)
    direct = MiniEngine().launch(PROFILE, TASK, b"", replace(BINDING, socket="/.synth/model/s"))
    assert dialled.commands[0].dials_proxy
    assert not direct.commands[0].dials_proxy
    assert json.loads(unpacked(direct.uploads[0].tar)["config.json"])["socket"] == "/.synth/model/s"


def loaded() -> Any:
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("mini_agent", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_json_values)
def test_the_program_reads_and_writes_json_as_python_does(value: Any) -> None:
    """Its own small reader and writer agree with the library's, which takes too long to import in a box."""
    program = loaded()
    assert json.loads(program.encode(value)) == value
    for text in (json.dumps(value), f" \n{json.dumps(value, indent=1, ensure_ascii=False)}\t"):
        assert program.decode(text) == value


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "{'a': 1}", "1 2", "NaN", "[Infinity]", '"\n"', "tru", "<html>"]
)
def test_the_program_refuses_what_is_no_json(text: str) -> None:
    """A body that is not JSON is a ValueError, which counts as a fault of the model."""
    with pytest.raises(ValueError, match=r"\w"):
        loaded().decode(text)
    with pytest.raises(TypeError, match="no JSON"):
        loaded().encode([{"a": {1}}])


def test_the_program_tells_results_as_demonstrations_do() -> None:
    """The program's text of a result is the domain's, at every length and exit code."""
    program = loaded()
    for output in ("", " \n", "x", "y" * 399, "z" * 400, "w" * 401 + "\n", "é" * 1001):
        for code in (0, 1, 124):
            assert program.tool_result(code, output, 400) == tool_result(code, output)


def unpacked(tar: bytes) -> dict[str, bytes]:
    """Return the files of a tar."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        opened = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in opened.items() if file is not None}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run of the program ended."""

    code: int
    summary: dict[str, Any]
    stderr: str
    trajectory: list[dict[str, Any]]
    calls: tuple[Interaction, ...]
    duration_s: float


async def launch(process: Process, directory: Path, *, token: str = "", **settings: float) -> Ended:
    """Run what the engine launches, with its absolute paths moved below ``directory``."""
    retry_s = settings.pop("retry_s", 5.0)
    binding = replace(BINDING, base_url=process.url, token=token or process.tokens.issue("t1"))
    started = MiniEngine().launch(replace(PROFILE, settings=settings), TASK, b"", binding)
    home, logs, work = directory / "home", directory / "logs", directory / "work"
    for folder in (home, work):
        folder.mkdir()
    for name, content in unpacked(started.uploads[0].tar).items():
        (home / name).write_bytes(content)
    config = json.loads((home / "config.json").read_text())
    assert config["logs"] == LOGS
    (home / "config.json").write_text(json.dumps({**config, "logs": str(logs), "retry_s": retry_s}))
    command = started.commands[0]
    began = time.monotonic()
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *(part.replace(HOME, str(home)) for part in command.argv[1:]),
        cwd=work,
        env={"PATH": "/usr/bin:/bin", "HOME": str(work), **command.env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await running.communicate()
    assert running.returncode is not None
    return Ended(
        code=running.returncode,
        summary=json.loads(stdout.decode().splitlines()[-1]),
        stderr=stderr.decode(),
        trajectory=[json.loads(line) for line in (logs / "trajectory.jsonl").read_text().splitlines()],
        calls=await process.evidence.staged("t1"),
        duration_s=time.monotonic() - began,
    )


def call(command: str) -> str:
    """Return a turn that calls bash."""
    return f"<call>bash {json.dumps({'command': command})}</call>"


async def test_it_works_until_the_model_is_done(tmp_path: Path) -> None:
    """Commands run in the working directory, their results come back, and every prompt extends the one before."""
    script = [call("echo hi > out; cat out; env"), call("exit 3"), "done"]
    async with model_process(tmp_path, MemoryStore(), script) as process:
        ended = await launch(process, tmp_path)
    assert ended.code == 0, ended.stderr
    assert (tmp_path / "work" / "out").read_text() == "hi\n"
    assert ended.summary["turns"] == 3
    assert ended.summary["commands"] == 2
    assert ended.summary["output_tokens"] == sum(len(each.sampled_ids) for each in ended.calls)
    assert [message["role"] for message in ended.trajectory] == ["user", "assistant"] * 3
    assert [each.segment for each in ended.calls] == [0, 0, 0]
    shown = ScriptedFamily().decode(ended.calls[2].prompt_ids)
    assert shown.startswith(f"<s>tools:bash</s><s>system:{SYSTEM_PROMPT}</s><s>user:Do it.</s><s>assistant:<call>")
    assert "<s>tool/bash:hi\n" in shown
    assert "<s>tool/bash:exit 3</s>" in shown
    assert "ANTHROPIC" not in shown, "commands do not see the model's address and token"


async def test_sub_agents_have_conversations_of_their_own(tmp_path: Path) -> None:
    """A helper and its helper: each is named to the proxy, works in the same box and reports its last words."""

    def agent(prompt: str) -> str:
        return f"<call>agent {json.dumps({'prompt': prompt})}</call>"

    script = [agent("first part"), call("echo one > one"), agent("inner"), "inner words", "helper words", "done"]
    async with model_process(tmp_path, MemoryStore(), script) as process:
        ended = await launch(process, tmp_path, agents=True)
    assert ended.code == 0, ended.stderr
    assert [each.agent for each in ended.calls] == ["main", "a1", "a1", "a2", "a1", "main"]
    assert {each.segment for each in ended.calls} == {0}
    assert_exact(ended.calls)
    assert (tmp_path / "work" / "one").read_text() == "one\n"
    assert ended.summary["agents"] == 2
    assert "<s>tool/agent:helper words</s>" in ScriptedFamily().decode(ended.calls[5].prompt_ids)
    assert "<s>tools:bash,agent</s>" in ScriptedFamily().decode(ended.calls[3].prompt_ids)
    headers: Any = ended.calls[3].request["extra"]
    assert headers["headers"]["x-claude-code-parent-agent-id"] == "a1"


async def test_it_reads_streams(tmp_path: Path) -> None:
    """With streaming on, text, calls and failures are the same; a stream that fails is asked again."""
    script = ["Grüße " + call("echo hi > out"), SamplerError("late"), "x" * 99, "done"]
    sampler = ScriptedSampler(script=list(script), delay_s=0.1)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process:
        ended = await launch(process, tmp_path, stream=True)
    assert ended.code == 0, ended.stderr
    assert (tmp_path / "work" / "out").read_text() == "hi\n"
    assert ended.trajectory[1]["content"][0]["text"] == "Grüße "
    assert ended.summary["output_tokens"] == sum(len(each.sampled_ids) for each in ended.calls)
    assert ended.summary["malformed"] == 1
    assert [each.segment for each in ended.calls] == [0, 0, 0]
    assert_exact(ended.calls)


async def test_a_call_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Malformed calls, unknown tools and cut turns cost a turn and are told to the model."""
    script = [
        "<call>bash {oops</call>",
        '<call>zsh {"command": "ls"}</call>',
        '<call>bash {"cmd": 1}</call>',
        "x" * 99,
        "done",
    ]
    async with model_process(tmp_path, MemoryStore(), script) as process:
        ended = await launch(process, tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.summary["malformed"] == 4
    assert ended.summary["commands"] == 0
    assert [each.segment for each in ended.calls] == [0] * 5
    assert ScriptedFamily().decode(ended.calls[4].prompt_ids).count(MALFORMED) == 4


async def test_commands_are_bounded(tmp_path: Path) -> None:
    """A command past its time is killed with all it started; a background process does not hold the turn."""
    script = [call("sleep 60 & wait"), call("sleep 3 & echo started"), call("yes | head -c 5000000"), "done"]
    async with model_process(tmp_path, MemoryStore(), script) as process:
        ended = await launch(process, tmp_path, command_timeout_s=1.0)
    assert ended.code == 0, ended.stderr
    told = [message["content"][0]["content"] for message in ended.trajectory[2::2]]
    assert told[0] == "time-out after 1 s\nexit 124"
    assert told[1] == "started"
    assert len(told[2]) < 420
    assert ended.duration_s < 20


async def test_turns_are_bounded(tmp_path: Path) -> None:
    """Out of turns is exit code 3, with a reason that the trial record shows."""
    async with model_process(tmp_path, MemoryStore(), [call("true")] * 5) as process:
        ended = await launch(process, tmp_path, max_turns=2)
    assert ended.code == 3
    assert ended.stderr.strip() == "out of turns"
    assert len(ended.calls) == 2


async def test_passing_faults_are_tried_again(tmp_path: Path) -> None:
    """A model that fails once is asked again, and the agent finishes."""
    async with model_process(tmp_path, MemoryStore(), [SamplerError("restarting"), "done"]) as process:
        ended = await launch(process, tmp_path)
        assert await process.desk.close_trial("t1") == ""
    assert ended.code == 0, ended.stderr


async def test_a_refused_model_is_an_agent_error(tmp_path: Path) -> None:
    """A token that is refused ends the agent at once with exit code 2."""
    async with model_process(tmp_path, MemoryStore()) as process:
        ended = await launch(process, tmp_path, token="wrong")
    assert ended.code == 2
    assert "status 410" in ended.stderr
    assert "wrong" not in ended.stderr
    assert ended.duration_s < 10
