"""A task, a trial and a verifier over them, for contract and security suites."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adapters.clock import SystemClock
from adapters.verifiers.script import ScriptVerifier
from domain.ports import Limits, Sandbox
from domain.records.archive import pack_files
from domain.records.assessment import Assessment
from domain.records.task import Artifact, Phase, Task, TaskEnvironment
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord
from tests.fakes.store import MemoryStore

HONEST_TEST = (
    'if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    "echo checked\n"
)


def make_task(
    store: MemoryStore,
    test: str = HONEST_TEST,
    *,
    artifacts: tuple[str, ...] = (),
    extra: Mapping[str, bytes] | None = None,
    phase: Phase | None = None,
    host_files: str | None = None,
) -> Task:
    """Keep a task's archive and return its record."""
    archive = store.put(pack_files({"instruction.md": b"Do it.", "tests/test.sh": test.encode(), **(extra or {})}))
    return Task(
        name="t/one",
        digest=archive.digest,
        instruction="Do it.",
        archive=archive,
        environment=TaskEnvironment(host_runnable=True, host_files=host_files),
        agent=Phase(),
        verifier=phase or Phase(timeout_s=20.0),
        artifacts=tuple(Artifact(source=source) for source in artifacts),
    )


def make_trial(task: Task) -> TrialRecord:
    """Return a completed trial without outputs."""
    return TrialRecord(
        trial_id="trial-1",
        key=AttemptKey(unit="evl-1.s000", group=0, attempt=0),
        experiment_id="evl-1",
        task_name=task.name,
        task_digest=task.digest,
        profile_digest="p",
        policy=None,
        outcome=TrialOutcome.COMPLETED,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A verifier over one sandbox."""

    sandbox: Sandbox
    store: MemoryStore = field(default_factory=MemoryStore)
    limits: Limits = field(default_factory=Limits)

    async def assess(self, task: Task, outputs: bytes | None, **changes: object) -> Assessment:
        """Assess a completed trial that left ``outputs``; ``changes`` go into its record."""
        trial = replace(make_trial(task), outputs=None if outputs is None else self.store.put(outputs), **changes)
        return await self.verifier().assess(task, trial, fence=1)

    def verifier(self) -> ScriptVerifier:
        """Return a fresh verifier."""
        return ScriptVerifier(self.sandbox, self.store, SystemClock(), limits=self.limits)
