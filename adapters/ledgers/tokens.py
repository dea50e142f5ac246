"""Scoped model credentials; only the hashes of their secrets are kept."""

from dataclasses import replace

from sqlalchemy import bindparam, insert, select, update

from adapters.ledgers.schema import tokens
from adapters.ledgers.session import Session, decoded, encoded
from domain.errors import ConflictError
from domain.records.experiment import Lease, TokenScope

_C = tokens.c
_ADD = insert(tokens)
_GET = select(_C.scope, _C.expires_ms, _C.revoked).where(_C.secret_sha256 == bindparam("secret_sha256"))
_REVOKE_TRIAL = update(tokens).where(_C.trial_id == bindparam("key")).values(revoked=True)
_REVOKE_STALE = update(tokens).where(_C.unit == bindparam("key"), _C.fence < bindparam("below")).values(revoked=True)


class SqlTokens:
    """Tokens inside one transaction. See domain.ledger_ports.Tokens."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def issue(self, lease: Lease, secret_sha256: str, scope: TokenScope) -> None:
        """Keep a scope under the hash of its secret. Raises FenceError; ConflictError when the hash is taken."""
        self._session.prove(lease, scope.unit)
        self._add(secret_sha256, scope, lease.fence)

    def issue_session(self, secret_sha256: str, scope: TokenScope) -> None:
        """Keep the scope of a developer's session. Raises ConflictError when the hash is taken."""
        self._add(secret_sha256, replace(scope, unit=""), 0)

    def _add(self, secret_sha256: str, scope: TokenScope, fence: int) -> None:
        if self._session.one(_GET, secret_sha256=secret_sha256) is not None:
            message = f"the token of trial {scope.trial_id} was issued before"
            raise ConflictError(message, hint="draw a fresh secret for every token")
        self._session.run(
            _ADD,
            {
                "secret_sha256": secret_sha256,
                "experiment_id": scope.experiment_id,
                "unit": scope.unit,
                "trial_id": scope.trial_id,
                "expires_ms": scope.expires_ms,
                "revoked": False,
                "scope": encoded(scope),
                "fence": fence,
            },
        )

    def scope(self, secret_sha256: str, now_ms: int) -> TokenScope | None:
        """Return the live scope; None when unknown, expired or revoked."""
        row = self._session.one(_GET, secret_sha256=secret_sha256)
        if row is None or row.revoked or row.expires_ms <= now_ms:
            return None
        return decoded(TokenScope, row.scope)

    def revoke_trial(self, trial_id: str) -> None:
        """End every token of a trial."""
        self._session.run(_REVOKE_TRIAL, {"key": trial_id})

    def revoke_stale(self, unit: str, below_fence: int) -> None:
        """End tokens issued under a smaller fence."""
        self._session.run(_REVOKE_STALE, {"key": unit, "below": below_fence})
