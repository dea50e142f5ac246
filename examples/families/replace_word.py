"""Replace a word of a file everywhere."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two words and a file that has the first of them twice in one line."""
    (name,) = file_names(rng, 1)
    old, new, other = words(rng, 3)
    lines = [f"{old} {other} {old}", other]
    return Instance(
        instruction=f"Replace every {old} by {new} in {name}",
        files={name: text(lines)},
        checks=(content(name, text(lines).replace(old, new)),),
        right=(f"sed -i s/{old}/{new}/g {name}",),
        wrong=(f"sed -i s/{old}/{new}/ {name}", f"sed s/{old}/{new}/g {name}", f"sed -i s/{new}/{old}/g {name}"),
    )


FAMILY = Family(name="replace-word", draw=draw)
