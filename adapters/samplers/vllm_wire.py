"""vLLM's HTTP in our words: what a generation asks, what an answer must hold, what a refusal means.

``/inference/v1/generate`` and not ``/v1/completions``: ids in and ids out, each sampled id beside its own logprob, no
text made, and the prompt (perhaps 100,000 ids) not sent back.

Source: facts/proxy.md sections 3.1-3.3; vLLM 0.32 ``entrypoints/scale_out/token_in_token_out/protocol.py``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from domain.errors import ContextOverflowError, OverloadError, SamplerError, boundary
from domain.ports import SampleRequest, SampleResult
from domain.records.trial import StopReason

GENERATE = "/inference/v1/generate"
LEAST_TEMPERATURE = 0.01
"""Below it the server would sample at it. Source: vLLM 0.32 ``sampling_params.py``, ``_MAX_TEMP``."""
_NOT_FINITE = -9998.0
"""The server writes -9999 for NaN and for minus infinity. Source: as above, ``serving.py``, ``_clamp_logprob``."""
_SEEDS = 2**63
_NOT_FOUND = 404
_BUSY = (429, 502, 503, 504)
SERVER_FAULT = 500


class ElsewhereError(OverloadError):
    """This server cannot take the call now, or lost it; nothing was delivered, so another server may be asked."""


class NotServedError(ElsewhereError):
    """The server does not know the model name: it was started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One sampled id with its logprob, and the likeliest ids of its position where they were asked for."""

    id: int
    logprob: float
    likeliest: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer of a server."""

    model: str
    finish_reason: str
    tokens: tuple[Token, ...]
    prompt_logprobs: tuple[float | None, ...]
    """Of each id of the prompt, where they were asked for."""


def generate_body(model: str, request: SampleRequest) -> bytes:
    """Return the body of one generation: the model's own distribution at a temperature, nothing cut off or bent.

    Every parameter that a model directory's ``generation_config.json`` could set is said here. The end-of-text id of
    the model is ignored: ``stop_ids`` say alone where a turn ends.
    """
    return encode(
        model,
        request.prompt_ids,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        stop_token_ids=request.stop_ids,
        seed=request.seed % _SEEDS,
    )


def encode(model: str, prompt_ids: Sequence[int], **parameters: object) -> bytes:
    """Return a body with these sampling parameters and neutral ones beside them."""
    neutral = {
        "n": 1,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
        "skip_special_tokens": False,
    }
    body = {"model": model, "token_ids": prompt_ids, "stream": False, "sampling_params": neutral | parameters}
    return to_json(body)  # 100,000 ids take less than half of what the standard library needs


def read_generation(content: bytes) -> Generation:
    """Read an answer.

    Raises:
        SamplerError: it has another form, or ids and logprobs do not belong together.
    """
    with boundary(SamplerError, "read the answer of vLLM"):
        body = json.loads(content)
        (choice,) = body["choices"]
        entries: list[dict[str, Any]] = choice["logprobs"]["content"] if choice["logprobs"] else []
        tokens = tuple(
            Token(
                id=entry["token_id"],
                logprob=float(entry["logprob"]),
                likeliest={other["token_id"]: float(other["logprob"]) for other in entry["top_logprobs"]},
            )
            for entry in entries
        )
        if [token.id for token in tokens] != choice["token_ids"]:
            raise SamplerError(f"vLLM sampled {len(choice['token_ids'])} ids and gave logprobs of {len(tokens)} others")
        prompt = tuple(
            next(iter(entry.values()))["logprob"] if entry else None for entry in body.get("prompt_logprobs") or ()
        )
        return Generation(
            model=body["model"], finish_reason=choice["finish_reason"], tokens=tokens, prompt_logprobs=prompt
        )


def result_of(generation: Generation, model: str, request: SampleRequest) -> SampleResult:
    """Return the sample.

    Raises:
        SamplerError: another model answered, a logprob is not one, or it ended where it should not.
        ElsewhereError: the server broke it off.
    """
    ids = tuple(token.id for token in generation.tokens)
    logprobs = tuple(token.logprob for token in generation.tokens)
    if generation.model != model:
        raise SamplerError(f"asked vLLM for {model}, {generation.model} answered")
    if generation.finish_reason not in {"stop", "length"}:
        raise ElsewhereError(f"vLLM ended a generation of {model}: {generation.finish_reason}")
    if not all(_NOT_FINITE < value <= 0 for value in logprobs):
        raise SamplerError(f"logprobs of {model} are not finite, or no logprobs", hint="look at the adapter's weights")
    stopped = bool(ids) and ids[-1] in request.stop_ids
    if not stopped and (generation.finish_reason == "stop" or len(ids) != request.max_tokens):
        raise SamplerError(
            f"vLLM ended a generation of {model} ({generation.finish_reason}) after {len(ids)} of "
            f"{request.max_tokens} tokens without a stop id"
        )
    return SampleResult(
        sampled_ids=ids,
        # A point mass: the sampling distribution at temperature 0 gives its token probability one.
        logprobs=logprobs if request.temperature > 0 else (0.0,) * len(ids),
        stop_reason=StopReason.STOP if stopped else StopReason.LENGTH,
        version=request.version,
    )


def refusal(status: int, content: bytes, url: str, path: str) -> SamplerError:
    """Return the error that an answer other than 2xx means. Source: facts/proxy.md section 3.2."""
    message = _message(content)
    said = f"vLLM at {url} answered {status}: {message}"
    if status in _BUSY or (path == GENERATE and status >= SERVER_FAULT):
        return ElsewhereError(said)
    if status == _NOT_FOUND and "does not exist" in message:
        return NotServedError(said)
    if status == _NOT_FOUND:
        return SamplerError(said, hint="start the server with --enable-scale-out, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    if "maximum context length" in message:
        return ContextOverflowError(said)
    return SamplerError(said)


def _message(content: bytes) -> str:
    """Return what an error body says, or its first characters."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:500].decode(errors="replace")
