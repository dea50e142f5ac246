"""Whose token a call carries. The ledger decides; its yes is remembered for a moment, its no never."""

import asyncio
import hashlib
from collections import OrderedDict

from domain.errors import AuthorizationError
from domain.ledger_ports import Ledger
from domain.ports import Clock
from domain.records.experiment import TokenScope

REMEMBERED_S = 1.0
"""How long a revoked token may go on answering; its trial, once published, takes no call at all."""
_REMEMBERED = 4096
"""Tokens."""


class Authority:
    """Looks tokens up by their SHA-256, so that no comparison of secrets takes a time that tells about them."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        """Remember nothing yet."""
        self._ledger = ledger
        self._clock = clock
        self._known: OrderedDict[str, tuple[TokenScope, float]] = OrderedDict()
        """By digest of the secret: the scope, and until when it is believed."""

    async def scope(self, secret: str) -> TokenScope:
        """Return what a token may do now.

        Raises:
            AuthorizationError: it is unknown, expired or revoked.
        """
        key = hashlib.sha256(secret.encode()).hexdigest()
        scope, until_s = self._known.get(key, (None, 0.0))
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        if scope is not None and now_s < until_s and now_ms < scope.expires_ms:
            return scope
        self._known.pop(key, None)
        scope = await asyncio.to_thread(self._look_up, key, now_ms) if secret else None
        if scope is None:
            raise AuthorizationError("this token is unknown, expired or revoked")
        self._known[key] = (scope, now_s + REMEMBERED_S)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return scope

    def _look_up(self, key: str, now_ms: int) -> TokenScope | None:
        with self._ledger.snapshot() as tx:
            return tx.tokens.scope(key, now_ms)
