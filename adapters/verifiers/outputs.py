"""What a trial may hand to its verifier: ordinary things at the declared places, and nothing that leads elsewhere."""

import io
import posixpath
import tarfile

from domain.records.links import link_stays
from domain.records.task import Task

CONVENTION = "/logs/artifacts"
"""Always collected. Source: Harbor 0.26 ``models/trial/paths.py``."""

_VERIFIERS_OWN = ("/tests", "/solution", "/logs/verifier")


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
    return posixpath.normpath("/" + member.name.strip("/"))


def _problem(member: tarfile.TarInfo, roots: tuple[str, ...], links: set[str]) -> str:
    path = _path(member)
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return "leaves the archive"
    if any(_below(path, own) for own in _VERIFIERS_OWN):
        return "would land among the verifier's own files"
    if any(_below(path, link) for link in links):
        return "lies below a link"
    # A profile may retain paths that the task does not name; their links may then roam their top directory.
    root = next((root for root in roots if _below(path, root)), "/" + path.split("/")[1])
    if member.issym() and not link_stays(member.linkname, posixpath.dirname(path), root):
        return f"is a link to {member.linkname!r}, outside its artifact"
    if member.islnk() and not _below(posixpath.normpath("/" + member.linkname), root):
        return f"is a hard link to {member.linkname!r}, outside its artifact"
    return "" if member.isreg() or member.isdir() or member.issym() or member.islnk() else "is a device or FIFO"


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
