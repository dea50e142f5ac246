"""Take one line of a file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names, a line number from 2 to 4, and five lines."""
    old, new = file_names(rng, 2)
    number = rng.randint(2, 4)
    lines = words(rng, 5)
    return Instance(
        instruction=f"Write line {number} of {old} to {new}",
        files={old: text(lines)},
        checks=(content(old, text(lines)), content(new, text([lines[number - 1]]))),
        right=(f"sed -n {number}p {old} > {new}", f"head -{number} {old} | tail -1 > {new}"),
        wrong=(f"sed -n {number + 1}p {old} > {new}", f"head -{number} {old} > {new}", f"sed -n {number}p {old}"),
    )


FAMILY = Family(name="pick-line", draw=draw)
