"""Make a directory inside a new directory."""

from random import Random

from examples.spec import Check, CheckKind, Family, Instance, words


def draw(rng: Random) -> Instance:
    """Draw two directory names."""
    outer, inner = words(rng, 2)
    return Instance(
        instruction=f"Make the directory {outer}/{inner}",
        checks=(Check(kind=CheckKind.DIRECTORY, path=f"{outer}/{inner}"),),
        right=(f"mkdir -p {outer}/{inner}", f"mkdir -pv {outer}/{inner}"),
        wrong=(f"mkdir {outer}/{inner}", f"mkdir -p {inner}/{outer}", f"mkdir {outer} {inner}"),
    )


FAMILY = Family(name="make-directory", draw=draw)
