"""Write a file in upper case to another file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and a content."""
    old, new = file_names(rng, 2)
    body = text(words(rng, 2))
    return Instance(
        instruction=f"Write {old} in upper case to {new}",
        files={old: body},
        checks=(content(old, body), content(new, body.upper())),
        right=(f"tr a-z A-Z < {old} > {new}", f"cat {old} | tr a-z A-Z > {new}"),
        wrong=(f"tr A-Z a-z < {old} > {new}", f"tr a-z A-Z < {old}", f"tr a A < {old} > {new}"),
    )


FAMILY = Family(name="uppercase", draw=draw)
