"""What an identity names, by its form alone, and what to say where another kind was wanted."""

import re
from collections.abc import Sequence
from enum import StrEnum

from domain.records.wording import did_you_mean

_EXPERIMENT = r"(?P<experiment>(?:evl|uns|trn|rgr|imp)-[^./@]+)"
_NEAR = 0.9
"""Ids of one day are alike in a third of their characters."""


class Named(StrEnum):
    """What an identity names."""

    EXPERIMENT = "experiment"
    UNIT = "unit"
    ATTEMPT = "attempt"
    TRIAL = "trial"
    CHECKPOINT = "checkpoint"


_FORMS = {
    Named.EXPERIMENT: re.compile(_EXPERIMENT),
    Named.UNIT: re.compile(rf"{_EXPERIMENT}\.[sb]\d+"),
    Named.ATTEMPT: re.compile(rf"{_EXPERIMENT}\.[sb]\d+/.*"),
    Named.TRIAL: re.compile(r"[0-9a-hjkmnp-tv-z]{26}"),
    Named.CHECKPOINT: re.compile(rf"ckpt-.+|{_EXPERIMENT}@\d+"),
}
_WAYS = {
    Named.EXPERIMENT: "`synth run list --all` shows what there is",
    Named.UNIT: "`synth run show EXPERIMENT` shows its units",
    Named.ATTEMPT: "`synth run trials EXPERIMENT` shows its attempts",
    Named.TRIAL: "`synth run trials EXPERIMENT` shows its trials, once they have ended",
    Named.CHECKPOINT: "`synth run checkpoints TRAINING` shows its checkpoints; TRAINING@N is the policy after batch N",
}


def named_by(text: str) -> Named | None:
    """Return what ``text`` names by its form; None for no identity."""
    return next((kind for kind, form in _FORMS.items() if form.fullmatch(text)), None)


def identity_hint(text: str, wanted: Named, known: Sequence[str] = ()) -> str:
    """Return what to say where ``text`` names no ``wanted``.

    Args:
        text: what was given.
        wanted: what belongs there.
        known: ids of that kind that may have been meant; for the units of an experiment, all of them.
    """
    given = named_by(text)
    if given is None or given is wanted:
        meant = did_you_mean(text, known, near=_NEAR)
        return f"{meant} {_WAYS[wanted]}".lstrip()
    said = f"that names {'an' if given.value[0] in 'ae' else 'a'} {given.value}"
    match = _FORMS[given].fullmatch(text)
    experiment = (match.groupdict().get("experiment") if match else None) or "EXPERIMENT"
    if wanted is Named.EXPERIMENT:
        return f"{said}; {_experiment_way(given, text, experiment)}"
    if wanted is Named.UNIT and known:
        return f"{said}; name a unit: {_some(known)}"
    return f"{said}; {_WAYS[wanted]}".replace("EXPERIMENT", experiment).replace("its trials", "the trials")


def _experiment_way(given: Named, text: str, experiment: str) -> str:
    if given is Named.TRIAL:
        return f"`synth run transcript {text}` reads it, and `synth run list` shows experiments"
    if given is Named.CHECKPOINT and experiment == "EXPERIMENT":
        return "`synth run list` shows experiments"
    return f"its experiment is {experiment}"


def _some(units: Sequence[str]) -> str:
    return ", ".join(units) if len(units) <= 4 else f"{units[0]} to {units[-1]}"  # noqa: PLR2004 - a readable list
