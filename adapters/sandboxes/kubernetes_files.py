"""Tars on their way into and out of a pod: what comes from a task or a box is read again, member by member.

The pod's own ``tar`` does the copying, so what it is given holds nothing that it could trip over, and what it gives is
untrusted: only regular files, directories and links that stay are taken over, in one order and without owner and time.
Links that lie in the way are looked for in the pod before anything is written or read; no process of the box lives by
then.
"""

import io
import tarfile
from collections.abc import Sequence

from adapters.sandboxes.kubernetes_shell import Words
from adapters.sandboxes.transfer import absolute, check_member, parts_of
from domain.errors import BoxContentError, NotFoundError, SandboxError
from domain.records.links import link_stays

_LINK, _ABSENT, _KIND = 41, 44, 45
_FAULTS = {_LINK: "a link or no directory", _KIND: "a directory in the box"}
_CHECK = f"""
way() {{ if [ -L "$1" ] || {{ [ -e "$1" ] && [ ! -d "$1" ]; }}; then printf '%s' "$1" >&2; exit {_LINK}; fi; }}
"""


class TooMuchError(BoxContentError):
    """More than the reader takes."""


def clean(
    tar: bytes, target: tuple[str, ...], *, keeps_directories: bool = True
) -> tuple[bytes, list[tuple[str, ...]]]:
    """Return a tar of nothing but files, directories and links below ``target``, and the directories in it.

    Args:
        tar: as it was given, compressed or not.
        target: where it is to be unpacked.
        keeps_directories: whether directories are members; whoever is not root makes the missing ones by hand, since
            ``tar`` takes it for an error that it cannot change the mode of one that was there.

    Raises:
        SandboxError: a member leaves the target or goes through a link, or is a device or FIFO.
    """
    out = io.BytesIO()
    directories: set[tuple[str, ...]] = set()
    others: set[tuple[str, ...]] = set()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(tar)) as source,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            for member in source:
                check_member(member, target)
                parts = parts_of(member.name)
                if not parts:
                    continue
                above = {parts[:length] for length in range(1, len(parts))}
                if above & others:
                    raise SandboxError(f"archive member {member.name!r} lies below a file or link of the same archive")
                directories |= above | ({parts} if member.isdir() else set())
                if not member.isdir():
                    others.add(parts)
                if keeps_directories or not member.isdir():
                    _add(source, member, parts, archive)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise SandboxError(f"not a tar archive: {error}", hint="upload takes an uncompressed or gzip tar") from error
    return out.getvalue(), sorted(directories)


def _add(source: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...], archive: tarfile.TarFile) -> None:
    made = tarfile.TarInfo("/".join(parts))
    made.mode = member.mode & 0o777
    if member.isdir():
        made.type, made.mode = tarfile.DIRTYPE, made.mode | 0o700
        archive.addfile(made)
    elif member.issym():
        made.type, made.linkname = tarfile.SYMTYPE, member.linkname
        archive.addfile(made)
    else:  # a hard link becomes a copy of the file that was before it
        content = source.extractfile(member)
        data = b"" if content is None else content.read()
        made.size = len(data)
        archive.addfile(made, io.BytesIO(data))


def upload_script(
    size: int, target: tuple[str, ...], directories: Sequence[tuple[str, ...]], *, makes_directories: bool = False
) -> str:
    """Return the script that unpacks ``size`` bytes of tar below ``target``."""
    words = Words()
    places = [target[:length] for length in range(1, len(target) + 1)]
    places += [target + parts for parts in directories]
    checks = "".join(f"way {words.quoted(absolute(place))}\n" for place in places)
    goal = words.quoted(absolute(target))
    unpack = f"head -c {size} | tar -x -p -o -f - -C {goal}\n" if size else ""
    made = "".join(f"mkdir -p -- {words.quoted(absolute(target + parts))} || exit 46\n" for parts in directories)
    made = f"mkdir -p -- {goal} || exit 46\n" + (made if makes_directories else "")
    return f"{_CHECK}{words.made}{checks}{made}{unpack}"


def download_script(path: tuple[str, ...]) -> str:
    """Return the script that packs a file or directory, for whoever may not read it all with more rights first."""
    words = Words()
    checks = "".join(f"way {words.quoted(absolute(path[:length]))}\n" for length in range(1, len(path)))
    whole, above, name = absolute(path), absolute(path[:-1]), f"./{path[-1]}"
    there, parent, base = words.quoted(whole), words.quoted(above), words.quoted(name)
    return (
        f"{_CHECK}{words.made}{checks}if [ ! -e {there} ] && [ ! -L {there} ]; then exit {_ABSENT}; fi\n"
        f"cd -- {parent} || exit 46\n"
        f'[ -L {base} ] || [ "$(id -u)" = 0 ] || chmod -R u+rX -- {base} 2>/dev/null\n'
        f"LC_ALL=C tar -c -f - -- {base}\n"
    )


def check_copy(exit_code: int | None, stderr: bytes, what: str) -> None:
    """Raise what the end of a copy means. Raises NotFoundError, BoxContentError: the pod gave no copy."""
    words = stderr.decode(errors="replace").strip()
    if exit_code == _ABSENT:
        raise NotFoundError(f"no {what} in the box")
    if exit_code in _FAULTS:
        raise BoxContentError(f"{words!r} is {_FAULTS[exit_code]}", hint="paths are not followed through links")
    if exit_code != 0:
        raise BoxContentError(f"copy of {what} ended with {exit_code}: {words[-300:]}")
    if "socket ignored" in words:
        raise BoxContentError(f"{words!r}: a socket in {what}")


def repacked(raw: bytes, top: tuple[str, ...], max_bytes: int) -> bytes:
    """Return the deterministic tar of what a pod's ``tar`` wrote.

    Raises:
        BoxContentError: a device, FIFO or socket, a link that leaves ``top``, or more than ``max_bytes``.
    """
    out = io.BytesIO()
    left = max_bytes
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as source,
            tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            members = {parts_of(member.name)[1:]: member for member in source}
            for inner, member in sorted(members.items(), key=lambda pair: pair[0]):
                left -= tarfile.BLOCKSIZE
                data = _content(source, member)
                left -= len(data)
                if left < 0:
                    raise TooMuchError(f"{absolute(top)} is too large", hint="leave less in the box")
                made = _plain(member, inner, top)
                made.size = len(data)
                archive.addfile(made, io.BytesIO(data) if made.isreg() else None)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise BoxContentError(f"the box gave no tar of {absolute(top)}: {error}") from error
    return out.getvalue()


def _content(source: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not (member.isreg() or member.islnk()):
        return b""
    content = source.extractfile(member)
    return b"" if content is None else content.read()


def _plain(member: tarfile.TarInfo, inner: tuple[str, ...], top: tuple[str, ...]) -> tarfile.TarInfo:
    name = "/".join(inner) or ("." if member.isdir() else top[-1])
    made = tarfile.TarInfo(name)
    made.mode = member.mode & 0o777
    if member.isdir():
        made.type = tarfile.DIRTYPE
    elif member.issym():
        made.type, made.linkname = tarfile.SYMTYPE, member.linkname
        place = absolute(top + inner[:-1]) if inner else absolute(top)
        if not link_stays(member.linkname, place, absolute(top)):
            raise BoxContentError(f"link {name!r} -> {member.linkname!r} leaves {absolute(top)}")
    elif not (member.isreg() or member.islnk()):
        raise BoxContentError(f"{name!r} in {absolute(top)} is a device, socket or FIFO")
    return made
