"""Append a line to an existing file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw the new line, what is there already, and a file name."""
    word, *there = words(rng, 3)
    (name,) = file_names(rng, 1)
    return Instance(
        instruction=f"Append the line {word} to {name}",
        files={name: text(there)},
        checks=(content(name, text([*there, word])),),
        right=(f"echo {word} >> {name}", f"echo {word} | tee -a {name}"),
        wrong=(f"echo {word} > {name}", f"echo -n {word} >> {name}", f"echo {word} | tee {name}"),
    )


FAMILY = Family(name="append-line", draw=draw)
