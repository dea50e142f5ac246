"""Turning options into a submission: ``@FILE`` reads a document, anything else is a published reference."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.records.experiment import ExperimentKind
    from domain.records.profile import Profile
    from domain.service.accept import Accepted
    from domain.service.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The profile that an option names."""

    profile: "Profile | str"
    """The profile of a file, or a reference as it was written."""
    file: str = ""
    """Where the profile was read; empty: it is a reference."""


def file_of(text: str) -> str | None:
    """Return the path of ``@FILE``, or None for a reference."""
    return text[1:] if text.startswith("@") and len(text) > 1 else None


def document(text: str, *, option: str, example: str) -> str:
    """Return the path of ``@FILE``, where nothing but a document is taken. Raises ConfigurationError."""
    from adapters.inputs.documents import forgotten_file
    from domain.errors import ConfigurationError

    path = file_of(text)
    if path is None:
        forgotten = forgotten_file(text)
        hint = f"write @{forgotten}" if forgotten else f"write @FILE, for example @{example}"
        raise ConfigurationError(f"{option}: {text!r} is no document", hint=hint)
    return path


def actor(text: str, *, option: str = "--actor") -> Actor:
    """Return the profile of ``@FILE``, or the reference as it is.

    Raises:
        ConfigurationError: naming file and field; or the text is a file without ``@``.
    """
    from adapters.inputs.documents import read_profile, reference_of_profile

    path = file_of(text)
    if path is not None:
        return Actor(profile=read_profile(path), file=path)
    return Actor(profile=reference_of_profile(text, where=option))


def dataset(text: str) -> str:
    """Return the reference as it is. Raises ConfigurationError for a directory: tasks are published first."""
    from domain.errors import ConfigurationError

    directory = text.removeprefix("@")
    if "\0" not in directory and Path(directory).is_dir():
        message = f"--dataset: {text!r} is a directory, and a published task set is wanted"
        raise ConfigurationError(message, hint=f"synth task-set publish {directory} TEAM/NAME@v1, then name that")
    return text


def submit(
    platform: "Platform",
    kind: "ExperimentKind",
    *,
    dataset_text: str,
    actor_text: str,
    plan_text: str,
    model: str | None,
    idempotency_key: str | None,
) -> "Accepted":
    """Accept an experiment. Raises SynthError naming file or field of what is wrong; nothing has run then."""
    from adapters.inputs.documents import read_plan
    from domain.service.accept import Submission, accept

    named = actor(actor_text)
    plan_file = document(plan_text, option="--plan", example="eval-plan.json")
    return accept(
        platform,
        Submission(
            kind=kind,
            task_set=dataset(dataset_text),
            actor=named.profile,
            actor_file=named.file,
            plan=read_plan(plan_file),
            plan_file=plan_file,
            model=model,
            idempotency_key=idempotency_key,
        ),
    )
