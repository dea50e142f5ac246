"""Continuous batching for one policy version: requests join and leave between decode steps."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from adapters.samplers.draws import draw, uniforms
from adapters.samplers.kv_rows import KvRows
from adapters.samplers.versions import LoadedBase, Merged
from domain.errors import SamplerError
from domain.ports import SampleRequest, SampleResult
from domain.records.trial import StopReason

_WAVE_SHARE = 8  # requests wait until they are an eighth of those running ...
_WAVE_STEPS = 4  # ... or have waited this many steps: a pass over few short prompts wastes its fixed cost
_PADDED_TOKENS = 2048  # of one prefill pass
_PAD_RATIO = 2


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One request on its way."""

    request: SampleRequest
    limit: int
    """Tokens it may sample."""
    deliver: Callable[[SampleResult | SamplerError], None]
    prompt: NDArray[np.int64] = field(init=False)
    uniform: NDArray[np.float64] = field(init=False)
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    cancelled: bool = False
    waited: int = 0

    def __post_init__(self) -> None:
        """Prepare arrays."""
        self.prompt = np.asarray(self.request.prompt_ids, dtype=np.int64)
        self.uniform = uniforms(self.request.seed, self.limit)

    @property
    def ended(self) -> bool:
        """Whether the newest id is the last."""
        return self.ids[-1] in self.request.stop_ids or len(self.ids) == self.limit

    def result(self) -> SampleResult:
        """Return what was sampled."""
        return SampleResult(
            sampled_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            stop_reason=StopReason.STOP if self.ids[-1] in self.request.stop_ids else StopReason.LENGTH,
            version=self.request.version,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Placed:
    """A distinct prompt of a wave and the requests that share it."""

    jobs: list[Job]
    n_known: int = 0
    """Leading tokens whose keys its row already holds."""

    @property
    def n_new(self) -> int:
        return len(self.jobs[0].prompt) - self.n_known


class Lane:
    """Rows and requests of one version. Used by one thread."""

    def __init__(self, base: LoadedBase, merged: Merged, rows: KvRows, max_batch: int) -> None:
        """Take the weights to run with and the rows to keep keys in."""
        self._base = base
        self._merged = merged
        self._rows = rows
        self._max_batch = max_batch
        self._active: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._clock = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._active or self._waiting)

    def add(self, job: Job) -> None:
        """Queue a request."""
        self._waiting.append(job)

    def step(self) -> None:
        """Let waiting requests join, then sample one token of every running request."""
        self._clock += 1
        self._base.apply(self._merged)
        self._drop_cancelled()
        if self._wave_is_due():
            self._admit([self._waiting.popleft() for _ in range(self._n_free())])
        if self._active:
            self._decode()

    def fail(self, error: SamplerError) -> None:
        """Answer everything with ``error`` and forget all rows."""
        for job in (*self._active, *self._waiting):
            job.deliver(error)
        self._active.clear()
        self._waiting.clear()
        self._rows.lengths[:] = 0

    def _n_free(self) -> int:
        return min(len(self._waiting), self._max_batch - len(self._active))

    def _wave_is_due(self) -> bool:
        if not self._n_free():
            return False
        self._waiting[0].waited += 1
        enough = len(self._waiting) * _WAVE_SHARE >= len(self._active)
        return enough or self._waiting[0].waited > _WAVE_STEPS

    def _drop_cancelled(self) -> None:
        self._waiting = deque(job for job in self._waiting if not job.cancelled)
        for row in reversed(range(len(self._active))):
            if self._active[row].cancelled:
                self._leave(row)

    # --- joining ---------------------------------------------------------------------------------

    def _admit(self, jobs: Sequence[Job]) -> None:
        """Give every job a row that holds its prompt, and sample its first token."""
        distinct: dict[tuple[int, ...], _Placed] = {}
        for job in jobs:
            distinct.setdefault(job.request.prompt_ids, _Placed(jobs=[])).jobs.append(job)
        self._rows.reserve_tokens(max(len(job.prompt) + job.limit for job in jobs))
        placed = list(distinct.values())
        for each in placed:
            each.n_known = self._known(each)
        placed.sort(key=lambda each: each.n_new)
        for chunk in _chunks(placed):
            self._join(chunk)

    def _known(self, placed: _Placed) -> int:
        """Return how much of a prompt some row holds; at least its last token must be computed."""
        prompt = placed.jobs[0].prompt
        return min(int(self._rows.longest_prefix(prompt).max()), len(prompt) - 1)

    def _join(self, chunk: Sequence[_Placed]) -> None:
        first = len(self._active)
        for each in chunk:
            each.n_known = self._take_row(each.jobs[0])
        logits = self._prefill(first, chunk)
        repeats = list(range(len(chunk)))
        for index, each in enumerate(chunk):
            for job in each.jobs[1:]:
                self._place(self._free_row(), job)
                self._rows.copy(first + index, len(self._active) - 1, len(job.prompt))
                repeats.append(index)
        self._sample(first, logits[repeats])

    def _take_row(self, job: Job) -> int:
        """Give ``job`` the next front row, holding as much of its prompt as any row does; returns how much."""
        known = self._rows.longest_prefix(job.prompt)
        donor = int(known.argmax())
        n_known = min(int(known[donor]), len(job.prompt) - 1)
        idle = donor >= len(self._active)
        # A row that is mostly this prompt is its own conversation's: continue in place. Otherwise copy.
        if idle and n_known and 2 * n_known >= self._rows.lengths[donor]:
            self._rows.lengths[donor] = n_known
            self._place(donor, job)
            return n_known
        free = self._free_row(keep=donor)
        self._rows.copy(donor, free, n_known)
        self._place(free, job)
        return n_known

    def _free_row(self, keep: int = -1) -> int:
        """Return the idle row that was used least recently, growing the rows while allowed."""
        n_active = len(self._active)
        used = self._rows.used[n_active:].copy()
        if keep >= n_active and len(used) > 1:
            used[keep - n_active] = np.iinfo(np.int64).max
        if (not len(used) or used.min() > 0) and self._rows.grow_rows():
            return self._free_row(keep)
        return n_active + int(used.argmin())

    def _place(self, row: int, job: Job) -> None:
        self._rows.swap(row, len(self._active))
        self._rows.used[len(self._active)] = self._clock
        self._active.append(job)

    def _prefill(self, first: int, chunk: Sequence[_Placed]) -> torch.Tensor:
        """Compute the new part of each prompt; returns the logits after its last token, shape (B, V)."""
        width = max(each.n_new for each in chunk)
        tokens = np.zeros((len(chunk), width), dtype=np.int64)
        positions = np.full((len(chunk), width), self._rows.trash, dtype=np.int64)
        for index, each in enumerate(chunk):
            prompt = each.jobs[0].prompt
            tokens[index, : each.n_new] = prompt[each.n_known :]
            positions[index, : each.n_new] = np.arange(each.n_known, len(prompt))
            self._rows.tokens[first + index, : len(prompt)] = prompt
            self._rows.lengths[first + index] = len(prompt)
        last = [each.n_new - 1 for each in chunk]
        hidden = self._forward(first, tokens, positions)
        return self._head(hidden[torch.arange(len(chunk)), last])

    # --- running ---------------------------------------------------------------------------------

    def _decode(self) -> None:
        """Feed each row its newest token and sample the next."""
        n = len(self._active)
        positions = self._rows.lengths[:n].copy()
        tokens = np.array([job.ids[-1] for job in self._active], dtype=np.int64)
        self._rows.tokens[np.arange(n), positions] = tokens
        self._rows.lengths[:n] += 1
        self._rows.used[:n] = self._clock
        hidden = self._forward(0, tokens[:, None], positions[:, None])
        self._sample(0, self._head(hidden[:, 0]))

    def _forward(self, first: int, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """Run the model over rows ``first`` onwards; tokens and positions (B, n) -> hidden (B, n, H)."""
        n_tokens = int(self._rows.lengths[first : first + len(tokens)].max())
        at = torch.as_tensor(positions)
        visible = torch.arange(n_tokens) <= at[:, :, None]
        mask = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None]
        output = self._base.model.get_submodule("model")(
            input_ids=torch.as_tensor(tokens),
            attention_mask={"full_attention": mask},
            position_ids=at,
            cache=self._rows.window(first, at, n_tokens),
            use_cache=False,
        )
        return cast("torch.Tensor", output.last_hidden_state)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._base.model.get_submodule("lm_head")(hidden).float()

    def _sample(self, first: int, logits: torch.Tensor) -> None:
        """Draw the next token of rows ``first`` onwards; finished requests leave."""
        jobs = self._active[first:]
        temperatures = np.array([job.request.temperature for job in jobs])
        uniform = np.array([job.uniform[len(job.ids)] for job in jobs])
        drawn = draw(logits, temperatures, uniform)
        finite = np.isfinite(drawn.logprobs).tolist()
        ended: list[int] = []
        for index, (job, token, logprob) in enumerate(
            zip(jobs, drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True)
        ):
            job.ids.append(token)
            job.logprobs.append(logprob)
            if job.ended or not finite[index]:
                ended.append(index)
        for index in reversed(ended):  # from the back: leaving moves only rows behind
            self._leave(first + index)
            jobs[index].deliver(jobs[index].result() if finite[index] else _not_finite(jobs[index]))

    def _leave(self, row: int) -> None:
        """Take a request out; its row keeps its keys behind the running ones."""
        last = len(self._active) - 1
        self._rows.swap(row, last)
        self._active[row] = self._active[last]
        self._active.pop()


def _not_finite(job: Job) -> SamplerError:
    return SamplerError(f"version {job.request.version}: the model's logits are not finite")


def _chunks(placed: Sequence[_Placed]) -> list[list[_Placed]]:
    """Split prompts, sorted by what is new of them, into passes without much padding."""
    chunks: list[list[_Placed]] = []
    for each in placed:
        if chunks:
            current = chunks[-1]
            fits = (len(current) + 1) * each.n_new <= _PADDED_TOKENS
            if fits and each.n_new <= _PAD_RATIO * current[0].n_new + _WAVE_SHARE:
                current.append(each)
                continue
        chunks.append([each])
    return chunks
