"""Watching an experiment in the ledger: no process is needed but the one that runs it."""

import time
from collections.abc import Iterator
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
        return wait(platform, experiment_id, progress, f"{experiment_id[:12]} trials")


def wait(platform: "Platform", experiment_id: str, progress: "Progress", what: str) -> "ExperimentView":
    """Return the experiment once it has ended, reporting its trials as ``what``."""
    from domain.service import inspection

    while True:
        view = inspection.show(platform, experiment_id)
        progress(what, sum(view.outcomes.values()), view.n_trials_planned)
        if view.experiment.state.is_terminal():
            return view
        time.sleep(POLL_S)
