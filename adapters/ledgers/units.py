"""Partitions, their leases and their manifests."""

from typing import Any

from sqlalchemy import bindparam, insert, select, update

from adapters.ledgers.schema import experiments, manifests, units
from adapters.ledgers.session import Session, decoded, encoded, object_ref
from domain.errors import FenceError, NotFoundError
from domain.records.experiment import Lease, Unit, UnitState
from domain.records.identities import Named, identity_hint
from domain.records.model import PolicyVersion
from domain.records.task import ObjectRef

_C = units.c
_UNIT = _C.unit == bindparam("key")

_ADD = insert(units)
_GET = select(units).where(_UNIT)
_OF = select(units).where(_C.experiment_id == bindparam("experiment_id")).order_by(_C.position)
_HAS_EXPERIMENT = select(experiments.c.n).where(experiments.c.experiment_id == bindparam("experiment_id"))
_MOVE = update(units).where(_UNIT)
_GROW = update(units).where(_UNIT).values(generation=_C.generation + 1).returning(_C.generation)
_RESAMPLE = update(units).where(_UNIT).values(first_attempt=_C.first_attempt + bindparam("n_attempts"))
_CANCELLED = (
    select(experiments.c.cancel_requested).join(units, _C.experiment_id == experiments.c.experiment_id).where(_UNIT)
)

_MANIFEST_KEY = (manifests.c.unit == bindparam("key"), manifests.c.kind == bindparam("of_kind"))
_ADD_MANIFEST = insert(manifests)
_REPLACE_MANIFEST = update(manifests).where(*_MANIFEST_KEY)
_MANIFEST = select(manifests).where(*_MANIFEST_KEY)


