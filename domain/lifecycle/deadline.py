"""Structured waiting: deadlines through the Clock port, and groups of work that end together."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from domain.ports import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, or cancel it and raise TimeoutError after ``seconds``.

    The work is always finished (its ``finally`` blocks have run) when this returns or raises.
    """
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"not finished within {seconds:g} s")
    finally:
        alarm.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


async def all_or_cancel(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; when one raises, cancel the others, wait for their clean-up, and raise it."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
