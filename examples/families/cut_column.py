"""Take one column of a comma-separated file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw file names, a column from 1 to 3, and rows of four words."""
    (old,) = file_names(rng, 1, ".csv")
    (new,) = file_names(rng, 1)
    column = rng.randint(1, 3)
    rows = [words(rng, 4) for _ in range(3)]
    body = text([",".join(row) for row in rows])
    return Instance(
        instruction=f"Write column {column} of {old} to {new}",
        files={old: body},
        checks=(content(old, body), content(new, text([row[column - 1] for row in rows]))),
        right=(f"cut -d, -f {column} {old} > {new}", f"cat {old} | cut -d, -f {column} > {new}"),
        wrong=(
            f"cut -d, -f {column + 1} {old} > {new}",
            f"cut -f {column} {old} > {new}",
            f"cut -c {column} {old} > {new}",
        ),
    )


FAMILY = Family(name="cut-column", draw=draw)
