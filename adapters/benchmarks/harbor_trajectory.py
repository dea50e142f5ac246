"""Trajectories in ATIF as interactions: what people read of a trial. Such tokens never train.

Source: Harbor 0.26 ``models/trajectories``, ATIF v1.8; facts/harbor.md section 4.7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.benchmarks.harbor_job_schema import read_document
from domain.records.canonical import Json, digest_bytes
from domain.records.trial import Interaction, Purpose, StopReason

_MAIN = "main"


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class Part(_Model):
    """A part of a message."""

    type: str
    text: str | None = None


Content = str | tuple[Part, ...]


class ToolCall(_Model):
    """A call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class ToolResult(_Model):
    """What a tool answered."""

    source_call_id: str | None = None
    content: Content | None = None


class Observation(_Model):
    """What came of a step."""

    results: tuple[ToolResult, ...]


class Metrics(_Model):
    """The tokens of one call."""

    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


class OwnStep(_Model):
    """What our own export adds to a step: what ATIF has no place for."""

    segment: int = 0
    seed: int = 0
    temperature: float = 1.0
    stop_reason: Literal["stop", "length"] = "stop"
    duration_s: float = 0.0


class Extra(_Model):
    """Where ATIF leaves room."""

    synth: OwnStep = OwnStep()


class Step(_Model):
    """One turn."""

    step_id: int
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    message: Content
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(default=None, ge=0)
    extra: Extra | None = None


class Agent(_Model):
    """Who worked."""

    name: str
    model_name: str | None = None


class Trajectory(_Model):
    """One document."""

    schema_version: str = Field(pattern=r"^ATIF-v1\.[0-8]$")
    trajectory_id: str | None = None
    agent: Agent
    steps: tuple[Step, ...] = Field(min_length=1)
    subagent_trajectories: "tuple[Trajectory, ...] | None" = None

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if [step.step_id for step in self.steps] != list(range(1, len(self.steps) + 1)):
            raise ValueError("step_id: steps are not numbered 1, 2, 3 and so on")
        return self


def read_trajectories(files: Sequence[tuple[Path, str]]) -> tuple[Trajectory, ...]:
    """Return the trajectories of a trial in order.

    Args:
        files: each path, and how messages name it.

    Raises:
        ConfigurationError: naming the file and the first field that is wrong.
    """
    return tuple(read_document(Trajectory, path, shown=shown) for path, shown in files)


def n_calls(trajectories: Sequence[Trajectory]) -> int:
    """Return how many model calls they tell of."""
    found = (step for whole in trajectories for _, document in _documents(whole) for step in document.steps)
    return sum(
        1 if step.llm_call_count is None else step.llm_call_count
        for step in found
        if step.source == "agent" and not step.is_copied_context
    )


def interactions(trajectories: Sequence[Trajectory], trial_id: str) -> tuple[Interaction, ...]:
    """Return the turns of every agent, each with what came before it since the last one."""
    found: list[Interaction] = []
    for whole in trajectories:
        for name, document in _documents(whole):
            reader = _Reader(trial_id=trial_id, agent=name, model=document.agent.model_name or "", first=len(found))
            for step in document.steps:
                reader.add(step)
            found += reader.end()
    return tuple(found)


def _documents(whole: Trajectory, name: str = _MAIN) -> Iterator[tuple[str, Trajectory]]:
    yield name, whole
    for number, inner in enumerate(whole.subagent_trajectories or ()):
        yield from _documents(inner, inner.trajectory_id or f"{name}-{number}")


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Gathers messages until the agent answers."""

    trial_id: str
    agent: str
    model: str
    first: int
    found: list[Interaction] = field(default_factory=list[Interaction])
    system: str | None = None
    segment: int = 0
    pending: list[Json] = field(default_factory=list[Json])

    def add(self, step: Step) -> None:
        """Take one step."""
        if step.source == "system":
            self.segment += bool(self.found)
            self.system = _text(step.message)
        elif step.source == "user":
            self.pending.append({"role": "user", "content": _text(step.message)})
        elif step.is_copied_context:
            self.pending.append({"role": "assistant", "content": _blocks(step)})
            self._observe(step)
        else:
            self._answer(step)
            self._observe(step)

    def end(self) -> list[Interaction]:
        """Return the calls. What tools said to the last one stays beside its answer: no call ever saw it."""
        if self.found and self.pending:
            last = self.found[-1]
            self.found[-1] = replace(last, response={**last.response, "unanswered": list(self.pending)})
        return self.found

    def _observe(self, step: Step) -> None:
        results = step.observation.results if step.observation is not None else ()
        blocks: list[Json] = [
            {
                "type": "tool_result",
                "tool_use_id": result.source_call_id or "",
                "content": _text(result.content or ""),
            }
            for result in results
        ]
        if blocks:
            self.pending.append({"role": "user", "content": blocks})

    def _answer(self, step: Step) -> None:
        number = self.first + len(self.found)
        metrics, own = step.metrics or Metrics(), (step.extra or Extra()).synth
        sampled = metrics.completion_token_ids or ()
        logprobs = metrics.logprobs or ()
        request: dict[str, Json] = {"messages": list(self.pending)}
        if self.system is not None:
            request["system"] = self.system
        self.found.append(
            Interaction(
                interaction_id=digest_bytes(f"{self.trial_id}:{number}".encode())[:26],
                trial_id=self.trial_id,
                sequence=number,
                agent=self.agent,
                segment=max(self.segment, own.segment),
                purpose=Purpose.OTHER,
                sampler_version=step.model_name or self.model,
                prompt_ids=metrics.prompt_token_ids or (),
                sampled_ids=sampled,
                logprobs=logprobs if len(logprobs) == len(sampled) else (),
                stop_reason=StopReason(own.stop_reason),
                temperature=own.temperature,
                seed=own.seed,
                request=request,
                response={"content": _blocks(step)},
                started_ms=_milliseconds(step.timestamp),
                duration_s=own.duration_s,
            )
        )
        self.system, self.pending = None, []


def _blocks(step: Step) -> list[Json]:
    blocks: list[Json] = []
    if step.reasoning_content:
        blocks.append({"type": "thinking", "thinking": step.reasoning_content})
    if text := _text(step.message):
        blocks.append({"type": "text", "text": text})
    calls = step.tool_calls or ()
    return [
        *blocks,
        *(
            {"type": "tool_use", "id": call.tool_call_id, "name": call.function_name, "input": call.arguments}
            for call in calls
        ),
    ]


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(f"[{part.type}]" if part.text is None else part.text for part in content)


def _milliseconds(stamp: str | None) -> int:
    if stamp is None:
        return 0
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return 0
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
