"""Settling an unresolved optimizer step: the trainer's own record first, then the operator's word."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.ports import StepResult
    from domain.service.platform import Platform


def resolve(platform: "Platform", unit: str, *, applied: bool) -> None:
    """Record whether the step of ``unit`` happened.

    Raises:
        ConflictError: the trainer can prove the opposite of what the operator says.
        UnresolvedUpdateError: ``applied``, and the trainer holds no result to continue from.
        ConflictError: nothing is unresolved.
        NotFoundError: no such unit or update.
    """
    from domain.errors import ConflictError
    from domain.ports import StepStatus
    from domain.records.names import experiment_of
    from domain.service import learning

    learning.check_unresolved(platform, unit)
    status, step = asyncio.run(_ask(platform, experiment_of(unit), unit))
    if status is (StepStatus.NOT_APPLIED if applied else StepStatus.APPLIED):
        proven = "happened" if status is StepStatus.APPLIED else "did not happen"
        raise ConflictError(
            f"{unit}: the trainer's own record shows that the step {proven}",
            hint="run the unit again: it continues by that evidence (`synth up` does so)",
        )
    learning.resolve(platform, unit, applied=applied, step=step)


async def _ask(platform: "Platform", run: str, unit: str) -> "tuple[object, StepResult | None]":
    """Return what the trainer knows; unknown when it cannot be reached, since the operator's word is asked then."""
    from domain.errors import TrainerError
    from domain.ports import StepStatus

    try:
        return await platform.trainer.step_status(run, unit)
    except TrainerError:
        return StepStatus.UNKNOWN, None
