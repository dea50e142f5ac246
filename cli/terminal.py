"""What a command shows: JSON for programs, tables and progress bars for people.

Results go to stdout, everything else to stderr, so that a pipe sees results alone.
"""

import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from domain.errors import SynthError
    from domain.ports import Progress

EXIT_FAILED = 1
"""The work failed, or the platform could not do it."""
EXIT_WRONG = 2
"""What was asked is wrong: a document, a name, an identity that is taken. The same as for wrong options."""
EXIT_INTERRUPTED = 130
_drawing: "list[Console]" = []
"""Consoles with bars on them: a line must go through the same one, which moves the bars down."""
_PIPE_WIDTH = 200
"""Columns of a table that goes through a pipe: nobody's window bounds it."""


def command() -> str:
    """Return how ``synth`` is called here: by its name when it is on the path, else by the path of this one."""
    from shutil import which

    if which("synth") is not None or Path(sys.argv[0]).name != "synth":
        return "synth"
    return os.path.relpath(sys.argv[0])


def emit(value: object) -> None:
    """Print a record, or anything made of records, as one indented JSON document."""
    from domain.records.canonical import jsonable

    sys.stdout.write(json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def emit_line(value: object) -> None:
    """Print a record as one line of JSON: streams are one document a line."""
    from domain.records.canonical import jsonable

    sys.stdout.write(json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(text: str = "") -> None:
    """Print a line for people on stdout; ``[bold]`` and the like are markup."""
    console().print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line for people on stderr."""
    console(stderr=True).print(text, highlight=False, soft_wrap=True)


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset(), empty: str = ""
) -> None:
    """Print a table; ``right`` names the columns of numbers, ``empty`` is said instead where there is no row."""
    from rich import box
    from rich.table import Table

    if empty and not rows:
        say(empty)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        first = column == columns[0]
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=first or column in right
        )
    for row in rows:
        table.add_row(*row)
    console().print(table)


def console(*, stderr: bool = False) -> "Console":
    """Return a console on the stream as it is now; while bars are drawn, the one that draws them."""
    from rich.console import Console

    if stderr and _drawing:
        return _drawing[-1]
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)


def show_error(error: "SynthError", *, as_json: bool) -> int:
    """Print an error on stderr and return the exit code: 2 when the request is wrong, else 1."""
    from domain.errors import ConfigurationError, ConflictError, NotFoundError

    wrong = isinstance(error, (ConfigurationError, NotFoundError, ConflictError))
    if as_json:
        body = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
        sys.stderr.write(json.dumps(body, ensure_ascii=False) + "\n")
    else:
        from rich.text import Text

        from adapters.reports.formats import visible

        lines = Text.assemble(("error: ", "bold red"), visible(error.message))
        if error.hint:
            lines.append_text(Text.assemble("\n", (" hint: ", "bold cyan"), visible(error.hint)))
        console(stderr=True).print(lines, highlight=False, soft_wrap=True)
    return EXIT_WRONG if wrong else EXIT_FAILED


@contextmanager
def _through(target: "Console") -> Generator[None]:
    _drawing.append(target)
    try:
        yield
    finally:
        _drawing.pop()


@contextmanager
def bars(*, shown: bool) -> "Generator[Progress]":
    """Yield a progress callback ``(what, done, total)`` that draws one bar for each ``what`` on stderr.

    Nothing is shown when ``shown`` is False. Where no bar can be drawn, lines say how far the work is.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from cli.progress_lines import ProgressLines

    target = console(stderr=True)
    if not shown:
        yield lambda what, done, total: None  # noqa: ARG005 - reports to nobody
        return
    if not target.is_terminal:
        yield ProgressLines(say=note)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]elapsed,[/]"),
        TimeRemainingColumn(),
        TextColumn("[dim]left[/]"),
    )
    with RichProgress(*columns, console=target) as progress, _through(target):
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield report
