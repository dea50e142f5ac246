"""Write a Python file that prints a number."""

from random import Random

from examples.spec import Check, CheckKind, Family, Instance, file_names


def draw(rng: Random) -> Instance:
    """Draw a file name and a number."""
    (name,) = file_names(rng, 1, ".py")
    number = rng.randint(2, 9)
    return Instance(
        instruction=f"Write {name} with one print call that prints {number}",
        checks=(Check(kind=CheckKind.PRINTS, path=name, expected=str(number)),),
        right=(f"echo 'print({number})' > {name}", f"echo 'print({number})' | tee {name}"),
        wrong=(f"echo {number} > {name}", f"echo print {number} > {name}", f"echo 'print({number + 1})' > {name}"),
    )


FAMILY = Family(name="print-number", draw=draw, needs_python=True)
