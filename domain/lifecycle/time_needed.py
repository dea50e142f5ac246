"""How long a trial may take by the limits of its phases, so that its deadline ends none that keeps them."""

from domain.lifecycle.step_view import step_view
from domain.lifecycle.steps import is_verified_inside
from domain.records.profile import Plan
from domain.records.task import Phase, Task


def too_short(task: Task, plan: Plan) -> tuple[str, ...]:
    """Name the deadline when agent and verifier together may take longer by their own limits; empty: they may not.

    A deadline that ends an agent within its limits would call the agent's slowness infrastructure, and try again.
    Steps and shared verifiers share one trial; the verifier of any other task has its own time behind it.
    """
    views = [step_view(task, step) for step in task.steps] or [task]
    needed_s = sum(_limit_s(view.agent, plan.agent_timeout_s) for view in views)
    if is_verified_inside(task):
        needed_s += sum(_limit_s(view.verifier, plan.verifier_timeout_s) for view in views)
    if needed_s <= plan.trial_deadline_s:
        return ()
    who = "agent and verifier" if is_verified_inside(task) else "the agent"
    steps = f" in {len(task.steps)} steps" if task.steps else ""
    return (f"trial_deadline_s: {who} may take {needed_s:g} s{steps}, the plan has {plan.trial_deadline_s:g}",)


def _limit_s(phase: Phase, most_s: float) -> float:
    return most_s if phase.timeout_s is None else min(most_s, phase.timeout_s)
