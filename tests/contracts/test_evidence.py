"""The ``Evidence`` contract over the journal and the fake, and what only the journal promises."""

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.evidence import JournalEvidence
from adapters.segments import SegmentLog
from domain.errors import EvidenceError
from domain.ports import Evidence
from domain.records.trial import EvidenceRef, Interaction, Purpose, StopReason
from tests.contracts.tiny_disk import tiny_disk
from tests.fakes.evidence import MemoryEvidence
from tests.fakes.store import MemoryStore


def an_interaction(
    sequence: int, prompt: tuple[int, ...], sampled: tuple[int, ...], *, trial: str = "t1", agent: str = "main"
) -> Interaction:
    """Return an interaction."""
    return Interaction(
        interaction_id=f"{trial}-{sequence}",
        trial_id=trial,
        sequence=sequence,
        agent=agent,
        segment=0,
        purpose=Purpose.AGENT,
        sampler_version="base-0",
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=tuple(-0.1 - 1 / (3 + index) for index in range(len(sampled))),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=2**62 + 1,
        request={"messages": [{"role": "user", "content": "Grüße"}]},
        response={"content": []},
        started_ms=5,
        duration_s=0.25,
    )


def a_conversation(trial: str = "t1", turns: int = 4) -> tuple[Interaction, ...]:
    """Return calls that extend each other, with a subagent's in between."""
    ids: tuple[int, ...] = tuple(range(50))
    calls: list[Interaction] = []
    for turn in range(turns):
        sampled = (1000 + turn, 7)
        calls.append(an_interaction(2 * turn, ids, sampled, trial=trial))
        calls.append(an_interaction(2 * turn + 1, (9, turn), (3,), trial=trial, agent="a1"))
        ids = (*ids, *sampled, 500 + turn)
    return tuple(calls)


@pytest.fixture(params=["journal", "fake"])
async def evidence(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Evidence]:
    """Each implementation."""
    if request.param == "fake":
        yield MemoryEvidence(MemoryStore())
        return
    journal = JournalEvidence(tmp_path, MemoryStore())
    yield journal
    await journal.close()


async def test_what_is_appended_is_published_in_order(evidence: Evidence) -> None:
    """Interactions come back whole and in order of their numbers, with their tokens counted."""
    calls = a_conversation()
    for call in calls:
        await evidence.append(call)
    assert await evidence.staged("t1") == calls
    ref = await evidence.publish("t1")
    assert await evidence.read(ref) == calls
    assert ref.n_interactions == len(calls)
    assert ref.n_prompt_tokens == sum(len(call.prompt_ids) for call in calls)
    assert ref.n_sampled_tokens == sum(len(call.sampled_ids) for call in calls)


async def test_publishing_again_gives_the_same(evidence: Evidence) -> None:
    """Publishing is idempotent, also when two ask at once, and an empty trial has no interactions."""
    await evidence.append(an_interaction(0, (1,), (2,)))
    first, second = await asyncio.gather(evidence.publish("t1"), evidence.publish("t1"))
    assert first == second == await evidence.publish("t1")
    assert (await evidence.publish("empty")).n_interactions == 0


async def test_a_published_trial_takes_no_more(evidence: Evidence) -> None:
    """An interaction that comes after publication is refused, so it is never delivered."""
    await evidence.publish("t1")
    with pytest.raises(EvidenceError):
        await evidence.append(an_interaction(0, (1,), (2,)))


async def test_a_number_is_taken_once(evidence: Evidence) -> None:
    """The same interaction twice is one; another one under its number is refused."""
    call = an_interaction(0, (1,), (2,))
    await evidence.append(call)
    await evidence.append(call)
    with pytest.raises(EvidenceError):
        await evidence.append(replace(call, interaction_id="other"))
    assert (await evidence.publish("t1")).n_interactions == 1


async def test_trials_do_not_mix(evidence: Evidence) -> None:
    """Concurrent appends of many trials stay with their trials."""
    trials = {f"t{number}": a_conversation(f"t{number}", 2) for number in range(20)}

    async def run(calls: tuple[Interaction, ...]) -> None:
        for call in calls:
            await evidence.append(call)

    await asyncio.gather(*(run(calls) for calls in trials.values()))
    for trial, calls in trials.items():
        assert await evidence.read(await evidence.publish(trial)) == calls


async def test_concurrent_appends_share_an_fsync(tmp_path: Path) -> None:
    """A hundred appends at once take a handful of fsyncs."""
    journal = JournalEvidence(tmp_path, MemoryStore())
    await asyncio.gather(*(journal.append(an_interaction(0, (1,), (2,), trial=f"t{n}")) for n in range(100)))
    counters = journal.counters()
    assert counters["n_records"] == 100
    assert counters["n_syncs"] <= 5
    await journal.close()


