"""Make a symbolic link."""

from random import Random

from examples.spec import Check, CheckKind, Family, Instance, content, file_names, text, words


def draw(rng: Random) -> Instance:
    """Draw two file names and a content."""
    target, link = file_names(rng, 2)
    body = text(words(rng, 2))
    return Instance(
        instruction=f"Link {link} to {target} symbolically",
        files={target: body},
        checks=(content(target, body), Check(kind=CheckKind.LINK, path=link, expected=target)),
        right=(f"ln -s {target} {link}", f"ln -sv {target} {link}"),
        wrong=(f"ln -s {link} {target}", f"ln {target} {link}", f"cp {target} {link}"),
    )


FAMILY = Family(name="symlink", draw=draw)
