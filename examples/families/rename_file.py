"""Rename a file."""

from random import Random

from examples.spec import Family, Instance, absent, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and a content."""
    old, new = file_names(rng, 2)
    body = text(words(rng, 2))
    return Instance(
        instruction=f"Rename {old} to {new}",
        files={old: body},
        checks=(absent(old), content(new, body)),
        right=(f"mv {old} {new}", f"mv -v {old} {new}"),
        wrong=(f"cp {old} {new}", f"ln {old} {new}", f"mv {new} {old}"),
    )


FAMILY = Family(name="rename-file", draw=draw)
