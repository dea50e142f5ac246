"""Keys and values of many sequences, one row each; rows of running requests lie together at the front.

Finished rows keep their tokens, so that the next turn of the same conversation, or another attempt at the same
prompt, computes only what is new. Rows belong to exactly one policy version: stale values cannot be reused.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_FIRST_ROWS = 16
_FIRST_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What one token's keys take, and how large the cache may become."""

    layers: int
    heads: int
    """Key-value heads."""
    head_dim: int
    max_rows: int
    max_tokens: int


class KvRows:
    """Row storage of shape (rows, tokens, heads, head_dim) per layer, grown as needed."""

    def __init__(self, shape: CacheShape) -> None:
        """Start small; memory follows use."""
        self._shape = shape
        n_rows = min(_FIRST_ROWS, shape.max_rows)
        # One position beyond the longest sequence takes what padding writes.
        n_tokens = min(_FIRST_TOKENS, shape.max_tokens) + 1
        self._keys = [self._new(n_rows, n_tokens) for _ in range(shape.layers)]
        self._values = [self._new(n_rows, n_tokens) for _ in range(shape.layers)]
        self.tokens: NDArray[np.int64] = np.zeros((n_rows, n_tokens), dtype=np.int64)
        """Ids whose keys and values each row holds, (rows, tokens)."""
        self.lengths: NDArray[np.int64] = np.zeros(n_rows, dtype=np.int64)
        """How many of them are valid, (rows,)."""
        self.used: NDArray[np.int64] = np.zeros(n_rows, dtype=np.int64)
        """When each row was last used, in the owner's count, (rows,)."""

    @property
    def n_rows(self) -> int:
        """Rows allocated now."""
        return len(self.lengths)

    @property
    def trash(self) -> int:
        """The position that padding may write to."""
        return self.tokens.shape[1] - 1

    def longest_prefix(self, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many leading ids of ``prompt``, shape (N,), each row holds, shape (rows,)."""
        n = min(len(prompt), self.trash)
        differs = self.tokens[:, :n] != prompt[:n]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), n)
        return np.minimum(first, self.lengths)

    def reserve_tokens(self, n_tokens: int) -> None:
        """Make room for sequences of ``n_tokens``."""
        if n_tokens <= self.trash:
            return
        n_tokens = min(max(n_tokens, 2 * self.trash), self._shape.max_tokens) + 1
        old = self.tokens.shape[1]
        for rows in (self._keys, self._values):
            for layer, tensor in enumerate(rows):
                rows[layer] = self._new(self.n_rows, n_tokens)
                rows[layer][:, :old] = tensor
        self.tokens = np.pad(self.tokens, ((0, 0), (0, n_tokens - old)))

    def grow_rows(self) -> bool:
        """Double the rows; False at the limit."""
        old = self.n_rows
        n_rows = min(2 * old, self._shape.max_rows)
        if n_rows == old:
            return False
        for rows in (self._keys, self._values):
            for layer, tensor in enumerate(rows):
                rows[layer] = self._new(n_rows, tensor.shape[1])
                rows[layer][:old] = tensor
        self.tokens = np.pad(self.tokens, ((0, n_rows - old), (0, 0)))
        self.lengths = np.pad(self.lengths, (0, n_rows - old))
        self.used = np.pad(self.used, (0, n_rows - old))
        return True

    def copy(self, source: int, target: int, n_tokens: int) -> None:
        """Make row ``target`` hold the first ``n_tokens`` of row ``source``."""
        if source != target:
            for tensor in (*self._keys, *self._values):
                tensor[target, :n_tokens] = tensor[source, :n_tokens]
            self.tokens[target, :n_tokens] = self.tokens[source, :n_tokens]
        self.lengths[target] = n_tokens

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        if one == other:
            return
        n = int(max(self.lengths[one], self.lengths[other]))
        pair, flipped = [one, other], [other, one]
        for tensor in (*self._keys, *self._values):
            tensor[pair, :n] = tensor[flipped, :n]
        for array in (self.tokens, self.lengths, self.used):
            array[pair] = array[flipped]

    def window(self, first: int, positions: torch.Tensor, n_tokens: int) -> "KvWindow":
        """Return the view a forward pass writes and reads.

        Args:
            first: the first of consecutive rows.
            positions: where each new token goes, shape (B, n).
            n_tokens: how far back rows are read.
        """
        rows = torch.arange(first, first + positions.shape[0])[:, None]
        return KvWindow(keys=self._keys, values=self._values, rows=rows, positions=positions, n_tokens=n_tokens)

    def _new(self, n_rows: int, n_tokens: int) -> torch.Tensor:
        return torch.zeros(n_rows, n_tokens, self._shape.heads, self._shape.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvWindow:
    """The part of ``transformers.Cache`` that attention layers call."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    rows: torch.Tensor
    positions: torch.Tensor
    n_tokens: int

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new states, shape (B, heads, n, head_dim); return all, shape (B, heads, n_tokens, head_dim)."""
        first, last = int(self.rows[0, 0]), int(self.rows[-1, 0]) + 1
        found: list[torch.Tensor] = []
        for states, kept in ((key_states, self.keys[layer_idx]), (value_states, self.values[layer_idx])):
            kept[self.rows, self.positions] = states.transpose(1, 2)
            found.append(kept[first:last, : self.n_tokens].transpose(1, 2))
        return found[0], found[1]
