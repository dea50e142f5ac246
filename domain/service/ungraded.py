"""Why trials have no reward, counted: what stands behind an ungraded share, or behind a run that graded nothing."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from domain.records.assessment import Assessment, AssessmentOutcome

NOTHING_GRADED = "no trial was graded"
_LONGEST = 160
"""Characters of a reason; the whole of it is in the trial's transcript."""
_OWN = re.compile(r"^verifier of trial \S+: |\b[vt]-[0-9a-z]{20,}\b")
"""What differs between trials that failed for the same reason: their ids and their boxes' ids."""


def ungraded_reasons(assessments: Iterable[Assessment]) -> dict[str, int]:
    """Return reason -> count of ungraded assessments, the most frequent first."""
    found = Counter(_short(item.reason) for item in assessments if item.outcome is AssessmentOutcome.UNGRADED)
    return dict(found.most_common())


def nothing_graded(reasons: Mapping[str, int]) -> str:
    """Return what is said of a run without any reward: ``no trial was graded: 3 x no reward file``."""
    said = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
    return f"{NOTHING_GRADED}: {said}"[:500] if said else NOTHING_GRADED


def _short(reason: str) -> str:
    first = next((line.strip() for line in _OWN.sub("", reason).splitlines() if line.strip()), "no reason was given")
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
