"""Names of steps: one directory name on every system that may hold the task. Source: Harbor 0.26 ``step_name.py``."""

import re
import unicodedata

_REFUSED = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"^(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9\u00b9\u00b2\u00b3])$", re.IGNORECASE)
_MAX_BYTES = 255


def step_name(name: str) -> str:
    """Return a step's name.

    Raises:
        ValueError: it is no portable directory name.
    """
    stem = name.partition(".")[0].rstrip(" ")
    if not name.strip() or name in {".", ".."} or name.endswith((".", " ")) or _REFUSED.search(name):
        raise ValueError(f"{name!r} is no portable directory name")
    if _DEVICE.fullmatch(stem) or len(name.encode()) > _MAX_BYTES:
        raise ValueError(f"{name!r} is a device of Windows or longer than {_MAX_BYTES} bytes")
    return name


def step_name_key(name: str) -> str:
    """Return what two names share when a file system holds them for one."""
    return unicodedata.normalize("NFC", name).casefold()
