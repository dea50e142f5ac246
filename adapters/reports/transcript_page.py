"""A trial's transcript as one HTML page."""

from adapters.reports.conversation import turns_of
from adapters.reports.pages import render
from domain.service.inspection import Transcript


def transcript_page(found: Transcript, *, home: str | None = None) -> str:
    """Return a self-contained page of one trial.

    Args:
        found: the trial, its assessments and interactions.
        home: address of the experiment's report, for a link back.
    """
    turns = turns_of(found.interactions)
    return render(
        "transcript.html",
        trial=found.trial,
        assessments=found.assessments,
        turns=turns,
        agents=list(dict.fromkeys(turn.agent for turn in turns)),
        home=home,
    )
