"""``synth claude``: the real Claude Code in a developer's own directory, on a served policy version."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.stores.directory import DirectoryStore
from adapters.trainers.tokenizer_training import byte_tokenizer
from domain.records.model import BasePolicy, FileEntry
from domain.service.platform import Platform
from resources.settings import environment_of, read_settings
from resources.wiring import connect
from tests.fakes.scripted_model import BASE, model_process
from tests.services.claude_tool import PartSampler, binary, call

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Developer:
    """Somebody with a home of their own."""

    home: Path
    work: Path
    platform: Platform
    variables: dict[str, str]

    async def synth(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run the command in the working directory; returns exit code, output and errors."""
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from cli.main import main; sys.exit(main())",
            *arguments,
            cwd=self.work,
            env={**self.variables, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await running.communicate()
        assert running.returncode is not None
        return running.returncode, out.decode(), err.decode()

    def tokens(self) -> list[tuple[str, bool]]:
        """Return sessions and whether their tokens were revoked."""
        from sqlalchemy import create_engine, text

        engine = create_engine(f"sqlite:///{self.home}/ledger.db")
        with engine.connect() as connection:
            rows = connection.execute(text("select trial_id, revoked from tokens")).all()
        engine.dispose()
        return [(str(row[0]), bool(row[1])) for row in rows]


@asynccontextmanager
async def developer(
    tmp_path: Path, parts: dict[str, list[str | Exception]], *, context_tokens: int = 400_000, family: str = "qwen3"
) -> AsyncGenerator[Developer]:
    """Serve a policy in parts to a developer who has `claude` on the path."""
    home, work = tmp_path / "synth", tmp_path / "work"
    settings = read_settings({"SYNTH_HOME": str(home)})
    platform = connect(settings)
    store = DirectoryStore(settings.store)
    tokenizer = FileEntry(path="tokenizer.json", content=store.put(byte_tokenizer().to_str().encode()))
    base = BasePolicy(
        name="tiny",
        digest=BASE.base,
        family=family,
        files=(tokenizer,),
        recipe_digest="",
        context_tokens=context_tokens,
        n_parameters=1,
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)
    programs, user = tmp_path / "bin", tmp_path / "user"
    for directory in (programs, user / ".claude" / "commands", work / ".claude"):
        directory.mkdir(parents=True)
    (programs / "claude").symlink_to(binary())
    path = f"{programs}:{os.environ['PATH']}"  # noqa: TID251 - tests may
    variables = {**environment_of(settings), "PATH": path, "HOME": str(user), "PYTHONPATH": str(ROOT)}
    sampler = PartSampler(parts=parts, context_tokens=context_tokens)
    async with model_process(
        tmp_path, platform.store, sampler=sampler, family=sampler.family, ledger=platform.ledger
    ) as process:
        (settings.run / "proxy.port").write_text(process.url.rpartition(":")[2])
        settings.control_socket.symlink_to(process.endpoints.control_socket)
        yield Developer(home=home, work=work, platform=platform, variables=variables)


async def test_a_developer_works_on_a_policy(tmp_path: Path) -> None:
    """Their own commands and permissions hold, the session is theirs to resume, and the token ends with it."""
    parts: dict[str, list[str | Exception]] = {
        "main": [call("Bash", command="touch out", description="x"), "Done.", "Remembered."]
    }
    async with developer(tmp_path, parts) as somebody:
        allowed = {"permissions": {"allow": ["Bash(touch:*)"]}, "model": "opus", "env": {"ANTHROPIC_MODEL": "sonnet"}}
        (tmp_path / "user" / ".claude" / "settings.json").write_text(json.dumps(allowed))
        (tmp_path / "user" / ".claude" / "commands" / "go.md").write_text("[[part:main]] Say hi.\n")
        code, out, err = await somebody.synth(
            "claude", "--model", "base:tiny", "--json", "--", "-p", "/go", "--output-format", "json",
            ANTHROPIC_API_KEY="sk-theirs", HTTPS_PROXY="http://127.0.0.1:9",
        )  # fmt: skip
        assert code == 0, err + out
        said, _, summary = out.partition("\n")
        result: Any = json.loads(said)
        kept: Any = json.loads(summary)
        assert (result["result"], result["permission_denials"]) == ("Done.", [])
        assert (somebody.work / "out").exists()
        assert kept["evidence"]["n_interactions"] == 2
        assert somebody.tokens() == [(kept["session"], True)]
        resumed = await somebody.synth(
            "claude", "--model", "base:tiny", "--", "-p", "--resume", result["session_id"], "And now?"
        )
        assert resumed[:2] == (0, "Remembered.\n"), resumed
        assert "1 call, " in resumed[2]
        assert [revoked for _, revoked in somebody.tokens()] == [True, True]


async def test_what_leads_elsewhere_is_named(tmp_path: Path) -> None:
    """Variables, flags and settings of developer and project that cannot be laid over, all at once; nothing starts."""
    async with developer(tmp_path, {}) as somebody:
        (somebody.work / ".claude" / "settings.json").write_text('{"apiKeyHelper": "/x"}')
        (tmp_path / "user" / ".claude" / "settings.json").write_text('{"env": {"CLAUDE_CODE_USE_VERTEX": "1"}}')
        code, _, err = await somebody.synth(
            "claude", "--model", "base:tiny", "--", "--model", "opus",
            CLAUDE_CODE_USE_BEDROCK="1", ANTHROPIC_CUSTOM_HEADERS="a: b",
        )  # fmt: skip
        assert code == 2, err
        for name in (
            "environment.CLAUDE_CODE_USE_BEDROCK",
            "environment.ANTHROPIC_CUSTOM_HEADERS",
            "arguments.--model",
            "work/.claude/settings.json.apiKeyHelper",
            "user/.claude/settings.json.env.CLAUDE_CODE_USE_VERTEX",
        ):
            assert name in err
        assert somebody.tokens() == []


async def test_a_model_that_cannot_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Too small a context, a format that nothing here speaks, no program, nothing that serves."""
    async with developer(tmp_path, {}, context_tokens=20_000) as somebody:
        refused = await somebody.synth("claude", "--model", "base:tiny", "--max-tokens", "8192")
        assert refused[0] == 2
        assert "context of at least 23192 tokens" in refused[2]
        assert "has 20000" in refused[2]
        assert "other" in (await somebody.synth("claude", "--model", "base:other"))[2]
        nowhere = await somebody.synth("claude", "--model", "base:tiny", PATH="/usr/bin:/bin")
        assert "claude: no such program" in nowhere[2]
        (somebody.home / "run" / "proxy.port").unlink()
        assert "start it with `synth up`" in (await somebody.synth("claude", "--model", "base:tiny"))[2]
        assert somebody.tokens() == []


async def test_a_format_that_nothing_here_speaks_is_refused(tmp_path: Path) -> None:
    """A model whose family is unknown cannot be asked, whatever its size."""
    async with developer(tmp_path, {}, family="unheard-of") as somebody:
        assert "no family 'unheard-of'" in (await somebody.synth("claude", "--model", "base:tiny"))[2]
