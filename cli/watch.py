"""Watching an experiment in the ledger: no process is needed but the one that runs it."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cli import terminal

if TYPE_CHECKING:
    from domain.ports import Progress
    from domain.records.experiment import Event
    from domain.service.inspection import ExperimentView
    from domain.service.platform import Platform

POLL_S = 0.5
_PAGE = 500


def follow(platform: "Platform", experiment_id: str, cursor: int) -> "Iterator[Event]":
    """Yield events after ``cursor`` as they are appended, and end when the experiment has ended."""
    from domain.service import inspection

    while True:
        with platform.ledger.snapshot() as tx:
            ended = tx.experiments.get(experiment_id).state.is_terminal()
        page = inspection.events(platform, experiment_id, cursor, _PAGE)
        yield from page
        if page:
            cursor = page[-1].cursor
        elif ended:
            return
        else:
            time.sleep(POLL_S)


def until_ended(platform: "Platform", experiment_id: str, *, shown: bool) -> "ExperimentView":
    """Return the experiment once it has ended, with a bar of its trials meanwhile."""
    with terminal.bars(shown=shown) as progress:
        return wait(platform, experiment_id, progress, f"{experiment_id[:12]} trials", lambda: None)


def wait(
    platform: "Platform", experiment_id: str, progress: "Progress", what: str, check: Callable[[], None]
) -> "ExperimentView":
    """Return the experiment once it has ended, reporting its trials as ``what``.

    Args:
        platform: where.
        experiment_id: which.
        progress: told of trials done; counted from events, so that a long training costs a poll no more than a short.
        what: the name of the bar.
        check: called at each poll; raises when there is nothing to wait for any more.
    """
    from domain.service import inspection

    planned = inspection.show(platform, experiment_id).n_trials_planned
    cursor, done = 0, 0
    while True:
        with platform.ledger.snapshot() as tx:
            ended = tx.experiments.get(experiment_id).state.is_terminal()
            page = tx.events.after(experiment_id, cursor, _PAGE)
        cursor = page[-1].cursor if page else cursor
        done += sum(item.kind == "trial.ended" and item.body.get("outcome") != "infra_error" for item in page)
        progress(what, done, planned)
        if ended and not page:
            return inspection.show(platform, experiment_id)
        if not page:
            check()
            time.sleep(POLL_S)
