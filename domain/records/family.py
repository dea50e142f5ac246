"""What is chosen about a model's native format, and what a family of models can be used for."""

from dataclasses import dataclass
from enum import StrEnum


class History(StrEnum):
    """What happens to reasoning of earlier turns."""

    PRESERVE = "preserve"
    """All of it stays: prompts only grow, one segment per conversation."""
    TEMPLATE = "template"
    """As the model's own chat template has it; a new user message that makes it drop reasoning breaks the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyOptions:
    """Choices within one native format; each prompt of a policy is rendered with the same."""

    history: History = History.PRESERVE
    thinking: bool = True
    """False: the prompt closes the reasoning before the model starts; families without that switch refuse."""
    effort: str | None = None
    """The words of the family's own effort switch; None: its default."""
    date: str | None = None
    """``YYYY-MM-DD`` where the format shows a date; None: no date, so that prompts do not depend on the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyAbility:
    """Whether a model can be sampled and whether it can be trained; each refusal has a reason."""

    family: str
    no_inference: tuple[str, ...] = ()
    """Why it cannot be sampled; empty: it can."""
    no_training: tuple[str, ...] = ()
    """Why it cannot be trained; empty: it can."""

    @property
    def can_infer(self) -> bool:
        """Whether it can be sampled."""
        return not self.no_inference

    @property
    def can_train(self) -> bool:
        """Whether it can be trained."""
        return not self.no_training
