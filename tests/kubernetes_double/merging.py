"""Patches of objects.

A strategic merge patch is taken as a merge patch: lists are replaced whole, which is right for what ``kubectl apply``
sends of policies, labels and annotations, and not for lists that merge by a key.

Source: RFC 7386 (JSON Merge Patch).
"""

import copy
from typing import Any, cast

from tests.kubernetes_double.answers import RefusalError

Json = dict[str, Any]

_MERGING = {"application/merge-patch+json", "application/strategic-merge-patch+json"}


def merged(thing: Json, patch: Any, content_type: str) -> Json:
    """Return a patched copy. Raises RefusalError (415)."""
    if content_type not in _MERGING or not isinstance(patch, dict):
        raise RefusalError(
            415, f"the body of the request was in an unknown format: {content_type}", reason="Unsupported"
        )
    return _merge(copy.deepcopy(thing), cast("Json", patch))


def _merge(thing: Any, patch: Json) -> Json:
    target: Json = cast("Json", thing) if isinstance(thing, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            target[name] = _merge(target.get(name), cast("Json", value))
        else:
            target[name] = value
    return target
