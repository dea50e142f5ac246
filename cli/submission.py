"""Turning options into a submission: ``@FILE`` reads a document, anything else is a published reference."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.records.experiment import ExperimentKind
    from domain.records.profile import Plan, Profile
    from domain.service.accept import Accepted
    from domain.service.platform import Platform


def file_of(text: str) -> str | None:
    """Return the path of ``@FILE``, or None for a reference."""
    return text[1:] if text.startswith("@") and len(text) > 1 else None


def actor(text: str) -> "Profile | str":
    """Return the profile of ``@FILE``, or the reference as it is."""
    from adapters.inputs.documents import read_profile

    path = file_of(text)
    return text if path is None else read_profile(path)


def plan(text: str) -> "Plan":
    """Return the plan of ``@FILE``. Raises ConfigurationError: plans are not published."""
    from adapters.inputs.documents import read_plan
    from domain.errors import ConfigurationError

    path = file_of(text)
    if path is None:
        raise ConfigurationError(f"--plan: {text!r} is no document", hint="write @FILE, for example @eval-plan.json")
    return read_plan(path)


def submit(
    platform: "Platform",
    kind: "ExperimentKind",
    *,
    dataset: str,
    actor_text: str,
    plan_text: str,
    model: str | None,
    idempotency_key: str | None,
) -> "Accepted":
    """Accept an experiment. Raises SynthError naming file or field of what is wrong; nothing has run then."""
    from domain.service.accept import Submission, accept

    return accept(
        platform,
        Submission(
            kind=kind,
            task_set=dataset,
            actor=actor(actor_text),
            plan=plan(plan_text),
            model=model,
            idempotency_key=idempotency_key,
        ),
    )
