"""Add up the numbers of a file."""

from random import Random

from examples.spec import Family, Instance, content, file_names, text


def draw(rng: Random) -> Instance:
    """Draw two file names and four numbers."""
    old, new = file_names(rng, 2)
    numbers = [rng.randint(10, 99) for _ in range(4)]
    body = text([str(number) for number in numbers])
    return Instance(
        instruction=f"Write the sum of the numbers in {old} to {new}",
        files={old: body},
        checks=(content(old, body), content(new, f"{sum(numbers)}\n")),
        right=(f"echo $(($(paste -sd+ {old}))) > {new}",),
        wrong=(f"paste -sd+ {old} > {new}", f"echo $(($(paste -sd- {old}))) > {new}", f"wc -l < {old} > {new}"),
    )


FAMILY = Family(name="sum-numbers", draw=draw)
