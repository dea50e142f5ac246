"""``synth claude``: the installed Claude Code, in the developer's own directory, on a model of this installation."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform, settings
from domain.errors import ConfigurationError
from domain.records.wording import counted

if TYPE_CHECKING:
    from domain.records.trial import EvidenceRef
    from resources.settings import Settings

_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRun:
    """What came of a session."""

    session: str
    policy: str
    exit_code: int
    evidence: "EvidenceRef"


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(
        epilog=options.example(
            "synth claude --model base:demo",
            "synth claude --model checkpoint:ckpt-0123456789ab -- --continue",
            "synth claude --model base:demo -- -p 'Fix the failing test'",
        )
    )(claude)


def claude(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENT...]", help="For Claude Code, as they are.")
    ] = None,
    *,
    model: Annotated[str, typer.Option(help="Who answers: `base:NAME` or `checkpoint:ID`.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 4096,
    binary: Annotated[
        Path | None, typer.Option(help="Claude Code's program, instead of the `claude` on the path.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Work with Claude Code here, on a base policy or checkpoint, while `synth up` runs.

    Your tools, plugins, permissions, memory and sessions are used as they are (`--continue`, `--resume` ... after `--`
    work as ever). Only where model calls go is laid over your environment: every model name, also of sub-agents, means
    this model. What would take calls elsewhere is refused by name: variables, flags, and settings of yours or of the
    project. The token is for this session alone and is revoked at its end; what was said is kept as evidence, and no
    training reads it. Exit code: Claude Code's.

    The model's context must have room for Claude Code: some 20,000 tokens for its usual first prompt, and 13,000 and an
    answer above. Its windows are set to the model's.

    JSON: {session, policy, exit_code, evidence}, after Claude Code's own output.
    """
    found = _run(list(arguments or ()), model, max_tokens, binary)
    if as_json:
        terminal.emit(found)
    else:
        kept = found.evidence
        said = f"{counted(kept.n_interactions, 'call')}, {counted(kept.n_sampled_tokens, 'sampled token')}"
        terminal.note(f"[dim]{found.policy}: {said}, kept as {kept.object.digest[:12]}[/]")
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _run(arguments: Sequence[str], model: str, max_tokens: int, binary: Path | None) -> ClaudeRun:
    from adapters.engines.claude_code_developer import check_developer, overlay
    from adapters.engines.claude_code_environment import check_size
    from domain.ports import ModelBinding
    from domain.service.developer_session import close_session, model_of_session, open_session
    from resources.wiring import ability_of_base

    opened, where = existing_platform(), settings()
    environment = dict(os.environ)  # noqa: TID251 - the developer's own, which their harness inherits
    policy, base = model_of_session(opened, model)
    ability = ability_of_base(base, opened.store)
    if not ability.can_infer:
        raise ConfigurationError(f"{model}: {'; '.join(ability.no_inference)}", hint="name another model")
    check_size(model, context_tokens=base.context_tokens, max_tokens=max_tokens)
    program, base_url = _program(binary), _proxy(where)
    check_developer(environment, arguments, Path.cwd())
    session = asyncio.run(open_session(opened, model, max_tokens=max_tokens, seed=opened.clock.now_ms()))
    binding = ModelBinding(
        base_url=base_url,
        token=session.secret,
        model=policy,
        max_tokens=max_tokens,
        context_tokens=base.context_tokens,
    )
    try:
        variables, above = overlay(environment, binding)
        code = _wait([str(program), "--settings", above, *arguments], variables)
    finally:
        evidence = asyncio.run(close_session(opened, session))
    return ClaudeRun(session=session.session_id, policy=policy, exit_code=code, evidence=evidence)


def _program(binary: Path | None) -> Path:
    found = shutil.which(binary or "claude")
    if found is None:
        raise ConfigurationError(
            f"{binary or 'claude'}: no such program",
            hint="npm install -g @anthropic-ai/claude-code, or name the program with --binary",
        )
    return Path(found)


def _proxy(where: "Settings") -> str:
    """Return the address of the running model proxy."""
    try:
        port = int((where.run / "proxy.port").read_text())
    except (OSError, ValueError):
        raise ConfigurationError(f"no model process runs in {where.home}", hint="start it with `synth up`") from None
    host = "127.0.0.1" if where.proxy_host in {"0.0.0.0", "::"} else where.proxy_host  # noqa: S104 - compared alone
    return f"http://{host}:{port}"


def _wait(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run in the foreground. The terminal's interrupts are the harness's own; what ends us ends it first."""
    with _signals(), subprocess.Popen(command, env=environment) as process:  # noqa: S603 - the developer's own words
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    return code if code >= 0 else _SIGNALLED - code


@contextmanager
def _signals() -> Generator[None]:
    """Outlive interrupts, and end in good order when told to end: the token must be revoked."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    # A handler, since what is ignored here would be ignored by the program that is started, too.
    handlers: dict[int, Callable[[int, object], None]] = {signal.SIGINT: lambda _number, _frame: None}
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), end)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
