"""The evidence journal: interactions fsync'd before delivery, published to the store trial by trial."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from adapters.evidence_codec import (
    Packed,
    decode,
    decode_mark,
    decode_trial,
    encode,
    encode_mark,
    encode_trial,
    pack,
    reference,
    unpack,
)
from adapters.segments import GroupCommit, Location, SegmentLog
from domain.errors import EvidenceError
from domain.ports import Store
from domain.records.trial import EvidenceRef, Interaction

_MARK_SEGMENT_BYTES = 4_000_000
_MARK_SEGMENTS = 16
"""Published marks are kept for the last 64 MB of them: some 250,000 trials."""


@dataclass(slots=True, kw_only=True)
class _Staged:
    """What the journal holds of one trial that is not published."""

    locations: list[Location] = field(default_factory=list[Location])
    interactions: dict[int, str] = field(default_factory=dict[int, str])
    """Sequence -> interaction id."""
    latest: dict[str, Interaction] = field(default_factory=dict[str, Interaction])
    """Agent -> its last interaction, on which the next one builds."""

    def add(self, location: Location, interaction: Interaction) -> None:
        self.locations.append(location)
        self.interactions[interaction.sequence] = interaction.interaction_id
        self.latest[interaction.agent] = interaction


class JournalEvidence:
    """The ``Evidence`` port over a directory and a store. One process at a time; used from one event loop."""

    def __init__(
        self, directory: Path, store: Store, *, segment_bytes: int = 64_000_000, n_publishers: int = 4
    ) -> None:
        """Open the journal: cut torn tails, rebuild the index, drop segments that nobody needs. Blocking.

        Args:
            directory: holds ``interactions/`` and ``published/``.
            store: takes the published objects.
            segment_bytes: size at which a new segment file starts.
            n_publishers: how many trials are read and written to the store at once.

        Raises:
            EvidenceError: another process holds the journal, or a record cannot be read.
        """
        self._store = store
        self._log = SegmentLog(directory / "interactions", limit_bytes=segment_bytes)
        self._marks = SegmentLog(directory / "published", limit_bytes=_MARK_SEGMENT_BYTES)
        self._commit = GroupCommit(self._log)
        self._commit_marks = GroupCommit(self._marks)
        self._slots = asyncio.Semaphore(n_publishers)
        self._publishing: dict[str, asyncio.Task[EvidenceRef]] = {}
        self._published = dict(decode_mark(payload) for _, payload in self._marks.replay())
        self._trials: dict[str, _Staged] = {}
        self._needed: dict[int, set[str]] = {}
        """Segment -> trials whose records it holds and that are not published."""
        self._rebuild()

    async def append(self, interaction: Interaction) -> None:
        """Make an interaction durable; the same one again is fine.

        Raises:
            EvidenceError: it could not be written, the trial is published, or its number is taken.
        """
        trial_id, sequence = interaction.trial_id, interaction.sequence
        if trial_id in self._published or trial_id in self._publishing:
            raise EvidenceError(f"trial {trial_id} is published and takes no more interactions")
        staged = self._trials.setdefault(trial_id, _Staged())
        known = staged.interactions.get(sequence)
        if known is not None:
            if known == interaction.interaction_id:
                return
            raise EvidenceError(f"trial {trial_id}: call {sequence} is already recorded")
        payload = encode(pack(interaction, staged.latest.get(interaction.agent)))
        location = await self._commit.append(payload)
        self._index(location, interaction)

    async def staged(self, trial_id: str) -> tuple[Interaction, ...]:
        """Return the interactions of a trial that is not published yet, in order."""
        staged = self._trials.get(trial_id)
        return () if staged is None else await asyncio.to_thread(self._read_staged, list(staged.locations))

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Write all interactions of a trial as one object into the store; the same answer each time.

        Raises:
            EvidenceError: the journal cannot be read or written.
            StoreError: the store refused; the interactions stay in the journal.
        """
        known = self._published.get(trial_id)
        if known is not None:
            return known
        task = self._publishing.get(trial_id)
        if task is None:
            task = asyncio.create_task(self._publish(trial_id))
            self._publishing[trial_id] = task
            task.add_done_callback(lambda _: self._publishing.pop(trial_id, None))
        return await asyncio.shield(task)

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions in order."""
        return decode_trial(await asyncio.to_thread(self._store.get, ref.object))

    def is_published(self, trial_id: str) -> bool:
        """Say whether a trial is closed."""
        return trial_id in self._published

    def counters(self) -> dict[str, int]:
        """Return figures for the status page."""
        return {
            "n_records": self._commit.n_records,
            "n_syncs": self._commit.n_syncs,
            "n_staged_trials": len(self._trials),
            "n_published_trials": len(self._published),
            "n_segments": len(self._needed),
        }

    async def close(self) -> None:
        """Finish what is under way and let the directory go."""
        with contextlib.suppress(EvidenceError):
            await self._commit.drain()
            await self._commit_marks.drain()
        await asyncio.gather(*self._publishing.values(), return_exceptions=True)
        self._log.close()
        self._marks.close()

    async def _publish(self, trial_id: str) -> EvidenceRef:
        async with self._slots:
            await self._commit.drain()
            staged = self._trials.get(trial_id, _Staged())
            published = await asyncio.to_thread(self._write_object, trial_id, list(staged.locations))
            await self._commit_marks.append(encode_mark(trial_id, published))
        self._published[trial_id] = published
        self._trials.pop(trial_id, None)
        self._forget(trial_id, {location.segment for location in staged.locations})
        return published

    def _write_object(self, trial_id: str, locations: list[Location]) -> EvidenceRef:
        interactions = self._read_staged(locations)
        return reference(self._store.put(encode_trial(trial_id, interactions)), interactions)

    def _read_staged(self, locations: list[Location]) -> tuple[Interaction, ...]:
        return unpack(decode(self._log.read(location)) for location in locations)

    def _index(self, location: Location, interaction: Interaction) -> None:
        self._trials.setdefault(interaction.trial_id, _Staged()).add(location, interaction)
        self._needed.setdefault(location.segment, set()).add(interaction.trial_id)

    def _forget(self, trial_id: str, segments: set[int]) -> None:
        for segment in segments:
            needed = self._needed.get(segment, set())
            needed.discard(trial_id)
            if not needed and segment != self._log.active:
                self._needed.pop(segment, None)
                self._log.remove(segment)

    def _rebuild(self) -> None:
        packed: dict[str, list[tuple[Location, Packed]]] = {}
        for location, payload in self._log.replay():
            self._needed.setdefault(location.segment, set())
            item = decode(payload)
            if item.interaction.trial_id not in self._published:
                packed.setdefault(item.interaction.trial_id, []).append((location, item))
        for items in packed.values():
            whole = {interaction.sequence: interaction for interaction in unpack(item for _, item in items)}
            for location, item in items:
                self._index(location, whole[item.interaction.sequence])
        for segment in self._log.segments():
            if not self._needed.get(segment):
                self._needed.pop(segment, None)
                self._log.remove(segment)
        for segment in self._marks.segments()[:-_MARK_SEGMENTS]:
            self._marks.remove(segment)
