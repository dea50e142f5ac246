"""A trial's transcript as text for a terminal; plain when it goes through a pipe."""

from rich.text import Text

from adapters.reports import formats
from adapters.reports.conversation import CallFacts, Turn, turns_of
from domain.records.assessment import Assessment
from domain.records.trial import TrialRecord
from domain.records.wording import counted, without_documents
from domain.service.inspection import Transcript

_STYLES = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def transcript_text(found: Transcript) -> Text:
    """Return the whole transcript: the trial, each turn with its call's facts, the assessments."""
    text = Text()
    _head(text, found.trial)
    turns = turns_of(found.interactions)
    several = len({turn.agent for turn in turns}) > 1
    for turn in turns:
        _turn(text, turn, name=f"{formats.visible(turn.agent)} · {turn.role}" if several else turn.role)
    if not turns:
        text.append("\nno model call was captured\n", style="dim")
    for assessment in found.assessments:
        _assessment(text, assessment)
    return text


def _head(text: Text, trial: TrialRecord) -> None:
    usage = trial.usage
    text.append(formats.visible(trial.task_name), style="bold")
    text.append(f"  {trial.outcome.value}", style="green" if trial.outcome.value == "completed" else "red")
    text.append(f"  {formats.visible(without_documents(trial.detail))}\n" if trial.detail else "\n")
    facts = (
        f"trial {trial.trial_id}  attempt {trial.key}  model {trial.policy or formats.DASH}\n"
        f"{counted(usage.n_calls, 'call')}, {counted(usage.n_prompt_tokens, 'prompt token')}, "
        f"{counted(usage.n_sampled_tokens, 'sampled token')}, {formats.duration(usage.wall_s)}\n"
    )
    text.append(facts, style="dim")


def _turn(text: Text, turn: Turn, *, name: str) -> None:
    if turn.opens_segment:
        text.append("\n── the harness rewrote its history ──\n", style="dim")
    text.append(f"\n{name}", style=f"bold {_STYLES.get(turn.role, '')}".strip())
    if turn.facts is not None:
        text.append(f"  {_facts(turn.facts)}", style="dim")
    text.append("\n")
    if turn.thinking:
        text.append(f"{formats.visible(turn.thinking.rstrip())}\n", style="dim italic")
    if turn.text:
        text.append(f"{formats.visible(turn.text.rstrip())}\n")
    for call in turn.calls:
        text.append(f"{formats.visible(call.name)}> ", style="bold cyan")
        text.append(f"{formats.visible(call.text.rstrip())}\n", style="cyan")


def _facts(facts: CallFacts) -> str:
    return (
        f"call {facts.number}: {formats.count(facts.n_prompt_tokens)} + {facts.n_sampled_tokens} tokens, "
        f"mean logprob {formats.score(facts.logprob_mean)}, {facts.stop_reason}, {facts.sampler_version}"
    )


def _assessment(text: Text, assessment: Assessment) -> None:
    text.append(f"\n{assessment.assessor}", style="bold")
    text.append(f"  {assessment.outcome.value}  reward {formats.score(assessment.reward)}", style="bold")
    text.append("  tampered" if assessment.tampered else "", style="bold red")
    text.append(f"\n{formats.visible(without_documents(assessment.reason))}\n" if assessment.reason else "\n")
