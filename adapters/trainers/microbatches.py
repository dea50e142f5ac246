"""Datums as padded micro-batches: few passes, little padding, an order that depends on the datums alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from domain.errors import TrainerError
from domain.records.assessment import Datum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows padded on the right, shapes (B, N); under a causal mask no real position sees padding."""

    input_ids: torch.Tensor
    target_ids: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def check_datums(datums: Sequence[Datum], n_ids: int, where: str) -> None:
    """Refuse rows that cannot be trained.

    Raises:
        TrainerError: naming the contribution, the row and the field.
    """
    for index, datum in enumerate(datums):
        place = f"contribution {where}, row {index} (trial {datum.trial_id})"
        for name in ("input_ids", "target_ids", "logprobs", "advantages", "mask"):
            values: NDArray[np.generic] = getattr(datum, name)
            if values.shape != datum.input_ids.shape or values.ndim != 1:
                raise TrainerError(f"{place}, field {name}: shape {values.shape}, not {datum.input_ids.shape}")
        for name in ("logprobs", "advantages", "mask"):
            if not np.isfinite(getattr(datum, name)).all():
                raise TrainerError(f"{place}, field {name}: a value is not finite")
        for name in ("input_ids", "target_ids"):
            ids: NDArray[np.int32] = getattr(datum, name)
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < n_ids:
                raise TrainerError(f"{place}, field {name}: an id is outside the vocabulary of {n_ids}")


def microbatches(datums: Sequence[Datum], padded_tokens: int) -> list[MicroBatch]:
    """Return micro-batches of at most ``padded_tokens`` positions (one row at least), shortest rows first.

    Rows without any target are left out.
    """
    rows = [datum for datum in datums if datum.mask.any()]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].input_ids))
    batches: list[list[Datum]] = []
    for index in order:
        row = rows[index]
        if batches and (len(batches[-1]) + 1) * len(row.input_ids) <= padded_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [_stack(batch) for batch in batches]


def _stack(rows: Sequence[Datum]) -> MicroBatch:
    return MicroBatch(
        input_ids=_padded([row.input_ids for row in rows], np.dtype(np.int64)),
        target_ids=_padded([row.target_ids for row in rows], np.dtype(np.int64)),
        sampler_logprobs=_padded([row.logprobs for row in rows], np.dtype(np.float32)),
        advantages=_padded([row.advantages for row in rows], np.dtype(np.float32)),
        mask=_padded([row.mask for row in rows], np.dtype(np.float32)),
    )


def _padded(rows: Sequence[NDArray[np.generic]], kind: np.dtype[np.generic]) -> torch.Tensor:
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=kind)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.as_tensor(padded)
