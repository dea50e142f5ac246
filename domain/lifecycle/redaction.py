"""Taking the operator's values out of what a trial says, before anything is kept."""

import io
import tarfile
from collections.abc import Sequence

MARK = "[REDACTED]"
MIN_LENGTH = 6
"""Shorter values are words that logs hold anyway; nobody's secret is that short."""


def redact(text: str, values: Sequence[str]) -> str:
    """Return ``text`` without the values."""
    for value in _long_enough(values):
        text = text.replace(value, MARK)
    return text


def redact_archive(archive: bytes, values: Sequence[str]) -> bytes:
    """Return the tar with the values replaced in names and contents of regular files; the same bytes without values."""
    needles = _long_enough(values)
    if not needles:
        return archive
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in source:
            stream = source.extractfile(member) if member.isreg() else None
            member.name = redact(member.name, needles)
            member.linkname = redact(member.linkname, needles)
            member.pax_headers = {}
            if stream is None:
                target.addfile(member)
                continue
            content = redact_bytes(stream.read(), needles)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    return out.getvalue()


def redact_bytes(content: bytes, values: Sequence[str]) -> bytes:
    """Return ``content`` without the values."""
    for value in _long_enough(values):
        content = content.replace(value.encode(), MARK.encode())
    return content


def _long_enough(values: Sequence[str]) -> list[str]:
    """Return the values to look for, longest first, so that one inside another leaves nothing behind."""
    return sorted({value for value in values if len(value) >= MIN_LENGTH}, key=len, reverse=True)
