"""An event loop in a thread of its own, for what outlives a caller's: connections to the API server and the watch.

A run, a command and the janitor each have their own event loop, which ends; the process has one connection and one
watch. A call from another loop is awaited there and done here; when it is cancelled there, that arrives only after the
work here has been cancelled and has cleaned up.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_CLOSE_S = 3.0


class Loop:
    """A running event loop; its thread is a daemon, so that nobody's exit waits for it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def call(
        self, work: Coroutine[Any, Any, T], *, forsaken: Callable[[T], Coroutine[Any, Any, object]] | None = None
    ) -> T:
        """Return what ``work`` gives, run in this loop.

        Args:
            work: not started yet.
            forsaken: run here with what came although the caller was cancelled.
        """
        here = asyncio.get_running_loop()
        if here is self._loop:
            return await work
        ended: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []
        self._loop.call_soon_threadsafe(_start, work, tasks, here, ended)
        cancelled = False
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError:
                cancelled = True
                self._loop.call_soon_threadsafe(_cancel, tasks)
        if not cancelled:
            return ended.result()
        if not ended.cancelled() and ended.exception() is None and forsaken is not None:
            await self.call(forsaken(ended.result()))
        raise asyncio.CancelledError

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return what ``work`` gives, blocking this thread. Raises TimeoutError."""
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(timeout_s)
        except TimeoutError:
            waiting.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, object]) -> None:
        """Run ``last``, end what is left, stop. Blocks for a moment."""
        if not self._thread.is_alive():
            last.close()
            return
        with suppress(TimeoutError, OSError):
            self.wait(_finish(last), _CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


def _start(
    work: Coroutine[Any, Any, T],
    tasks: list[asyncio.Task[T]],
    there: asyncio.AbstractEventLoop,
    ended: asyncio.Future[T],
) -> None:
    """Run ``work`` as a task whose end is told where it is awaited."""

    def tell(task: asyncio.Task[T]) -> None:
        with suppress(RuntimeError):  # that loop is closed: nobody awaits any more
            there.call_soon_threadsafe(_settle, task, ended)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(tell)
    tasks.append(task)


def _cancel(tasks: list[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()


def _settle(task: asyncio.Task[T], ended: asyncio.Future[T]) -> None:
    if ended.done():
        return
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


async def _finish(last: Coroutine[Any, Any, object]) -> None:
    await last
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
