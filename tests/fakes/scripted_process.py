"""A scripted model process as a program of its own, to be killed: ``python -m tests.fakes.scripted_process DIR``."""

import asyncio
import sys
from pathlib import Path

from adapters.clock import SystemClock
from adapters.stores.directory import DirectoryStore
from tests.fakes.scripted_model import ScriptedSampler, TokenBook, model_process

SECRET = "secret-of-t1"


async def main(directory: Path, delay_s: float) -> None:
    """Serve until a signal ends the process; trial ``t1`` has the token ``SECRET``."""
    clock = SystemClock()
    tokens = TokenBook(clock)
    tokens.issue("t1", secret=SECRET)
    sampler = ScriptedSampler(script=[f"line {number}" for number in range(100)], delay_s=delay_s)
    store = DirectoryStore(directory / "store")
    async with model_process(directory, store, sampler=sampler, tokens=tokens) as process:
        await process.stopped()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