async def test_a_journal_is_rebuilt_and_its_torn_tail_cut(tmp_path: Path) -> None:
    """After a crash all acknowledged interactions are there, and half a record is not."""
    store = MemoryStore()
    calls = a_conversation()
    journal = JournalEvidence(tmp_path, store)
    for call in calls[:-1]:
        await journal.append(call)
    size = sum(path.stat().st_size for path in (tmp_path / "interactions").glob("*.journal"))
    await journal.append(calls[-1])
    await journal.close()
    segment = next((tmp_path / "interactions").glob("*.journal"))
    os.truncate(segment, size + 11)

    again = JournalEvidence(tmp_path, store)
    assert await again.staged("t1") == calls[:-1]
    assert segment.stat().st_size == size
    assert segment.with_suffix(".torn").stat().st_size == 11
    await again.append(calls[-1])
    assert await again.read(await again.publish("t1")) == calls
    await again.close()


async def test_publication_survives_a_restart_and_frees_segments(tmp_path: Path) -> None:
    """A published trial stays published after a restart, though its segment is gone."""
    store = MemoryStore()
    journal = JournalEvidence(tmp_path, store, segment_bytes=2000)
    refs: dict[str, EvidenceRef] = {}
    for number in range(6):
        for call in a_conversation(f"t{number}"):
            await journal.append(call)
    for number in range(6):
        refs[f"t{number}"] = await journal.publish(f"t{number}")
    assert len(list((tmp_path / "interactions").glob("*.journal"))) == 1
    await journal.close()
    again = JournalEvidence(tmp_path, store)
    assert not list((tmp_path / "interactions").glob("*.journal"))
    for trial, ref in refs.items():
        assert await again.publish(trial) == ref
    with pytest.raises(EvidenceError):
        await again.append(an_interaction(99, (1,), (2,), trial="t0"))
    await again.close()


async def test_history_is_written_once(tmp_path: Path) -> None:
    """A conversation of many turns takes bytes in proportion to its new ids."""
    store = MemoryStore()
    journal = JournalEvidence(tmp_path, store)
    ids = tuple(range(10_000, 12_000))
    for sequence in range(40):
        await journal.append(an_interaction(sequence, ids, (1, 2)))
        ids = (*ids, 1, 2, 3)
    ref = await journal.publish("t1")
    assert ref.n_prompt_tokens > 80_000
    assert ref.object.size_bytes < 40_000
    await journal.close()


async def test_a_full_disk_is_an_evidence_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is refused, and the journal goes on once there is room, with nothing torn."""
    store = MemoryStore()
    journal = JournalEvidence(tmp_path, store)
    await journal.append(an_interaction(0, (1,), (2,)))
    write = os.write

    def full(file: int, data: bytes) -> int:
        write(file, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(EvidenceError, match="No space left"):
        await journal.append(an_interaction(1, (1, 2), (3,)))
    monkeypatch.undo()
    await journal.append(an_interaction(1, (1, 2, 5), (3,)))
    await journal.close()
    again = JournalEvidence(tmp_path, store)
    assert [call.prompt_ids for call in await again.staged("t1")] == [(1,), (1, 2, 5)]
    await again.close()


async def test_a_really_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """On a small file system every append is either durable or refused, whatever came before."""
    store = MemoryStore()
    with tiny_disk(tmp_path / "disk", size_kib=128) as disk:
        journal = JournalEvidence(disk, store, segment_bytes=20_000)
        kept: list[str] = []
        refused = 0
        for number in range(60):
            call = an_interaction(0, tuple(range(600)), (2,), trial=f"t{number}")
            try:
                await journal.append(call)
            except EvidenceError:
                refused += 1
            else:
                kept.append(call.trial_id)
        assert refused > 0
        await journal.close()
        again = JournalEvidence(disk, store, segment_bytes=20_000)
        for trial in kept:
            assert len(await again.staged(trial)) == 1
        assert len(kept) > 20
        await again.close()


async def test_non_finite_logprobs_are_refused(tmp_path: Path) -> None:
    """A logprob that is no number never becomes evidence."""
    journal = JournalEvidence(tmp_path, MemoryStore())
    with pytest.raises(EvidenceError):
        await journal.append(replace(an_interaction(0, (1,), (2,)), logprobs=(float("nan"),)))
    await journal.close()


def test_one_process_holds_a_journal(tmp_path: Path) -> None:
    """A second writer is refused by name."""
    log = SegmentLog(tmp_path)
    with pytest.raises(EvidenceError, match="in use"):
        SegmentLog(tmp_path)
    log.close()
    SegmentLog(tmp_path).close()
