"""A sampler that plays a script and fails loudly when it runs out."""

from collections import deque
from collections.abc import Iterable, Sequence

from domain.errors import ConflictError, ContextOverflowError, NotFoundError, SamplerError
from domain.ports import SampleRequest, SampleResult
from domain.records.model import PolicyVersion
from domain.records.trial import StopReason


class ScriptedSampler:
    """Answers each request with the next turn of its script; keeps the requests it saw."""

    def __init__(self, script: Iterable[Sequence[int]] = (), *, context_tokens: int = 4096) -> None:
        """Take the sampled ids of each call, in order."""
        self._script = deque(tuple(turn) for turn in script)
        self._context_tokens = context_tokens
        self._versions: dict[str, PolicyVersion] = {}
        self.requests: list[SampleRequest] = []

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus generation."""
        return self._context_tokens

    async def load(self, version: PolicyVersion) -> None:
        """Make a version servable. Raises ConflictError when the name means other weights."""
        known = self._versions.setdefault(version.name, version)
        if (known.base, known.adapter) != (version.base, version.adapter):
            message = f"version {version.name} already means other weights"
            raise ConflictError(message)

    def versions(self) -> tuple[str, ...]:
        """Return loaded names."""
        return tuple(self._versions)

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Return the next scripted turn, cut at ``max_tokens``; every logprob is -0.5."""
        if request.version not in self._versions:
            message = f"sampler has no version {request.version}"
            raise NotFoundError(message)
        if len(request.prompt_ids) >= self._context_tokens:
            message = f"prompt is {len(request.prompt_ids)} tokens, the context is {self._context_tokens} tokens"
            raise ContextOverflowError(message)
        if not self._script:
            message = f"the script has no turn for call {len(self.requests) + 1}"
            raise SamplerError(message)
        self.requests.append(request)
        limit = min(request.max_tokens, self._context_tokens - len(request.prompt_ids))
        ids = self._script.popleft()[:limit]
        stopped = bool(ids) and ids[-1] in request.stop_ids
        return SampleResult(
            sampled_ids=ids,
            logprobs=(-0.5,) * len(ids),
            stop_reason=StopReason.STOP if stopped else StopReason.LENGTH,
            version=request.version,
        )
