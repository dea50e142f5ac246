"""A model process that is no process: versions by name and a journal in memory."""

from adapters.evidence_arrays import decode_calls
from domain.ports import Store
from domain.records.model import PolicyVersion
from domain.records.trajectory import TokenCall
from domain.records.trial import EvidenceRef, Interaction
from tests.fakes.evidence import MemoryEvidence


class FakeModelService:
    """The ``ModelService`` port over :class:`MemoryEvidence`; tests append to ``evidence``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.evidence = MemoryEvidence(store)
        self.served: list[PolicyVersion] = []

    async def serve(self, version: PolicyVersion) -> None:
        """Note the version."""
        if version not in self.served:
            self.served.append(version)

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Publish a trial."""
        return await self.evidence.publish(trial_id)

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions."""
        return await self.evidence.read(ref)

    async def read_calls(self, ref: EvidenceRef) -> tuple[TokenCall, ...]:
        """Return the same as arrays."""
        return decode_calls(self._store.get(ref.object), ref)
