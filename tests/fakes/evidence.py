"""An evidence journal in memory."""

from adapters.evidence_codec import decode_trial, encode_trial, reference
from domain.errors import EvidenceError
from domain.ports import Store
from domain.records.trial import EvidenceRef, Interaction


class MemoryEvidence:
    """Interactions in a dictionary; nothing survives the process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trials: dict[str, dict[int, Interaction]] = {}
        self._published: dict[str, EvidenceRef] = {}

    async def append(self, interaction: Interaction) -> None:
        """Keep it. Raises EvidenceError when the trial is published or the number is taken."""
        if interaction.trial_id in self._published:
            raise EvidenceError(f"trial {interaction.trial_id} is published")
        known = self._trials.setdefault(interaction.trial_id, {})
        if known.setdefault(interaction.sequence, interaction).interaction_id != interaction.interaction_id:
            raise EvidenceError(f"trial {interaction.trial_id}: call {interaction.sequence} is already recorded")

    async def staged(self, trial_id: str) -> tuple[Interaction, ...]:
        """Return what is not published, in order."""
        known = self._trials.get(trial_id, {})
        return tuple(known[sequence] for sequence in sorted(known))

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Move a trial to the store; the same answer each time."""
        if trial_id not in self._published:
            interactions = await self.staged(trial_id)
            content = self._store.put(encode_trial(trial_id, interactions))
            self._published[trial_id] = reference(content, interactions)
            self._trials.pop(trial_id, None)
        return self._published[trial_id]

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions."""
        return decode_trial(self._store.get(ref.object))
