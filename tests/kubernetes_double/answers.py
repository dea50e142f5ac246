"""Answers that are no success, as Status objects in the API server's own words.

Source: Kubernetes API conventions, "Response Status Kind"; apimachinery ``pkg/api/errors``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}


class RefusalError(Exception):
    """A request that the API server refuses.

    Args:
        code: HTTP status.
        message: the server's words.
        reason: machine-readable; usual for the code when it is left out.
        details: what the words are about.
        headers: of the answer.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = dict(headers or {})
        self.status = status(code, message, reason or _REASONS.get(code, "Unknown"), details)


def status(code: int, message: str, reason: str, details: Json | None = None) -> Json:
    """Return a Status object of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": details} if details else {}),
        "code": code,
    }


def missing(kind: str, name: str) -> RefusalError:
    """Return the refusal of what is not there."""
    return RefusalError(404, f'{kind} "{name}" not found', details={"name": name, "kind": kind})


def taken(kind: str, name: str) -> RefusalError:
    """Return the refusal of a name that something has."""
    words = f'{kind} "{name}" already exists'
    return RefusalError(409, words, reason="AlreadyExists", details={"name": name, "kind": kind})


def forbidden(kind: str, name: str, why: str) -> RefusalError:
    """Return the refusal of admission: quota, PodSecurity, rights."""
    return RefusalError(403, f'{kind} "{name}" is forbidden: {why}', details={"name": name, "kind": kind})


def expired(words: str) -> RefusalError:
    """Return the refusal of a version that the server has forgotten."""
    return RefusalError(410, words)


def invalid(kind: str, name: str, faults: Sequence[tuple[str, str]]) -> RefusalError:
    """Return the refusal of fields: pairs of a path and what is wrong with it."""
    words = [f"{path}: {fault}" for path, fault in faults]
    said = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    causes = [{"reason": f"FieldValue{_kind_of(fault)}", "message": fault, "field": path} for path, fault in faults]
    details = {"name": name, "kind": kind, "causes": causes}
    return RefusalError(422, f'{kind} "{name}" is invalid: {said}', details=details)


def _kind_of(fault: str) -> str:
    kinds = {"Required value": "Required", "Duplicate value": "Duplicate", "Unsupported value": "NotSupported"}
    return next((kind for words, kind in kinds.items() if fault.startswith(words)), "Invalid")


def timed_out(seconds: float) -> RefusalError:
    """Return the refusal of a server that asks for patience."""
    return RefusalError(
        429,
        "The server is currently unable to handle the request, please try again later",
        details={"retryAfterSeconds": round(seconds)},
        headers={"Retry-After": str(round(seconds))},
    )
