"""The policy maker contract: a loadable policy, equal for equal inputs, trained on assistant tokens only."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from adapters.families.qwen3 import Qwen3Family
from adapters.torch_weights import build_model, fetch_files, files_digest
from adapters.trainers.base_policy import DemonstrationPolicyMaker
from adapters.trainers.demonstration_examples import batches_of, example_of, pieces_of
from adapters.trainers.supervised import rate
from domain.errors import ConfigurationError
from domain.lifecycle.mini_dialogue import BASH
from domain.records.chat import ChatMessage
from domain.records.model import BasePolicy, PolicyRecipe
from tests.fakes.models import TINY_RECIPE, demonstrations, tiny_policy
from tests.fakes.store import MemoryStore


def make(recipe: PolicyRecipe, *, threads: int = 1) -> tuple[BasePolicy, list[tuple[str, int, int]]]:
    """Make a policy in a store of its own and keep what was told about progress."""
    told: list[tuple[str, int, int]] = []
    maker = DemonstrationPolicyMaker(MemoryStore(), Qwen3Family.from_json, threads=threads)
    made = maker.make(recipe, demonstrations(), (BASH,), lambda what, done, total: told.append((what, done, total)))
    return made, told


def test_the_policy_loads_and_says_what_it_is() -> None:
    """The files make a model of the stated size; the digest is that of the files."""
    tiny = tiny_policy()
    files = fetch_files(tiny.store, tiny.base.files)
    model = build_model(files)
    assert sum(value.numel() for value in model.parameters()) == tiny.base.n_parameters
    assert tiny.base.digest == files_digest(tiny.base.files)
    assert json.loads(files["config.json"])["vocab_size"] == tiny.base.metrics["vocabulary"]
    assert float(str(tiny.base.metrics["final_loss"])) < float(str(tiny.base.metrics["first_loss"]))


def test_equal_inputs_give_equal_bits_on_any_number_of_threads() -> None:
    """The digest repeats, whatever ran beside it; another seed gives another policy."""
    first, told = make(replace(TINY_RECIPE, steps=3))
    torch.rand(7)
    second, _ = make(replace(TINY_RECIPE, steps=3), threads=2)
    other, _ = make(replace(TINY_RECIPE, steps=3, seed=1))
    assert first.digest == second.digest
    assert other.digest != first.digest
    assert told[-1] == ("supervised steps", 3, 3)


def test_examples_are_what_a_rollout_would_have() -> None:
    """Ids of a demonstration are one rendered conversation; only the assistant's ids are targets."""
    family = tiny_policy().family
    shown = demonstrations()[0]
    pieces = pieces_of(family, shown, (BASH,))
    whole = tuple(token for piece in pieces for token in piece.ids)
    assert whole[: len(pieces[0].ids)] == family.render(shown.messages[:2], (BASH,))
    example = example_of(pieces, 256)
    np.testing.assert_array_equal(example.target_ids[:-1], example.input_ids[1:])
    written = example.target_ids[example.mask]
    assert tuple(written) == tuple(token for piece in pieces if piece.sampled for token in piece.ids)
    assert family.decode([int(written[-1])]) == "<|im_end|>"
    assert len(example_of(pieces, 20).input_ids) == 19


def test_boilerplate_is_short() -> None:
    """What every conversation repeats costs few ids."""
    family = tiny_policy().family
    assert len(family.render(demonstrations()[0].messages[:2], (BASH,))) < 40
    assert len(family.assistant_turn(demonstrations()[0].messages[2])) < 20


def test_batches_cover_the_data_and_repeat() -> None:
    """Each epoch takes every row at most once; the same seed gives the same plan."""
    lengths = [5, 9, 2, 7, 7, 1, 3, 8]
    plan = batches_of(lengths, 4, 6, 0)
    assert plan == batches_of(lengths, 4, 6, 0)
    assert sorted(plan[0] + plan[1]) == list(range(8))
    assert len(plan) == 6
    assert [len(rows) for rows in batches_of([1, 2], 4, 2, 0)] == [4, 4]


def test_the_learning_rate_warms_up_and_decays() -> None:
    """Small first, full after the warm-up, small at the end."""
    factors = [rate(step, 100) for step in range(100)]
    assert factors[0] < factors[4] == 1.0
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[-1] < 0.1


@pytest.mark.parametrize(
    ("field", "value"),
    [("family", "llama"), ("vocabulary", 100), ("hidden", 15), ("steps", 0), ("batch", 0)],
)
def test_a_wrong_recipe_is_refused_by_field(field: str, value: object) -> None:
    """Nothing is trained; the message names the field."""
    recipe = replace(TINY_RECIPE, **{field: value})  # pyright: ignore[reportArgumentType] - a test names the field
    with pytest.raises(ConfigurationError, match=field):
        make(recipe)


def test_a_wrong_demonstration_is_refused_by_name() -> None:
    """A conversation that does not start with the assistant's turn after its opening is named."""
    shown = replace(demonstrations()[0], n_opening=1)
    maker = DemonstrationPolicyMaker(MemoryStore(), Qwen3Family.from_json)
    with pytest.raises(ConfigurationError, match="demo/count-0: message 1"):
        maker.make(TINY_RECIPE, (shown,), (BASH,), lambda _what, _done, _total: None)
    with pytest.raises(ConfigurationError, match="no demonstrations"):
        maker.make(TINY_RECIPE, (), (BASH,), lambda _what, _done, _total: None)
    open_ended = replace(shown, n_opening=2, messages=(*shown.messages, ChatMessage(role="user", content="more?")))
    assert pieces_of(tiny_policy().family, open_ended, (BASH,))[-1].sampled
