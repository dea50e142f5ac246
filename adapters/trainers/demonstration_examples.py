"""Demonstrations as supervised examples: exactly the ids a rollout of the same conversation would have."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import ConfigurationError
from domain.ports import Family
from domain.records.chat import Demonstration, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive ids of a conversation: the prompt's, or sampled by the model."""

    ids: tuple[int, ...]
    sampled: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One conversation, shifted: position i predicts target i. Shapes (N,)."""

    input_ids: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    """True where the target is the model's own token."""


def pieces_of(family: Family, demonstration: Demonstration, tools: Sequence[ToolSpec]) -> tuple[Piece, ...]:
    """Return the conversation as prompt and sampled pieces, built turn by turn as the proxy builds it.

    Raises:
        ConfigurationError: the demonstration does not alternate between assistant and other messages.
    """
    messages, at = demonstration.messages, demonstration.n_opening
    if not 0 < at < len(messages) or messages[at].role != "assistant":
        raise ConfigurationError(
            f"demonstration {demonstration.task_name}: message {at} is not the first assistant turn",
            hint="n_opening counts the messages before the first assistant turn",
        )
    prompt = family.render(messages[:at], tools)
    pieces = [Piece(ids=prompt, sampled=False)]
    while True:
        turn = family.assistant_turn(messages[at])
        pieces.append(Piece(ids=turn, sampled=True))
        following = next((i for i in range(at + 1, len(messages)) if messages[i].role == "assistant"), len(messages))
        if following == len(messages):
            return tuple(pieces)
        bridged = family.bridge(prompt, turn, messages[at + 1 : following], tools)
        if bridged is None:
            raise ConfigurationError(f"demonstration {demonstration.task_name}: message {at + 1} cannot follow")
        pieces.append(Piece(ids=bridged[len(prompt) + len(turn) :], sampled=False))
        prompt, at = bridged, following


def example_of(pieces: Sequence[Piece], context_tokens: int) -> Example:
    """Return the shifted arrays; what exceeds the context is cut at the end."""
    ids = np.array([token for piece in pieces for token in piece.ids], dtype=np.int64)[:context_tokens]
    sampled = np.array([piece.sampled for piece in pieces for _ in piece.ids], dtype=np.bool_)[:context_tokens]
    return Example(input_ids=ids[:-1], target_ids=ids[1:], mask=sampled[1:])


def batches_of(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[list[int]]:
    """Return the rows of each step: every epoch a fresh order, batches of similar length to waste little padding."""
    random = np.random.default_rng(seed)
    sizes = np.asarray(lengths)
    planned: list[list[int]] = []
    while len(planned) < steps:
        order = random.permutation(len(sizes))
        if len(order) < batch:
            order = np.resize(order, batch)
        # Sorting only inside stretches of eight batches keeps the order nearly random.
        stretch = batch * 8
        parts = [order[start : start + stretch] for start in range(0, len(order), stretch)]
        ordered = np.concatenate([part[np.argsort(sizes[part], kind="stable")] for part in parts])
        starts = [int(start) for start in random.permutation(np.arange(0, len(ordered) - batch + 1, batch))]
        planned += [[int(row) for row in ordered[start : start + batch]] for start in starts]
    return planned[:steps]
