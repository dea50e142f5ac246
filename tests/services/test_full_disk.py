"""A disk that fills or a store that may not be written: the run fails, and what was acknowledged stays."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from adapters.stores.directory import DirectoryStore
from adapters.stores.records import StoredRecords
from adapters.verifiers.script import ScriptVerifier
from domain.errors import StoreError, SynthError
from domain.ports import Store
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile, ProfileFile
from domain.records.task import ObjectRef
from domain.records.trial import TrialOutcome
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch, unit_run_ended
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.units import Stage, run_unit
from tests.contracts.tiny_disk import tiny_disk
from tests.fakes.platform import make_platform, write_task

SCORED = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
N_TASKS = 12


@dataclass
class FillingStore:
    """A real directory store whose disk somebody else fills after some writes."""

    inner: DirectoryStore
    filler: Path
    n_writes_left: int

    def put(self, data: bytes) -> ObjectRef:
        """Fill the disk when the time has come, then write for real."""
        self.n_writes_left -= 1
        if self.n_writes_left == 0:
            fill(self.filler)
        return self.inner.put(data)

    def get(self, ref: ObjectRef) -> bytes:
        """Read."""
        return self.inner.get(ref)

    def has(self, digest: str) -> bool:
        """Look."""
        return self.inner.has(digest)

    def location(self, ref: ObjectRef) -> str:
        """Name."""
        return self.inner.location(ref)


def fill(path: Path) -> None:
    """Write until nothing fits."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


def on(platform: Platform, store: Store) -> Platform:
    """Return the platform over another store."""
    verifiers = {name: ScriptVerifier(sandbox, store, platform.clock) for name, sandbox in platform.sandboxes.items()}
    return replace(platform, store=store, records=StoredRecords(store), verifiers=verifiers)


def remount(path: Path, mode: str) -> None:
    """Make a mounted file system read-only (``ro``) or writable (``rw``)."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(path)], check=True)


def submit(platform: Platform, tmp_path: Path) -> str:
    """Publish small tasks, accept an evaluation whose attempts leave different bytes, and return its unit."""
    for number in range(N_TASKS):
        write_task(tmp_path / "tasks", f"a{number:02d}", solution=f"seq {number} 4000 > /app/numbers\n")
    publish_task_set(platform, parse_reference("team/disk@v1", field="test"), str(tmp_path / "tasks"))
    note = ProfileFile(path="note.txt", content="x" * 2000)
    accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/disk@v1",
            actor=Profile(name="actor", engine="oracle", files=(note,)),
            plan=Plan(concurrency=1, infra_retries=0),
        ),
    )
    (launch,) = dispatch(platform).launches
    return launch.unit


def counting(platform: Platform, unit: str) -> Mapping[str, str]:
    """Return the counting trials that are readable back, outputs included."""
    with platform.ledger.snapshot() as tx:
        trials = tx.trials.of_unit(unit)
    for trial in trials:
        assert trial.outcome is TrialOutcome.COMPLETED
        assert trial.outputs is not None
        platform.store.get(trial.outputs)
    return {str(trial.key): trial.trial_id for trial in trials}


async def test_a_full_disk_fails_the_run_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Trials that ended before the disk was full are kept; with room again only the others run."""
    home = tmp_path / "home"
    whole = make_platform(home)
    with tiny_disk(tmp_path / "small", size_kib=2048) as small:
        inner = DirectoryStore(small / "store")
        platform = on(whole, inner)
        unit = submit(platform, tmp_path)
        filling = on(platform, FillingStore(inner=inner, filler=small / "filler", n_writes_left=14))
        with pytest.raises(SynthError):
            await run_unit(filling, unit, "worker", SCORED, lambda _what, _done, _total: None)
        kept = counting(platform, unit)
        assert 0 < len(kept) < N_TASKS
        (small / "filler").unlink()
        unit_run_ended(platform, unit, reason="the disk was full")
        result = await run_unit(platform, unit, "worker", SCORED, lambda _what, _done, _total: None)
        found = counting(platform, unit)
        assert len(found) == len(result.trials.trials) == N_TASKS
        assert kept.items() <= found.items()


async def test_a_read_only_store_fails_the_run_and_the_next_one_does_it_all(tmp_path: Path) -> None:
    """Nothing is recorded as done while nothing can be kept."""
    whole = make_platform(tmp_path / "home")
    with tiny_disk(tmp_path / "small", size_kib=4096) as small:
        platform = on(whole, DirectoryStore(small / "store"))
        unit = submit(platform, tmp_path)
        remount(small, "ro")
        with pytest.raises(StoreError, match="small"):
            await run_unit(platform, unit, "worker", SCORED, lambda _what, _done, _total: None)
        assert counting(platform, unit) == {}
        remount(small, "rw")
        unit_run_ended(platform, unit, reason="the store was read-only")
        await run_unit(platform, unit, "worker", SCORED, lambda _what, _done, _total: None)
        assert len(counting(platform, unit)) == N_TASKS
