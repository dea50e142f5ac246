"""Answers that a test has ordered, instead of the real ones."""

import re
from dataclasses import dataclass

from tests.kubernetes_double.answers import RefusalError, timed_out


@dataclass(slots=True, kw_only=True)
class Order:
    """The next answers to some requests."""

    method: str
    path: str
    """A regular expression that is found in the path with its query."""
    code: int
    """HTTP status; 0: the connection is dropped instead of doing anything, 1: what was asked is done first."""
    times: int
    retry_after_s: float = 0.0
    message: str = ""


class Faults:
    """Orders, oldest first, and what was asked."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.asked: list[str] = []
        """Method and path of each request."""

    def met(self, method: str, path: str) -> int | None:
        """Return 0 or 1 when the connection is to be dropped. Raises RefusalError: the answer that was ordered."""
        self.asked.append(f"{method} {path}")
        for order in self.orders:
            if order.times > 0 and order.method in {method, "*"} and re.search(order.path, path):
                order.times -= 1
                if order.code in {0, 1}:
                    return order.code
                if order.code == 429:
                    raise timed_out(order.retry_after_s)
                raise RefusalError(order.code, order.message or "ordered by a test")
        return None
