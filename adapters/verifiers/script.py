"""The task's own test script, run in a fresh box over what the trial left behind."""

import asyncio
import io
import tarfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from adapters.verifiers.outputs import keeps_workdir, tampering
from domain.errors import BoxContentError, NotFoundError, SandboxError, SynthError, VerifierError, boundary
from domain.lifecycle.redaction import redact, redact_bytes
from domain.lifecycle.rewards import MAX_REWARD_BYTES, RewardReading, read_rewards
from domain.lifecycle.step_rewards import settle_steps
from domain.lifecycle.teardown import end_box
from domain.lifecycle.variables import filled, used_values
from domain.ports import Box, BoxSpec, Clock, Command, CommandResult, Limits, Sandbox, Store, Work
from domain.records.archive import pack_files, read_file, subtree
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import digest_of
from domain.records.task import NetworkMode, NetworkPolicy, ObjectRef, Task, TaskEnvironment, VerifierMode
from domain.records.trial import TrialRecord

LOGS = "/logs/verifier"
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
"""Beside the task's own variables the verifier gets no more than these: nothing of an agent's box, nothing of ours."""
_GRACE_S = 60.0
"""Beyond the time-out, for transfers; then the janitor may end the box."""
_BOXES = 3
"""Made one after another for one verdict, when infrastructure takes them."""
_CACHED_ARCHIVES = 64
_CLEAN = "for d in /tests /logs/verifier; do mkdir -p $d && find $d/ -mindepth 1 -delete || exit 1; done"
"""Before a shared verifier: what the agent planted is gone. Rewards would be its own, tests too."""


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
        variables: what the operator gives to tasks that ask for it with ``${VAR}``.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        store: Store,
        clock: Clock,
        *,
        timeout_s: float = 600.0,
        limits: Limits | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._limits = limits or Limits()
        self._variables = dict(variables or {})
        self._cache: OrderedDict[str, _Tests] = OrderedDict()

    def identity(self, task: Task) -> str:
        """Return ``verifier:`` and 12 hex digits over the files of the tests and the verifier's settings."""
        settings = (self._published(task).digest, task.verifier, task.environment.workdir, *_place_of(task))
        return f"verifier:{digest_of(settings)[:12]}"

    async def assess(self, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
        """Assess retained outputs in a fresh box. Infrastructure faults become UNGRADED, not exceptions.

        What was verified while the trial ran is read from its record.
        """
        started_s = self._clock.monotonic_s()
        assessor = "verifier:unknown"
        try:
            with boundary(VerifierError, f"verifier of trial {trial.trial_id}"):
                assessor = await asyncio.to_thread(self.identity, task)
                verdict = await self._judge(task, trial, fence)
        except SynthError as error:
            verdict = _Verdict(reading=RewardReading(reason=str(error)))
        return verdict.assessment(trial, assessor, self._clock.monotonic_s() - started_s)

    async def verify(self, work: Work) -> Assessment:
        """Verify one phase of a running trial. Infrastructure faults become UNGRADED, not exceptions."""
        started_s = self._clock.monotonic_s()
        assessor = "verifier:unknown"
        try:
            with boundary(VerifierError, f"verifier of trial {work.trial.trial_id}"):
                tests = await asyncio.to_thread(_tests_of, work.task, work.archive)
                assessor = f"verifier:{digest_of((tests.digest, work.task.verifier, *_place_of(work.task)))[:12]}"
                verdict = await self._judge_work(work, tests)
        except SynthError as error:
            verdict = _Verdict(reading=RewardReading(reason=redact(str(error), self._values(work.task))))
        return verdict.assessment(work.trial, assessor, self._clock.monotonic_s() - started_s)

    async def _judge(self, task: Task, trial: TrialRecord, fence: int) -> "_Verdict":
        """Decide what needs no box (the outcome table of architecture, section 3), else run the script."""
        if not trial.outcome.is_assessable():
            return _Verdict(reading=RewardReading(reason=f"the trial ended as {trial.outcome}"))
        if trial.task_digest != task.digest:  # attack A52: what one task's trial left says nothing about another
            return _Verdict(reading=RewardReading(reason=f"the trial is of another task, {trial.task_digest[:12]}"))
        if task.steps or task.verifier_mode is VerifierMode.SHARED:
            found = settle_steps(task, trial)
            reading = RewardReading(panel=found.panel, reward=found.reward, reason=found.reason)
            return _Verdict(reading=reading, tampered=found.tampered)
        outputs = await asyncio.to_thread(self._store.get, trial.outputs) if trial.outputs is not None else None
        work = Work(
            task=task,
            archive=b"",
            trial=trial,
            fence=fence,
            outputs=outputs,
            missing_artifacts=trial.missing_artifacts,
        )
        return await self._judge_work(work, None)

    async def _judge_work(self, work: Work, tests: "_Tests | None") -> "_Verdict":
        if work.box is not None:
            return await self._run_shared(work.box, work, tests or self._published(work.task))
        if work.missing_artifacts:
            return _zero("declared artifacts are missing: " + ", ".join(work.missing_artifacts))
        problem = tampering(work.outputs, work.task) if work.outputs is not None else ""
        if problem:
            return _zero(f"tampering: {problem}", tampered=True)
        published = tests or self._published(work.task)
        for _ in range(_BOXES - 1):
            with suppress(SandboxError):
                return await self._run_separate(work, published)
        return await self._run_separate(work, published)

    async def _run_separate(self, work: Work, tests: "_Tests") -> "_Verdict":
        task = filled(work.task, self._variables)
        timeout_s = self._limit_s(task)
        environment = verifier_environment(task)
        spec = BoxSpec(
            box_id=f"v-{self._clock.new_id()}",
            experiment_id=work.trial.experiment_id,
            trial_id=work.trial.trial_id,
            fence=work.fence,
            deadline_ms=self._clock.now_ms() + int((timeout_s + _GRACE_S) * 1000),
            environment=environment,
            archive=task.archive,
            limits=replace(self._limits, memory_mb=environment.memory_mb or self._limits.memory_mb),
        )
        box = await self._sandbox.create(spec)
        try:
            await self._fill(box, task, tests, work.outputs)
            return await self._test(box, task, timeout_s)
        finally:
            await end_box(box, self._clock)

    async def _run_shared(self, box: Box, work: Work, tests: "_Tests") -> "_Verdict":
        """Run the tests in the agent's box, where nothing of the agent runs and no reward lies."""
        task = filled(work.task, self._variables)
        cleaned = await box.exec(Command(argv=("/bin/sh", "-c", _CLEAN), cwd="/", user="root"))
        if cleaned.exit_code != 0:
            return _Verdict(reading=RewardReading(reason="what lay in the verifier's directories could not be removed"))
        await box.upload(tests.tests, "/tests")
        return await self._test(box, task, self._limit_s(task))

    async def _test(self, box: Box, task: Task, timeout_s: float) -> "_Verdict":
        shared = task.verifier_mode is VerifierMode.SHARED
        environment = task.environment if shared else verifier_environment(task)
        result = await box.exec(
            Command(
                argv=("bash", "/tests/test.sh"),
                cwd=environment.workdir,
                env={**_ENVIRONMENT, **environment.env, **task.verifier.env},
                timeout_s=timeout_s,
                user=task.verifier.user,
            )
        )
        reading = await _read(box, result)
        return _Verdict(reading=reading, logs=await asyncio.to_thread(self._keep_logs, result))

    def _limit_s(self, task: Task) -> float:
        return min(self._timeout_s, task.verifier.timeout_s or self._timeout_s)

    async def _fill(self, box: Box, task: Task, tests: "_Tests", outputs: bytes | None) -> None:
        """Put in what the task's image would hold, what the agent left, and then the tests.

        An image that brings its tests gets none; a box that runs without that image gets them after all.

        Raises:
            SandboxError: the box failed, or the image that should bring the tests has none.
        """
        brought = task.bundles_tests and await _is_there(box, "/tests/test.sh")
        if task.bundles_tests and not brought and not task.environment.host_runnable:
            raise SandboxError("the verifier's image holds no /tests/test.sh", hint="copy the tests into it")
        if tests.host_files is not None and not keeps_workdir(task):
            await box.upload(tests.host_files, task.environment.workdir)
        if outputs is not None:
            await box.upload(outputs, "/")
        if not brought:
            await box.upload(tests.tests, "/tests")

    def _values(self, task: Task) -> tuple[str, ...]:
        return used_values(task, self._variables)

    def _published(self, task: Task) -> "_Tests":
        found = self._cache.get(task.archive.digest)
        if found is None:
            found = _tests_of(task, self._store.get(task.archive))
            self._cache[task.archive.digest] = found
            while len(self._cache) > _CACHED_ARCHIVES:
                self._cache.popitem(last=False)
        return found

    def _keep_logs(self, result: CommandResult) -> ObjectRef | None:
        values = tuple(self._variables.values())
        files = {
            "test-stdout.txt": redact_bytes(result.stdout, values),
            "test-stderr.txt": redact_bytes(result.stderr, values),
        }
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


def verifier_environment(task: Task) -> TaskEnvironment:
    """Return what the verifier's box is made of: its own environment or the agent's, and no network unasked."""
    base = task.verifier_environment or task.environment
    policy = task.verifier_network or NetworkPolicy(mode=NetworkMode.NO_NETWORK)
    workdir = task.environment.workdir if base.host_runnable else base.workdir
    return replace(base, network_mode=policy.mode, allowed_hosts=policy.allowed_hosts, workdir=workdir)


def _place_of(task: Task) -> tuple[object, ...]:
    """Return what else decides where the tests run; nothing for the usual fresh box, or one built from ``tests/``."""
    own, ours = task.verifier_environment, task.environment
    if own is not None and own.docker_image is None:
        built = replace(
            own,
            context=ours.context,
            dockerfile=ours.dockerfile,
            compose=ours.compose,
            docker_image=ours.docker_image,
            workdir=ours.workdir,
            host_files=ours.host_files,
        )
        own = None if built == ours else own
    place = (task.verifier_mode, own, task.verifier_network)
    usual = (VerifierMode.SEPARATE, None, None)
    steps = [(step.name, step.verifier, step.min_reward, step.verifier_mode) for step in task.steps]
    return (*(() if place == usual else place), *((steps, task.reward_strategy) if steps else ()))


def _tests_of(task: Task, archive: bytes) -> _Tests:
    tests = subtree(archive, "tests")
    host = task.environment.host_files if task.environment.host_runnable else None
    return _Tests(
        tests=tests,
        host_files=None if host is None else subtree(archive, host),
        digest=_digest_members(tests),
    )


async def _is_there(box: Box, path: str) -> bool:
    try:
        await box.download(path)
    except NotFoundError:
        return False
    return True


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
    except BoxContentError as error:
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
        raise BoxContentError(f"{LOGS}/{name} is no regular file")
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
