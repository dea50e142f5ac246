"""Copy a file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and a content."""
    old, new = file_names(rng, 2)
    body = text(words(rng, 2))
    return Instance(
        instruction=f"Copy {old} to {new}",
        files={old: body},
        checks=(content(old, body), content(new, body)),
        right=(f"cp {old} {new}", f"cat {old} > {new}"),
        wrong=(f"mv {old} {new}", f"ln -s {old} {new}", f"cp {new} {old}"),
    )


FAMILY = Family(name="copy-file", draw=draw)
