"""Write the lines of a file in reverse order."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and lines whose reverse is neither their order nor the sorted one."""
    old, new = file_names(rng, 2)
    first, second, third = sorted(words(rng, 3))
    lines = [second, first, third]
    return Instance(
        instruction=f"Write the lines of {old} in reverse order to {new}",
        files={old: text(lines)},
        checks=(content(old, text(lines)), content(new, text(lines[::-1]))),
        right=(f"tac {old} > {new}", f"cat {old} | tac > {new}"),
        wrong=(f"cat {old} > {new}", f"sort -r {old} > {new}", f"tac {old}"),
    )


FAMILY = Family(name="reverse-lines", draw=draw)
