"""Where a symbolic link leads, by its text alone."""

import posixpath

SYSTEM_DIRECTORIES = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/")
"""Read-only and the same in every box: links into them give nothing away (virtual environments have them)."""


def link_stays(link: str, where: str, inside: str) -> bool:
    """Say whether ``link``, standing in directory ``where``, ends inside ``inside`` or in the read-only system.

    Args:
        link: the link's text, relative or absolute.
        where: absolute directory that holds the link.
        inside: absolute directory that it must not leave.
    """
    end = posixpath.normpath(posixpath.join(where, link))
    return end == inside or end.startswith((inside.rstrip("/") + "/", *SYSTEM_DIRECTORIES))
