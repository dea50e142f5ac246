"""The ``synth`` command: a client of the same use cases that Dagster calls.

Exit codes: 0 done; 1 the work failed; 2 the request is wrong (document, name, identity, option); 130 interrupted.
Heavy libraries are imported by the command that needs them, so that ``synth --help`` answers at once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli import agent, capacity, catalog, claude, demo, run, service, task_check, terminal, train, vllm
from cli.connection import use_home
from domain.errors import ConfigurationError, SynthError

app = typer.Typer(
    name="synth",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start here: `synth demo`. State lives in SYNTH_HOME (default: .synth here).",
)
app.add_typer(run.app, name="run")
app.add_typer(train.app, name="train")
app.add_typer(agent.app, name="agent")
app.add_typer(catalog.task_sets, name="task-set")
task_check.register(catalog.task_sets)
app.add_typer(catalog.profiles, name="profile")
app.add_typer(catalog.policies, name="policy")
service.register(app)
capacity.register(app)
claude.register(app)
vllm.register(app)
demo.register(app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if wanted:
        from importlib.metadata import version

        terminal.say(f"synth {version('synth-platform')}")
        raise typer.Exit


@app.callback()
def synth(
    *,
    home: Annotated[
        Path | None, typer.Option(help="State directory; instead of SYNTH_HOME, for this command.", show_default=False)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Run, evaluate and train tool-using agents."""
    del version
    use_home(home)


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: neither a ledger nor a message can hold them. Raises ConfigurationError."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = argument.encode(errors="backslashreplace").decode()
            raise ConfigurationError(f"argument {shown}: not UTF-8", hint="write it as UTF-8") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what Synth raises becomes a message with a hint, no traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_text(given)
        app(args=given, prog_name="synth")
    except SynthError as error:
        return terminal.show_error(error, as_json="--json" in given)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else terminal.EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
