"""Take the lines of a file that do not hold a word."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and lines, two of which hold the word."""
    old, new = file_names(rng, 2)
    word, other, last = words(rng, 3)
    body = text([other, word, f"{word} {last}", last])
    return Instance(
        instruction=f"Write the lines of {old} without {word} to {new}",
        files={old: body},
        checks=(content(old, body), content(new, text([other, last]))),
        right=(f"grep -v {word} {old} > {new}", f"cat {old} | grep -v {word} > {new}"),
        wrong=(f"grep {word} {old} > {new}", f"grep -v {word} {old}", f"grep -vx {word} {old} > {new}"),
    )


FAMILY = Family(name="filter-lines", draw=draw)