class SqlUnits:
    """Units inside one transaction. See domain.ledger_ports.Units."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, unit: Unit) -> bool:
        """Insert; False when it exists. Raises NotFoundError for an unknown experiment."""
        if self._session.one(_GET, key=unit.unit) is not None:
            return False
        if self._session.one(_HAS_EXPERIMENT, experiment_id=unit.experiment_id) is None:
            message = f"experiment {unit.experiment_id!r} of unit {unit.unit} is not in the ledger"
            raise NotFoundError(message, hint="accept the experiment before its units")
        self._session.run(
            _ADD,
            {
                "unit": unit.unit,
                "experiment_id": unit.experiment_id,
                "position": unit.index,
                "state": unit.state.value,
                "generation": unit.generation,
                "policy": None if unit.policy is None else encoded(unit.policy),
                "fence": unit.fence,
                "lease_holder": unit.lease_holder,
                "lease_expires_ms": unit.lease_expires_ms,
                "detail": unit.detail,
                "first_attempt": unit.first_attempt,
                "sample_key": unit.sample_key,
                "retry_at_ms": unit.retry_at_ms,
                "n_stalled": unit.n_stalled,
                "progress": unit.progress,
            },
        )
        return True

    def get(self, unit: str) -> Unit:
        """Return the unit. Raises NotFoundError."""
        return _unit(self._row(unit))

    def of(self, experiment_id: str) -> tuple[Unit, ...]:
        """Return in order of index."""
        return tuple(_unit(row) for row in self._session.all(_OF, experiment_id=experiment_id))

    def set_state(self, unit: str, state: UnitState, *, detail: str = "") -> None:
        """Move a unit; its lease stays as it is. Raises NotFoundError."""
        if self._session.run(_MOVE, {"key": unit, "state": state.value, "detail": detail}) == 0:
            raise self._unknown(unit)

    def next_generation(self, unit: str) -> int:
        """Grow the generation and return it. Raises NotFoundError."""
        self._row(unit)
        generation: int = self._session.scalar(_GROW, {"key": unit})
        return generation

    def put_off(self, unit: str, retry_at_ms: int, n_stalled: int, progress: str) -> None:
        """Keep when the unit is launched again, and what its relaunches are counted by. Raises NotFoundError."""
        values = {"key": unit, "retry_at_ms": retry_at_ms, "n_stalled": n_stalled, "progress": progress}
        if self._session.run(_MOVE, values) == 0:
            raise self._unknown(unit)

    def next_sample(self, unit: str, n_attempts: int, key: str) -> bool:
        """Number the unit's attempts further on; False when ``key`` began the present sample. Raises NotFoundError."""
        if self._row(unit).sample_key == key:
            return False
        self._session.run(_RESAMPLE, {"key": unit, "sample_key": key, "n_attempts": n_attempts})
        return True

    def acquire(self, unit: str, holder: str, now_ms: int, ttl_s: float) -> Lease:
        """Take the lease with a higher fence. Raises FenceError while another live holder has it."""
        row = self._row(unit)
        if row.lease_holder not in {None, holder} and row.lease_expires_ms > now_ms:
            message = f"{unit} is held by {row.lease_holder} for {(row.lease_expires_ms - now_ms) / 1000:.1f} s more"
            raise FenceError(message, hint="wait until that worker ends or its lease expires")
        lease = Lease(unit=unit, holder=holder, fence=row.fence + 1)
        self._session.forget(unit)
        self._session.run(
            _MOVE,
            {
                "key": unit,
                "fence": lease.fence,
                "lease_holder": holder,
                "lease_expires_ms": _expiry(now_ms, ttl_s),
                "state": UnitState.RUNNING.value,
            },
        )
        return lease

    def heartbeat(self, lease: Lease, now_ms: int, ttl_s: float) -> bool:
        """Extend the lease; returns whether cancellation is asked. Raises FenceError."""
        self._session.prove(lease)
        self._session.run(_MOVE, {"key": lease.unit, "lease_expires_ms": _expiry(now_ms, ttl_s)})
        return bool(self._session.one(_CANCELLED, key=lease.unit).cancel_requested)

    def check(self, lease: Lease) -> None:
        """Raise FenceError unless the lease still holds."""
        self._session.prove(lease)

    def release(self, lease: Lease, state: UnitState, *, detail: str = "") -> None:
        """End the lease and move the unit. Raises FenceError."""
        self._session.prove(lease)
        self._session.run(
            _MOVE,
            {
                "key": lease.unit,
                "lease_holder": None,
                "lease_expires_ms": 0,
                "state": state.value,
                "detail": detail,
            },
        )
        self._session.forget(lease.unit)

    def add_manifest(self, lease: Lease, kind: str, ref: ObjectRef) -> None:
        """Name the newest manifest of a unit. Raises FenceError."""
        self._session.prove(lease)
        values = {"object_digest": ref.digest, "object_bytes": ref.size_bytes, "fence": lease.fence}
        if self._session.run(_REPLACE_MANIFEST, {"key": lease.unit, "of_kind": kind, **values}) == 0:
            self._session.run(_ADD_MANIFEST, {"unit": lease.unit, "kind": kind, **values})

    def manifest(self, unit: str, kind: str) -> ObjectRef | None:
        """Return the newest manifest."""
        row = self._session.one(_MANIFEST, key=unit, of_kind=kind)
        return None if row is None else object_ref(row.object_digest, row.object_bytes)

    def _row(self, unit: str) -> Any:
        row = self._session.one(_GET, key=unit)
        if row is None:
            raise self._unknown(unit)
        return row

    def _unknown(self, unit: str) -> NotFoundError:
        known = [row.unit for row in self._session.all(_OF, experiment_id=unit.partition(".")[0])]
        return NotFoundError(f"unit {unit!r} is not in the ledger", hint=identity_hint(unit, Named.UNIT, known))


def _expiry(now_ms: int, ttl_s: float) -> int:
    return now_ms + round(ttl_s * 1000)


def _unit(row: Any) -> Unit:
    return Unit(
        unit=row.unit,
        experiment_id=row.experiment_id,
        index=row.position,
        state=UnitState(row.state),
        generation=row.generation,
        policy=None if row.policy is None else decoded(PolicyVersion, row.policy),
        fence=row.fence,
        lease_holder=row.lease_holder,
        lease_expires_ms=row.lease_expires_ms,
        detail=row.detail,
        first_attempt=row.first_attempt,
        sample_key=row.sample_key,
        retry_at_ms=row.retry_at_ms,
        n_stalled=row.n_stalled,
        progress=row.progress,
    )
