"""Count the lines of a file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and some lines of two words."""
    old, new = file_names(rng, 2)
    lines = [" ".join(words(rng, 2)) for _ in range(rng.randint(2, 6))]
    return Instance(
        instruction=f"Count the lines of {old} into {new}",
        files={old: text(lines)},
        checks=(content(old, text(lines)), content(new, f"{len(lines)}\n")),
        right=(f"wc -l < {old} > {new}", f"cat {old} | wc -l > {new}"),
        wrong=(f"wc -w < {old} > {new}", f"wc -l {old} > {new}", f"wc -c < {old} > {new}"),
    )


FAMILY = Family(name="count-lines", draw=draw)
