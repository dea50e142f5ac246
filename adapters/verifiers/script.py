"""The task's own test script, run in a fresh box over what the trial left behind."""

import asyncio
import io
import tarfile
from collections import OrderedDict
from dataclasses import dataclass, replace

from adapters.verifiers.outputs import keeps_workdir, tampering
from domain.errors import NotFoundError, SandboxError, SynthError, VerifierError, boundary
from domain.lifecycle.rewards import MAX_REWARD_BYTES, RewardReading, read_rewards
from domain.ports import Box, BoxSpec, Clock, Command, CommandResult, Limits, Sandbox, Store
from domain.records.archive import pack_files, read_file, subtree
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import digest_of
from domain.records.task import ObjectRef, Task
from domain.records.trial import TrialRecord

LOGS = "/logs/verifier"
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
"""Beside the task's own variables the verifier gets no more than these: nothing of an agent's box, nothing of ours."""
_GRACE_S = 60.0
"""Beyond the time-out, for transfers; then the janitor may end the box."""
_CACHED_ARCHIVES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    """What a task's archive gives to its verifier."""

    tests: bytes
    host_files: bytes | None
    digest: str


class ScriptVerifier:
    """Runs ``tests/test.sh`` and reads its reward file strictly; its exit code says nothing.

    Args:
        sandbox: where the fresh box is made; its name goes into no identity.
        store: holds task archives and retained outputs, and takes the logs.
        clock: for the box's id and deadline.
        timeout_s: upper limit on the script; the task's own holds when lower.
        limits: of the verifier's box.
    """

    def __init__(
        self, sandbox: Sandbox, store: Store, clock: Clock, *, timeout_s: float = 600.0, limits: Limits | None = None
    ) -> None:
        self._sandbox = sandbox
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._limits = limits or Limits()
        self._cache: OrderedDict[str, _Tests] = OrderedDict()

    def identity(self, task: Task) -> str:
        """Return ``verifier:`` and 12 hex digits over the files of ``tests/`` and the verifier's settings."""
        settings = (self._tests(task).digest, task.verifier, task.environment.workdir)
        return f"verifier:{digest_of(settings)[:12]}"

    async def assess(self, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
        """Assess retained outputs in a fresh box. Infrastructure faults become UNGRADED, not exceptions."""
        started_s = self._clock.monotonic_s()
        assessor = "verifier:unknown"
        try:
            with boundary(VerifierError, f"verifier of trial {trial.trial_id}"):
                assessor = await asyncio.to_thread(self.identity, task)
                verdict = await self._judge(task, trial, fence)
        except SynthError as error:
            verdict = _Verdict(reading=RewardReading(reason=str(error)))
        return verdict.assessment(trial, assessor, self._clock.monotonic_s() - started_s)

    async def _judge(self, task: Task, trial: TrialRecord, fence: int) -> "_Verdict":
        """Decide what needs no box (the outcome table of architecture, section 3), else run the script."""
        if not trial.outcome.is_assessable():
            return _Verdict(reading=RewardReading(reason=f"the trial ended as {trial.outcome}"))
        if trial.missing_artifacts:
            return _zero("declared artifacts are missing: " + ", ".join(trial.missing_artifacts))
        outputs = await asyncio.to_thread(self._store.get, trial.outputs) if trial.outputs is not None else None
        problem = tampering(outputs, task) if outputs is not None else ""
        if problem:
            return _zero(f"tampering: {problem}", tampered=True)
        return await self._run(task, trial, outputs, fence)

    async def _run(self, task: Task, trial: TrialRecord, outputs: bytes | None, fence: int) -> "_Verdict":
        timeout_s = min(self._timeout_s, task.verifier.timeout_s or self._timeout_s)
        spec = BoxSpec(
            box_id=f"v-{self._clock.new_id()}",
            experiment_id=trial.experiment_id,
            trial_id=trial.trial_id,
            fence=fence,
            deadline_ms=self._clock.now_ms() + int((timeout_s + _GRACE_S) * 1000),
            environment=task.environment,
            archive=task.archive,
            limits=replace(self._limits, memory_mb=task.environment.memory_mb or self._limits.memory_mb),
        )
        box = await self._sandbox.create(spec)
        try:
            await self._fill(box, task, outputs)
            result = await box.exec(
                Command(
                    argv=("bash", "/tests/test.sh"),
                    cwd=task.environment.workdir,
                    env={**_ENVIRONMENT, **task.environment.env, **task.verifier.env},
                    timeout_s=timeout_s,
                    user=task.verifier.user,
                )
            )
            reading = await _read(box, result)
        finally:
            await box.destroy()
        return _Verdict(reading=reading, logs=await asyncio.to_thread(self._keep_logs, result))

    async def _fill(self, box: Box, task: Task, outputs: bytes | None) -> None:
        """Put in what the task's image would hold, what the agent left, and then the tests."""
        tests = self._tests(task)
        if tests.host_files is not None and not keeps_workdir(task):
            await box.upload(tests.host_files, task.environment.workdir)
        if outputs is not None:
            await box.upload(outputs, "/")
        await box.upload(tests.tests, "/tests")

    def _tests(self, task: Task) -> _Tests:
        found = self._cache.get(task.archive.digest)
        if found is None:
            archive = self._store.get(task.archive)
            tests = subtree(archive, "tests")
            host = task.environment.host_files if task.environment.host_runnable else None
            found = _Tests(
                tests=tests,
                host_files=None if host is None else subtree(archive, host),
                digest=_digest_members(tests),
            )
            self._cache[task.archive.digest] = found
            while len(self._cache) > _CACHED_ARCHIVES:
                self._cache.popitem(last=False)
        return found

    def _keep_logs(self, result: CommandResult) -> ObjectRef | None:
        files = {"test-stdout.txt": result.stdout, "test-stderr.txt": result.stderr}
        kept = {name: content for name, content in files.items() if content}
        return self._store.put(pack_files(kept)) if kept else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What becomes an assessment."""

    reading: RewardReading
    tampered: bool = False
    logs: ObjectRef | None = None

    def assessment(self, trial: TrialRecord, assessor: str, duration_s: float) -> Assessment:
        """Return the record."""
        reading = self.reading
        scored = reading.reward is not None
        return Assessment(
            trial_id=trial.trial_id,
            assessor=assessor,
            outcome=AssessmentOutcome.SCORED if scored else AssessmentOutcome.UNGRADED,
            panel=reading.panel,
            reward=reading.reward,
            reason=reading.reason,
            tampered=self.tampered,
            logs=self.logs,
            duration_s=duration_s,
        )


def _zero(reason: str, *, tampered: bool = False) -> _Verdict:
    return _Verdict(reading=RewardReading(panel={"reward": 0.0}, reward=0.0, reason=reason), tampered=tampered)


async def _read(box: Box, result: CommandResult) -> RewardReading:
    """Read the reward files; a script that was cut short has none, even when a file is there already."""
    if result.timed_out:
        return RewardReading(reason=f"the verifier did not end within {result.duration_s:.0f} s")
    if result.limit_exceeded is not None:
        return RewardReading(reason=f"the verifier's box broke its limit on {result.limit_exceeded}")
    try:
        json_file = await _content(box, "reward.json")
        text_file = None if json_file is not None else await _content(box, "reward.txt")
    except SandboxError as error:
        return RewardReading(reason=f"the reward file cannot be read: {error.message}")
    reading = read_rewards(json_file, text_file)
    if reading.reward is None and result.exit_code != 0:
        return RewardReading(reason=f"{reading.reason}; the test script ended with exit code {result.exit_code}")
    return reading


async def _content(box: Box, name: str) -> bytes | None:
    try:
        archive = await box.download(f"{LOGS}/{name}", max_bytes=MAX_REWARD_BYTES + tarfile.BLOCKSIZE)
    except NotFoundError:
        return None
    content = read_file(archive, name)
    if content is None:
        raise SandboxError(f"{LOGS}/{name} is no regular file")
    return content


def _digest_members(archive: bytes) -> str:
    """Return a digest over name, mode and content of the files of a tar, so that padding does not count."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        members = [
            (member.name, member.mode & 0o111, member.linkname, stream.read().hex() if stream is not None else "")
            for member in sorted(source.getmembers(), key=lambda member: member.name)
            for stream in [source.extractfile(member) if member.isreg() else None]
        ]
    return digest_of(members)
