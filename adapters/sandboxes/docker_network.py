"""The bridge of boxes with the public network: one on an engine, however many processes want it first.

An engine takes a name twice when it is asked twice at once, and then knows no network by it. So it is made under a lock
of this machine, known by its id, and what an earlier race left is removed.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from adapters.sandboxes.docker_shield import bridge_of, shield
from adapters.sandboxes.egress import socket_of

NAME = "synth-boxes"
_APART = {"com.docker.network.bridge.enable_icc": "false"}
"""Boxes reach what the machine reaches, but not one another."""


def join_network(api: Any, label: str) -> tuple[str, str]:
    """Return the id of the network, made when there is none, and what stands between it and this machine.

    Args:
        api: the engine's client.
        label: marks what is ours.
    """
    from docker.errors import APIError

    with _alone():
        asked = api.networks(names=[NAME], filters={"label": label})
        named = [item for item in asked if item["Name"] == NAME]  # the engine finds parts of names, too
        named.sort(key=lambda item: (item["Created"], item["Id"]))
        known = [item for item in named if _keeps_apart(item)]
        for spare in (item for item in named if item not in known[:1]):
            with suppress(APIError):  # boxes are still in it
                api.remove_network(spare["Id"])
        if known:
            network = str(known[0]["Id"])
        else:
            network = str(api.create_network(NAME, driver="bridge", options=_APART, labels={label: ""})["Id"])
        return network, shield(bridge_of(api.inspect_network(network)))


def _keeps_apart(network: dict[str, Any]) -> bool:
    """Say whether boxes of a network are kept from one another; only then is it ours to use."""
    options: dict[str, str] = network.get("Options") or {}
    return all(options.get(name) == value for name, value in _APART.items())


@contextmanager
def _alone() -> Generator[None]:
    """Hold the lock; the kernel gives it back when its holder is killed."""
    path = socket_of("any").parent / "network.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
