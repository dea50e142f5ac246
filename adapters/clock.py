"""The machine's clock and its source of identity."""

import asyncio
import os
import secrets
import time

from domain.records.names import ulid


class SystemClock:
    """Wall time, monotonic time, ULIDs and secrets of this machine. See domain.ports.Clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def new_id(self) -> str:
        """Return a fresh lower-case ULID."""
        return ulid(self.now_ms(), os.urandom(10))

    def new_secret(self) -> str:
        """Return 256 fresh random bits, URL safe."""
        return secrets.token_urlsafe(32)
