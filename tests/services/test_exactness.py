"""Whatever a harness does to its history, each sampled token is recorded and trained exactly once."""

from pathlib import Path

import pytest

from tests.services.crooked_harness import drive


@pytest.mark.timeout(120)
async def test_each_sampled_token_is_trained_exactly_once(tmp_path: Path) -> None:
    """Over 150 turns with everything in them; ``tests.benchmarks.exactness`` takes a thousand."""
    found = await drive(tmp_path, 150)
    assert found.n_exact == found.n_calls >= found.n_turns == 150
    assert found.n_trained_tokens == found.n_sampled_tokens > 0
    for what in ("edits", "hung_up", "compactions", "system"):
        assert found.befell.get(what, 0) > 0, what
