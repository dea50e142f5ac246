"""Progress of long work in the run's log: a line every tenth, since each line is a database write."""

import dagster as dg

from domain.ports import Progress

_LINES = 10


def log_progress(log: dg.DagsterLogManager) -> Progress:
    """Return a progress callback that writes at most some ten lines for each kind of thing."""
    written: dict[str, int] = {}

    def note(what: str, done: int, total: int) -> None:
        tenth = done * _LINES // total if total else _LINES
        if tenth > written.get(what, 0):
            written[what] = tenth
            log.info("%s %s/%s", what, done, total)

    return note
