"""Vetting of a task set: its solutions and doing nothing go through the same trial and the same verifier."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import NotFoundError
from domain.lifecycle.deadline import all_or_cancel
from domain.lifecycle.group import assess
from domain.lifecycle.preflight import foreign_line_ends, leaks, unpinned_images
from domain.lifecycle.reassess import cannot_reassess, reassess
from domain.lifecycle.refusals import task_refusals
from domain.lifecycle.task_lint import lint
from domain.lifecycle.trial import Attempt, TrialContext, run_trial
from domain.ports import Progress
from domain.records.archive import paths
from domain.records.assessment import Assessment
from domain.records.canonical import digest_of
from domain.records.experiment import Lease
from domain.records.profile import Plan, Profile
from domain.records.task import Task, TaskEntry, TaskSet
from domain.records.trial import AttemptKey
from domain.records.wording import one_of
from domain.service.platform import Platform
from domain.service.task_pages import entries_at

_AT_ONCE = 4
_REPEATS = 3
CHECKS = {
    "oracle_scores_one": "The tasks' own solutions score 1 in the tasks' own verifiers.",
    "nop_scores_below_one": "Doing nothing scores below 1.",
    "verifier_is_deterministic": "The same outputs get the same panel three times.",
    "nothing_leaks": "No line of solution or tests is in what the agent can read.",
    "images_are_pinned": "Base images are named by digest. A warning: a machine without a registry has no digests.",
    "harbor_lint": "The rules of Harbor's linter: separate verifiers, pinned packages, nothing fetched while grading.",
    "texts_are_plain": "Scripts and texts have neither CRLF line ends nor a byte order mark.",
    "lint": "Tasks have an instruction, a solution and tests, and the sandbox can realise what they ask for.",
}
"""Check -> what it says."""
TRIED = frozenset({"oracle_scores_one", "nop_scores_below_one", "verifier_is_deterministic"})
"""Checks that run a task; the others read its files."""
WARNINGS = frozenset({"images_are_pinned"})
"""Checks whose failure leaves a task usable."""
_SOLUTION, _TESTS = "solution/solve.sh", "tests/test.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetting:
    """What was found wrong, by check, one line each."""

    n_tasks: int
    wrong: dict[str, list[str]]

    @property
    def passed(self) -> bool:
        """Whether no check but a warning found anything."""
        return not any(lines for check, lines in self.wrong.items() if check not in WARNINGS)


def _quietly(_what: str, _done: int, _total: int) -> None:
    """Report to nobody."""


async def vet(
    platform: Platform, task_set: TaskSet, sandbox: str, most: int, *, holder: str, progress: Progress = _quietly
) -> Vetting:
    """Try ``most`` tasks (0: all), spread over the set; ``progress`` is told of tasks that are done.

    Raises:
        NotFoundError: no such sandbox.
    """
    if sandbox not in platform.sandboxes:
        raise NotFoundError(f"sandbox {sandbox!r} is unknown", hint=one_of(sandbox, sorted(platform.sandboxes)))
    step = max(1, -(-task_set.n_tasks // most)) if most else 1
    entries = entries_at(platform.records, task_set, range(0, task_set.n_tasks, step))
    wrong: dict[str, list[str]] = {check: [] for check in CHECKS}
    progress("tasks checked", 0, len(entries))
    for first in range(0, len(entries), _AT_ONCE):
        for found in await all_or_cancel(
            [_vet_task(platform, entry, sandbox, holder) for entry in entries[first : first + _AT_ONCE]]
        ):
            for check, line in found:
                wrong[check].append(line)
        progress("tasks checked", min(first + _AT_ONCE, len(entries)), len(entries))
    return Vetting(n_tasks=len(entries), wrong=wrong)


def _missing(task: Task, files: frozenset[str]) -> list[str]:
    """Return what vetting needs and the task has not; a step may have the shared files instead of its own."""
    places = [f"steps/{step.name}/" for step in task.steps] or [""]
    problems = [f"{place}instruction.md is missing" for place in places if f"{place}instruction.md" not in files]
    # A verifier's image may bring the tests; what of them must be among the files is settled when they are published.
    bundled = {f"steps/{step.name}/": step.bundles_tests for step in task.steps} or {"": task.bundles_tests}
    for place in places:
        needed = (_SOLUTION,) if bundled[place] else (_SOLUTION, _TESTS)
        problems += [f"{place}{name} is missing" for name in needed if not {name, f"{place}{name}"} & files]
    return problems


async def _vet_task(platform: Platform, entry: TaskEntry, sandbox: str, holder: str) -> Sequence[tuple[str, str]]:
    task = platform.records.load(Task, entry.record)
    archive = platform.store.get(task.archive)
    problems = _missing(task, frozenset(paths(archive)))
    problems += [] if task.instruction.strip() else ["the instruction is empty"]
    problems += task_refusals(task, platform.sandboxes[sandbox], platform.engines["oracle"], platform.variables)
    found = [("texts_are_plain", f"{entry.name}: {text}") for text in foreign_line_ends(archive)]
    found += [("harbor_lint", f"{entry.name}: {finding}") for finding in lint(task, archive)]
    found += [("nothing_leaks", f"{entry.name}: {leak}") for leak in leaks(task, archive)]
    found += [("images_are_pinned", f"{entry.name}: {image}") for image in unpinned_images(task, archive)]
    if problems:
        return [*found, ("lint", f"{entry.name}: {'; '.join(problems)}")]
    oracle, *repeats = await _assessments(platform, task, archive, "oracle", sandbox, holder, times=_REPEATS)
    if oracle.reward != 1.0:
        found.append(("oracle_scores_one", f"{entry.name}: {_words(oracle)}"))
    if any((other.outcome, other.panel) != (oracle.outcome, oracle.panel) for other in repeats):
        said = "; ".join(dict.fromkeys(_words(each) for each in (oracle, *repeats)))
        found.append(("verifier_is_deterministic", f"{entry.name}: {said}"))
    (nop,) = await _assessments(platform, task, archive, "nop", sandbox, holder, times=1)
    if nop.reward is None or nop.reward >= 1.0:
        found.append(("nop_scores_below_one", f"{entry.name}: {_words(nop)}"))
    return found


def _words(assessment: Assessment) -> str:
    score = "ungraded" if assessment.reward is None else f"{assessment.reward:g}"
    return f"{score}: {assessment.reason or dict(assessment.panel or {})}"


async def _assessments(
    platform: Platform, task: Task, archive: bytes, engine: str, sandbox: str, holder: str, *, times: int
) -> list[Assessment]:
    """Run one trial and assess what it left ``times`` times, each in a fresh box.

    Where a verifier shares the agent's box, each assessment takes a trial of its own.
    """
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
        verifier=platform.verifiers[sandbox],
        variables=platform.variables,
    )
    key = AttemptKey(unit="vetting", group=0, attempt=0)
    attempt, verifier = Attempt(key=key, task=task, archive=archive, seed=0), platform.verifiers[sandbox]
    trial = await run_trial(context, attempt)
    found = [await assess(verifier, task, trial, fence=0)]
    while len(found) < times:
        if cannot_reassess(task):
            found.append(await assess(verifier, task, await run_trial(context, attempt), fence=0))
        else:
            found.append(await reassess(verifier, platform.store, task, trial, fence=0))
    return found
