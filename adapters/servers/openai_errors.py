"""Errors in OpenAI's shape, with the statuses and words at which its clients stop, wait or compact.

Source: ``openai`` SDK ``_exceptions.py`` and ``_base_client.py`` (408, 409, 429 and 5xx are tried again);
opencode's and litellm's patterns for a prompt that is too long; facts/proxy.md section 1.5.
"""

import re
from typing import Any

from adapters.servers.calls import BusyError
from adapters.servers.edge import TooLargeError
from domain.errors import (
    AuthorizationError,
    ConfigurationError,
    ContextOverflowError,
    NotFoundError,
    OverloadError,
    SynthError,
)

OVERFLOW = "context_length_exceeded"
"""Code at which clients shorten or compact."""
_SIZES = re.compile(r"(\d+) tokens > (\d+)")
_FIELD = re.compile(r"^([a-z_]+(?:\.[A-Za-z0-9_]+)*): ")


def status_of(error: SynthError, ended: int) -> int:
    """Return the HTTP status: never 401 or 409, at which harnesses log in or try again.

    Args:
        error: what happened.
        ended: for a token that does not hold (any more), whose harness is to stop. Observed: mini-swe-agent 2.4 stops
            at 401 and 404, and tries 400, 403 and 410 again for minutes; codex 0.171 stops at 400 alone.
    """
    if isinstance(error, BusyError):
        return 429
    if isinstance(error, TooLargeError):
        return 413
    if isinstance(error, (ContextOverflowError, ConfigurationError)):
        return 400
    if isinstance(error, AuthorizationError):
        return ended
    return 503 if isinstance(error, (NotFoundError, OverloadError)) else 500


def headers_of(error: SynthError) -> dict[str, str]:
    """Return what the client is told beside the body: when to come back, where it may."""
    return {"retry-after": "2"} if isinstance(error, (BusyError, OverloadError)) else {}


def error_body(error: SynthError) -> dict[str, Any]:
    """Return ``{"error": {message, type, param, code}}``."""
    return {"error": error_detail(error)}


def error_detail(error: SynthError) -> dict[str, Any]:
    """Return message, type, field and code of an error."""
    if isinstance(error, ContextOverflowError):
        return _detail(_overflow(error.message), "invalid_request_error", code=OVERFLOW)
    if isinstance(error, BusyError):
        return _detail(str(error), "rate_limit_error", code="rate_limit_exceeded")
    if isinstance(error, OverloadError):
        return _detail(str(error), "server_error", code="server_is_overloaded")
    if isinstance(error, AuthorizationError):
        return _detail(str(error), "permission_error", code="token_revoked")
    if isinstance(error, ConfigurationError):
        found = _FIELD.match(error.message)
        param = found[1] if found else None
        code = "model_not_found" if param == "model" else "invalid_value"
        return _detail(str(error), "invalid_request_error", param=param, code=code)
    return _detail(f"{type(error).__name__}: {error}", "server_error", code="server_error")


def _overflow(message: str) -> str:
    """Say it in the words of each client: OpenAI's own first, then those that came."""
    found = _SIZES.search(message)
    if found is None:
        return message
    return (
        f"This model's maximum context length is {found[2]} tokens. However, your messages resulted in {found[1]} "
        f"tokens. Please reduce the length of the messages. ({message})"
    )


def _detail(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}
