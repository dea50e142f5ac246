"""What a vLLM server is, found out by asking it: its bases, its context, and what its logprobs are logprobs of."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.samplers.vllm_wire import Generation, encode, read_generation
from domain.errors import AdmissionError, SamplerError, boundary

_PROMPTS = ((0,), (1, 2, 3), (5, 4, 3, 2, 1), (7,) * 8)
"""Ids of any vocabulary; the first after which the likeliest ids are apart tells."""
_HOT = 2.0
_LIKELIEST = 5
_APART = 0.05
"""Gaps between logprobs below this may be rounding: a distribution that flat shows no temperature."""
_HALF = (0.4, 0.6)
_WHOLE = (0.8, 1.2)
_LOGIT_GAP = 0.25
"""Prefill and decode of one position differ by less even in bfloat16. Source: facts/proxy.md section 3.1."""
_HINT = "start it with --logprobs-mode processed_logprobs and no other change of its logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server serves now."""

    bases: tuple[str, ...]
    context_tokens: int
    adapters: Mapping[str, str]
    """Name -> directory."""


def read_models(content: bytes) -> Facts:
    """Read ``/v1/models``.

    Raises:
        SamplerError: it has another form.
    """
    with boundary(SamplerError, "read the models of vLLM"):
        cards: list[dict[str, Any]] = json.loads(content)["data"]
        bases = [card for card in cards if card.get("parent") is None]
        return Facts(
            bases=tuple(str(card["id"]) for card in bases),
            context_tokens=min(int(card["max_model_len"]) for card in bases),
            adapters={str(card["id"]): str(card["root"]) for card in cards if card.get("parent") is not None},
        )


async def reports_sampled(ask: Callable[[bytes], Awaitable[bytes]], base: str, url: str) -> bool:
    """Say whether a server's logprobs are those of the distribution sampled from at every temperature, or at 1 alone.

    At temperature 2 the gaps between the likeliest ids are half as wide as at 1, or the server reports them from before
    the temperature; and a sampled token has the logprob that it has as part of a prompt, or the server reports logits.

    Args:
        ask: sends a body of a generation and returns the answer.
        base: model name to ask.
        url: of the server, for messages.

    Raises:
        AdmissionError: its logprobs are none of the two.
        SamplerError: it did not answer.
    """

    async def probe(prompt: tuple[int, ...], **parameters: object) -> Generation:
        return read_generation(await ask(encode(base, prompt, max_tokens=1, seed=1, **parameters)))

    for prompt in _PROMPTS:
        plain = (await probe(prompt, temperature=1.0, logprobs=_LIKELIEST)).tokens[0]
        scored = (await probe((*prompt, plain.id), temperature=1.0, prompt_logprobs=0)).prompt_logprobs[-1]
        if scored is None or abs(scored - plain.logprob) > _LOGIT_GAP:
            raise AdmissionError(f"vLLM at {url} reports {plain.logprob} for a token of logprob {scored}", hint=_HINT)
        hot = (await probe(prompt, temperature=_HOT, logprobs=_LIKELIEST)).tokens[0]
        ids = sorted(set(plain.likeliest) & set(hot.likeliest), key=lambda one: plain.likeliest[one])
        gap = plain.likeliest[ids[-1]] - plain.likeliest[ids[0]] if ids else 0.0
        if gap < _APART:
            continue
        narrowed = (hot.likeliest[ids[-1]] - hot.likeliest[ids[0]]) / gap
        if _HALF[0] <= narrowed <= _HALF[1]:
            return True
        if _WHOLE[0] <= narrowed <= _WHOLE[1]:
            return False
        raise AdmissionError(f"vLLM at {url}: gaps of logprobs at temperature 2 are {narrowed:.2f} of 1's", hint=_HINT)
    return False
