"""Captured interactions as ATIF, the trajectory format of Harbor. Source: Harbor 0.26 ``models/trajectories``, v1.8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from domain.records.canonical import Json
from domain.records.trial import Interaction

VERSION = "ATIF-v1.8"
_MAIN = "main"

Document = dict[str, Json]


def trajectory(interactions: Sequence[Interaction], *, agent: str, version: str, model: str | None) -> Document | None:
    """Return the trajectory of a trial, delegated agents inside it; None without a model call.

    Args:
        interactions: in any order.
        agent: name of the harness.
        version: of the harness.
        model: name of the policy that answered.
    """
    names = list(dict.fromkeys(item.agent for item in sorted(interactions, key=lambda item: item.sequence)))
    if not names:
        return None
    names.sort(key=lambda name: name != _MAIN)
    info: Document = {"name": agent, "version": version, "model_name": model}
    made = {name: _document([item for item in interactions if item.agent == name], info) for name in names}
    root, *others = names
    document = made[root]
    document["session_id"] = interactions[0].trial_id
    if others:
        document["subagent_trajectories"] = [{**made[name], "trajectory_id": name} for name in others]
    return document


def _document(calls: Sequence[Interaction], info: Document) -> Document:
    writer = _Writer()
    for call in sorted(calls, key=lambda item: item.sequence):
        writer.add(call)
    total: Document = {
        "total_prompt_tokens": sum(call.n_prompt_ids for call in calls),
        "total_completion_tokens": sum(call.n_sampled_ids for call in calls),
        "total_steps": len(writer.steps),
    }
    return {"schema_version": VERSION, "agent": info, "steps": list(writer.steps), "final_metrics": total}


@dataclass(slots=True)
class _Writer:
    """Numbers steps and puts what a tool answered beside the call it answers."""

    steps: list[Document] = field(default_factory=list[Document])
    segment: int | None = None

    def add(self, call: Interaction) -> None:
        """Add what a call brought in, and its answer."""
        opens = call.segment != self.segment
        self.segment = call.segment
        system = call.request.get("system")
        if opens and isinstance(system, str) and system:
            self._step("system", system)
        for message in _mappings(call.request.get("messages")):
            self._message(message)
        self._answer(call.response.get("content"), call)

    def _message(self, message: Mapping[str, Json]) -> None:
        content = message.get("content")
        if message.get("role") == "assistant":
            self._answer(content, None)
            return
        texts = [content] if isinstance(content, str) else []
        for block in _mappings(content):
            if block.get("type") == "tool_result":
                self._observe(block)
            else:
                texts.append(_text([block]))
        if texts:
            self._step("user", "\n".join(texts))

    def _observe(self, block: Mapping[str, Json]) -> None:
        content = _text(block.get("content"))
        last = self.steps[-1] if self.steps else None
        calls = _mappings(last.get("tool_calls")) if last is not None else []
        if last is None or block.get("tool_use_id") not in [call.get("tool_call_id") for call in calls]:
            self._step("user", content)
            return
        observation = cast("dict[str, list[Json]]", last.setdefault("observation", {"results": list[Json]()}))
        observation["results"].append({"source_call_id": block.get("tool_use_id"), "content": content})

    def _answer(self, content: Json, call: Interaction | None) -> None:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _mappings(content)
        step = self._step("agent", _text([block for block in blocks if block.get("type") == "text"]))
        calls: list[Json] = [
            {
                "tool_call_id": str(block.get("id", "")),
                "function_name": str(block.get("name", "")),
                "arguments": _arguments(block.get("input")),
            }
            for block in blocks
            if block.get("type") == "tool_use"
        ]
        if calls:
            step["tool_calls"] = calls
        thinking = "\n".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking")
        if thinking:
            step["reasoning_content"] = thinking
        if call is None:
            step["is_copied_context"] = True
            return
        step["timestamp"] = stamp(call.started_ms)
        step["model_name"] = call.sampler_version
        step["llm_call_count"] = 1
        step["extra"] = {
            "synth": {
                "segment": call.segment,
                "seed": call.seed,
                "temperature": call.temperature,
                "stop_reason": call.stop_reason.value,
                "duration_s": call.duration_s,
            }
        }
        step["metrics"] = {
            "prompt_tokens": call.n_prompt_ids,
            "completion_tokens": call.n_sampled_ids,
            "prompt_token_ids": list(call.prompt_ids),
            "completion_token_ids": list(call.sampled_ids),
            "logprobs": list(call.logprobs),
        }

    def _step(self, source: str, message: str) -> Document:
        step: Document = {"step_id": len(self.steps) + 1, "source": source, "message": message}
        self.steps.append(step)
        return step


def stamp(milliseconds: int) -> str:
    """Return a time as ISO 8601."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def _arguments(value: Json) -> Json:
    return dict(cast("Mapping[str, Json]", value)) if isinstance(value, Mapping) else {"input": value}


def _mappings(value: Json) -> list[Mapping[str, Json]]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return []
    return [cast("Mapping[str, Json]", item) for item in value if isinstance(item, Mapping)]


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", f"[{block.get('type', 'content')}]")) for block in _mappings(content))
