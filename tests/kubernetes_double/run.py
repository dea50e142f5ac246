"""A pod on the node, and what its container is made with."""

import asyncio
from dataclasses import dataclass, field

from tests.kubernetes_double.store import Key


@dataclass(slots=True, kw_only=True)
class Run:
    """A pod on the node."""

    key: Key
    uid: str
    container: str = ""
    """The engine's id of the container of the moment, empty before one is made."""
    made: dict[str, str] = field(default_factory=dict[str, str])
    """The engine's ids of its containers by name."""
    has_volumes: bool = False
    """Its volumes are set up."""
    task: asyncio.Task[None] | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pod is to end, whatever it does."""
    grace_s: float = 0.0
    end: tuple[int, str] | None = None
    """Exit code and reason, when they are not what the engine says: memory, a node that starts anew."""
    is_lost: bool = False
    """The node does not answer: nothing of it is told any more."""
    connections: set[asyncio.BaseTransport] = field(default_factory=set[asyncio.BaseTransport])
    """Of programs in it."""

    def hang_up(self) -> None:
        """End the connections to programs in it without a word."""
        for each in self.connections:
            if isinstance(each, asyncio.Transport):
                each.abort()


@dataclass(slots=True, kw_only=True)
class Place:
    """What containers are made with."""

    network: str
    labels: dict[str, str]
    service: tuple[str, int]
    """Address and port of the API server as pods reach it."""
    pull_delay_s: float = 0.0
    housekeeping_s: float = 10.0
    """How often the node looks at what pods have written."""
