"""Sort the lines of a file into another file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and lines that are not sorted and hold one line twice."""
    old, new = file_names(rng, 2)
    first, second, third = sorted(words(rng, 3))
    lines = [second, third, first, second]
    return Instance(
        instruction=f"Sort the lines of {old} into {new}",
        files={old: text(lines)},
        checks=(content(old, text(lines)), content(new, text(sorted(lines)))),
        right=(f"sort {old} > {new}", f"cat {old} | sort > {new}"),
        wrong=(f"sort -r {old} > {new}", f"sort -u {old} > {new}", f"sort {old}"),
    )


FAMILY = Family(name="sort-lines", draw=draw)
