"""Results too long for a model: cut where it shows, the same way each time, and recorded as the model saw them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.servers import fitting
from adapters.servers.fitting import cut
from tests.fakes.scripted_family import ScriptedFamily
from tests.fakes.scripted_model import ScriptedSampler, model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import CALL, Harness, assert_exact, results


async def test_a_long_result_is_cut_once_and_recorded_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends and the words between are in the prompt; the next prompts extend that; the instruction stays whole."""
    monkeypatch.setattr(fitting, "BYTES_PER_TOKEN", 1)  # as the tests' vocabulary has it
    sampler = ScriptedSampler(script=[CALL, CALL, "done", "over"], context_tokens=16_000)
    async with model_process(tmp_path, MemoryStore(), sampler=sampler) as process:
        harness = Harness(process)
        first = await harness.ask("long instruction " * 20)
        long = "begin" + "x" * 20_000 + "end"
        second = await harness.ask(results(first, long))
        await harness.ask(results(second, "short"))
        await harness.ask("a skill: " + "y" * 20_000)
        calls = await harness.calls()
    shown = ScriptedFamily().decode(calls[-1].prompt_ids)
    assert [call.segment for call in calls] == [0] * 4
    assert_exact(calls)
    assert shown.count("bytes, the middle is left out here: too long for this model") == 2
    assert "xxxend" in shown
    assert "bash:beginxxx" in shown
    assert "long instruction " * 20 in shown
    recorded = str(calls[1].request["messages"])
    assert "of 20008 bytes, the middle is left out here" in recorded
    assert len(recorded) < 10_000


@given(st.text(max_size=400), st.integers(min_value=100, max_value=300))
def test_a_cut_text_is_bounded_and_keeps_its_ends(text: str, limit: int) -> None:
    """Short texts stay; of long ones the beginning and the end are there, in whole characters; a second cut is none."""
    found = cut(text, limit)
    size = len(text.encode(errors="surrogatepass"))
    if size <= limit:
        assert found == text
        return
    head, words, tail = found.partition(
        f"\n\n[of {size} bytes, the middle is left out here: too long for this model]\n\n"
    )
    assert words
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(found.encode(errors="surrogatepass")) <= limit
    assert cut(found, limit) == found
