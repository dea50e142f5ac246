"""Join two files into a third."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw three file names and two different contents."""
    first, second, new = file_names(rng, 3)
    one, two, three = words(rng, 3)
    files = {first: text([one, two]), second: text([three])}
    return Instance(
        instruction=f"Join {first} and {second} into {new}",
        files=files,
        checks=(
            content(first, files[first]),
            content(second, files[second]),
            content(new, files[first] + files[second]),
        ),
        right=(f"cat {first} {second} > {new}",),
        wrong=(f"cat {second} {first} > {new}", f"cat {first} > {new}", f"cat {first} {second}"),
    )


FAMILY = Family(name="join-files", draw=draw)
