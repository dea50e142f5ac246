"""What a trial may hand to its verifier: ordinary things at the declared places, and nothing that leads elsewhere."""

import io
import posixpath
import tarfile

from domain.records.links import link_stays
from domain.records.task import Task

CONVENTION = "/logs/artifacts"
"""Always collected. Source: Harbor 0.26 ``models/trial/paths.py``."""


def roots_of(task: Task) -> tuple[str, ...]:
    """Return the absolute paths that may be retained: the declared artifacts, or the whole working directory."""
    workdir = task.environment.workdir
    declared = tuple(posixpath.normpath(posixpath.join(workdir, artifact.source)) for artifact in task.artifacts)
    return (*(declared or (workdir,)), CONVENTION)


def keeps_workdir(task: Task) -> bool:
    """Say whether the whole working directory is retained, so that a deleted file stays deleted."""
    return any(_below(task.environment.workdir, root) for root in roots_of(task))


def tampering(archive: bytes, task: Task) -> str:
    """Return why the retained outputs cannot be what an honest agent left behind; empty: nothing is wrong.

    Attacks A19 to A21 and A50: links that leave their artifact, climbing or absolute names, devices, a file that
    would land among the verifier's own, a file below a link.
    """
    roots = roots_of(task)
    links: set[str] = set()
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as source:
            for member in source:
                problem = _problem(member, roots, links)
                if problem:
                    return f"{member.name!r} {problem}"
                if member.issym():
                    links.add(_path(member))
    except tarfile.TarError as error:
        return f"the outputs are no archive: {error}"
    return ""


def _path(member: tarfile.TarInfo) -> str:
    return "/" + member.name.removeprefix("./").strip("/")


def _problem(member: tarfile.TarInfo, roots: tuple[str, ...], links: set[str]) -> str:
    path = _path(member)
    root = next((root for root in roots if _below(path, root)), None)
    if member.name.startswith("/") or ".." in path.split("/"):
        return "leaves the archive"
    if root is None:
        return "" if member.isdir() and any(_below(root, path) for root in roots) else "is no declared artifact"
    if any(_below(path, link) for link in links):
        return "lies below a link"
    if member.issym() and not link_stays(member.linkname, posixpath.dirname(path), root):
        return f"is a link to {member.linkname!r}, outside its artifact"
    if member.islnk() and not _below("/" + member.linkname, root):
        return f"is a hard link to {member.linkname!r}, outside its artifact"
    return "" if member.isreg() or member.isdir() or member.issym() or member.islnk() else "is a device or FIFO"


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
