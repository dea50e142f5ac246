"""A sampler that works on a bounded number of calls at once; the others wait in the order in which they came."""

import asyncio

from domain.ports import Sampler, SampleRequest, SampleResult
from domain.records.model import PolicyVersion


class BoundedSampler:
    """Another sampler behind a bound. See domain.ports.Sampler."""

    def __init__(self, sampler: Sampler, at_once: int) -> None:
        """Put ``sampler`` behind a bound of ``at_once`` calls."""
        self._sampler = sampler
        self._slots = asyncio.Semaphore(at_once)

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation."""
        return self._sampler.context_tokens

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable; loading is no call."""
        await self._sampler.load(version)

    def versions(self) -> tuple[str, ...]:
        """Return the names that can be sampled now."""
        return self._sampler.versions()

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Sample when it is this call's turn."""
        async with self._slots:
            return await self._sampler.sample(request)
