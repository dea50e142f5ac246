"""The environment that routes Claude Code to the bound model and nothing else.

Source: facts/proxy.md sections 1.7 to 1.9, as seen with version 2.1.197.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from domain.errors import AdmissionError

_LEAST_WINDOW = 100_000
"""Of CLAUDE_CODE_AUTO_COMPACT_WINDOW, which the harness takes the least of with the model's own window."""
_SUMMARY_TOKENS = 20_000
_MARGIN_TOKENS = 13_000
_LEAST_PROMPT_TOKENS = 2_000
"""The leanest first prompt: four tools and a system prompt of one's own. Source: facts/proxy.md section 1.4."""
MODEL_NAMES = (
    "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip
"""Main, small and fast, each alias that the Agent tool offers, and every sub-agent."""
DEFAULTS: Mapping[str, str] = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "API_TIMEOUT_MS": "3600000",
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "600000",
}
"""What a profile may set otherwise."""


def routing(*, base_url: str, token: str, model: str) -> dict[str, str]:
    """Return what leads every call of the harness to one model."""
    return {
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_AUTH_TOKEN": token,
        **dict.fromkeys(MODEL_NAMES, model),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }


def direct(base_url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps calls of the model off every HTTP proxy that anybody names.

    Args:
        base_url: of the model.
        environment: whose own exceptions stay.
    """
    ours = ("localhost", "127.0.0.1", "::1", urlsplit(base_url).hostname or "localhost")
    return {
        name: ",".join(dict.fromkeys(part for part in (*environment.get(name, "").split(","), *ours) if part))
        for name in ("NO_PROXY", "no_proxy")
    }


def limits(*, context_tokens: int, max_tokens: int) -> dict[str, str]:
    """Return the sizes of the bound model as the harness wants to know them; 0 context tokens: unknown."""
    found = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_tokens)}
    if context_tokens:
        found["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(context_tokens)
        found["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(max(_LEAST_WINDOW, context_tokens))
    return found


def compaction_threshold(context_tokens: int, max_tokens: int) -> int:
    """Return at how many tokens the harness sums its conversation up."""
    return context_tokens - min(max_tokens, _SUMMARY_TOKENS) - _MARGIN_TOKENS


def check_size(where: str, *, context_tokens: int, max_tokens: int) -> None:
    """Refuse a model in which the harness would sum up before it has begun.

    Raises:
        AdmissionError: with the sizes.
    """
    if context_tokens and compaction_threshold(context_tokens, max_tokens) < _LEAST_PROMPT_TOKENS:
        least = _LEAST_PROMPT_TOKENS + _MARGIN_TOKENS + min(max_tokens, _SUMMARY_TOKENS)
        raise AdmissionError(
            f"{where}: Claude Code needs a context of at least {least} tokens with answers of {max_tokens}; the model "
            f"has {context_tokens}",
            hint="bind a model with a larger one; its usual first prompt alone has some 20000",
        )
