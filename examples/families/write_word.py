"""Write one word to a new file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, words


def draw(rng: Random) -> Instance:
    """Draw a word and a file name."""
    (word,) = words(rng, 1)
    (name,) = file_names(rng, 1)
    return Instance(
        instruction=f"Write the word {word} to {name}",
        checks=(content(name, f"{word}\n"),),
        right=(f"echo {word} > {name}", f"echo {word} | tee {name}"),
        wrong=(f"echo -n {word} > {name}", f"echo {word} {name}", f"echo {name} > {word}"),
    )


FAMILY = Family(name="write-word", draw=draw)
