"""A developer's session: a token for one policy version, outside every experiment."""

import hashlib
from dataclasses import dataclass

from domain.records.experiment import TokenScope
from domain.records.model import BasePolicy
from domain.records.trial import EvidenceRef
from domain.service.accept import resolve_model
from domain.service.platform import Platform

SESSION_TTL_S = 7 * 24 * 3600.0
"""Of a session that nothing ended: its command revokes the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeveloperSession:
    """What its harness is told, and what it is kept under."""

    session_id: str
    policy: str
    """Name of the policy version; also the model's name for the harness."""
    secret: str
    base: BasePolicy


def model_of_session(platform: Platform, model: str) -> tuple[str, BasePolicy]:
    """Return the policy version and the base policy of ``base:NAME`` or ``checkpoint:ID``.

    Raises:
        ConfigurationError: the reference has another form.
        NotFoundError: it names nothing.
    """
    with platform.ledger.snapshot() as tx:
        version = resolve_model(tx, model)
        return version.name, tx.catalog.base_policy(version.base)


async def open_session(platform: Platform, model: str, *, max_tokens: int, seed: int) -> DeveloperSession:
    """Serve a model and issue a token for it.

    Args:
        platform: the ports.
        model: reference.
        max_tokens: of one answer.
        seed: of its samples.

    Raises:
        SynthError: the model cannot be served.
    """
    with platform.ledger.snapshot() as tx:
        version = resolve_model(tx, model)
        base = tx.catalog.base_policy(version.base)
    await platform.model.serve(version)
    session_id, secret = f"session-{platform.clock.new_id()}", platform.clock.new_secret()
    scope = TokenScope(
        experiment_id=session_id,
        unit="",
        trial_id=session_id,
        model=version.name,
        policy=version.name,
        expires_ms=platform.clock.now_ms() + int(SESSION_TTL_S * 1000),
        max_tokens=max_tokens,
        temperature=1.0,
        seed=seed,
    )
    with platform.ledger.begin() as tx:
        tx.tokens.issue_session(hashlib.sha256(secret.encode()).hexdigest(), scope)
    return DeveloperSession(session_id=session_id, policy=version.name, secret=secret, base=base)


async def close_session(platform: Platform, session: DeveloperSession) -> EvidenceRef:
    """Revoke the session's token and keep what was said, which no experiment ever trains on.

    Raises:
        SynthError: the evidence could not be published; the token is revoked all the same.
    """
    with platform.ledger.begin() as tx:
        tx.tokens.revoke_trial(session.session_id)
    return await platform.model.publish(session.session_id)
