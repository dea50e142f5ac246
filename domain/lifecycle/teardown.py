"""The end of a box, which takes nothing from what happened in it and holds nobody up."""

from domain.errors import SynthError
from domain.lifecycle.deadline import within
from domain.ports import Box, Clock

TEARDOWN_S = 30.0
"""How long a trial waits for the end of its box; then the janitor ends it by its labels and deadline."""


async def end_box(box: Box, clock: Clock) -> str:
    """Destroy a box within bounds; returns why it may still be there, empty when it is gone.

    A trial that is over is not lost because its box would not go, and no other one waits for it.
    """
    try:
        await within(clock, TEARDOWN_S, box.destroy())
    except TimeoutError:
        return f"its box did not end within {TEARDOWN_S:g} s and is left to the janitor"
    except SynthError as error:
        return f"its box is left to the janitor: {error.message}"
    return ""
