"""Make two directories side by side."""

from random import Random

from examples.spec import Check, CheckKind, Family, Instance, words


def draw(rng: Random) -> Instance:
    """Draw two directory names."""
    one, two = words(rng, 2)
    return Instance(
        instruction=f"Make the directories {one} and {two}",
        checks=tuple(Check(kind=CheckKind.DIRECTORY, path=path) for path in (one, two)),
        right=(f"mkdir {one} {two}", f"mkdir -v {one} {two}"),
        wrong=(f"mkdir -p {one}/{two}", f"touch {one} {two}", f"mkdir {one}"),
    )


FAMILY = Family(name="make-directories", draw=draw)
