"""Vetting of a task set: its solutions and doing nothing go through the same trial and the same verifier."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import NotFoundError
from domain.lifecycle.deadline import all_or_cancel
from domain.lifecycle.group import assess
from domain.lifecycle.trial import Attempt, TrialContext, run_trial
from domain.records.archive import paths
from domain.records.canonical import digest_of
from domain.records.experiment import Lease
from domain.records.profile import Plan, Profile
from domain.records.task import Task, TaskEntry, TaskSet
from domain.records.trial import AttemptKey
from domain.service.platform import Platform

_AT_ONCE = 4
_NEEDED = ("instruction.md", "solution/solve.sh", "tests/test.sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetting:
    """What was found wrong, by check, one line each."""

    n_tasks: int
    wrong: dict[str, list[str]]


async def vet(platform: Platform, task_set: TaskSet, sandbox: str, most: int, *, holder: str) -> Vetting:
    """Try ``most`` tasks (0: all), spread over the set.

    Raises:
        NotFoundError: no such sandbox.
    """
    if sandbox not in platform.sandboxes:
        raise NotFoundError(f"sandbox {sandbox!r} is unknown", hint=f"use one of {', '.join(platform.sandboxes)}")
    entries = task_set.tasks[:: max(1, -(-len(task_set.tasks) // most))] if most else task_set.tasks
    wrong: dict[str, list[str]] = {"oracle_scores_one": [], "nop_scores_below_one": [], "lint": []}
    for first in range(0, len(entries), _AT_ONCE):
        for found in await all_or_cancel(
            [_vet_task(platform, entry, sandbox, holder) for entry in entries[first : first + _AT_ONCE]]
        ):
            for check, line in found:
                wrong[check].append(line)
    return Vetting(n_tasks=len(entries), wrong=wrong)


async def _vet_task(platform: Platform, entry: TaskEntry, sandbox: str, holder: str) -> Sequence[tuple[str, str]]:
    task = platform.records.load(Task, entry.record)
    archive = platform.store.get(task.archive)
    problems = [f"{path} is missing" for path in _NEEDED if path not in paths(archive)]
    problems += [] if task.instruction.strip() else ["the instruction is empty"]
    problems += platform.sandboxes[sandbox].refusals(task.environment)
    if problems:
        return [("lint", f"{entry.name}: {'; '.join(problems)}")]
    found: list[tuple[str, str]] = []
    oracle, why = await _score(platform, task, archive, "oracle", sandbox, holder)
    if oracle != 1.0:
        found.append(("oracle_scores_one", f"{entry.name}: {'ungraded' if oracle is None else oracle}: {why}"))
    nop, why = await _score(platform, task, archive, "nop", sandbox, holder)
    if nop is None or nop >= 1.0:
        found.append(("nop_scores_below_one", f"{entry.name}: {'ungraded' if nop is None else nop}: {why}"))
    return found


async def _score(
    platform: Platform, task: Task, archive: bytes, engine: str, sandbox: str, holder: str
) -> tuple[float | None, str]:
    profile = Profile(name=engine, engine=engine)
    plan = Plan(sandbox=sandbox)
    context = TrialContext(
        clock=platform.clock,
        ledger=platform.ledger,
        store=platform.store,
        sandbox=platform.sandboxes[sandbox],
        engine=platform.engines[engine],
        model=platform.model,
        profile=profile,
        profile_digest=digest_of(profile),
        plan=plan,
        experiment_id="vetting",
        # No unit stands behind this: neither engine asks for a model, so nothing is written under the lease.
        lease=Lease(unit="vetting", holder=holder, fence=0),
        policy=None,
    )
    key = AttemptKey(unit="vetting", group=0, attempt=0)
    trial = await run_trial(context, Attempt(key=key, task=task, archive=archive, seed=0))
    assessment = await assess(platform.verifiers[sandbox], task, trial, fence=0)
    return assessment.reward, assessment.reason or trial.detail
