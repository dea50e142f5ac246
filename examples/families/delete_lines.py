"""Delete the lines that hold a word."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw a file name and lines, two of which hold the word."""
    (name,) = file_names(rng, 1)
    word, other, last = words(rng, 3)
    lines = [other, word, f"{word} {last}", last]
    return Instance(
        instruction=f"Delete the lines with {word} from {name}",
        files={name: text(lines)},
        checks=(content(name, text([other, last])),),
        right=(f"sed -i /{word}/d {name}",),
        wrong=(f"sed /{word}/d {name}", f"sed -i s/{word}// {name}", f"sed -i /{word}/p {name}"),
    )


FAMILY = Family(name="delete-lines", draw=draw)
