"""Optimizer updates and checkpoints: the fence around a step that must happen exactly once."""

import json
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from adapters.ledgers.catalog import base_version
from adapters.ledgers.schema import checkpoints, updates
from adapters.ledgers.session import Session, decoded, encoded
from domain.errors import ConflictError, NotFoundError
from domain.records.experiment import Lease
from domain.records.identities import Named, identity_hint
from domain.records.model import Checkpoint, PolicyVersion, Update, UpdateState

_U, _K = updates.c, checkpoints.c

_ADD = insert(updates)
_GET = select(updates).where(_U.update_id == bindparam("key"))
_OF = select(updates).where(_U.experiment_id == bindparam("experiment_id")).order_by(_U.batch)
_MOVE = update(updates).where(_U.update_id == bindparam("key"))

_ADD_CHECKPOINT = insert(checkpoints)
_CHECKPOINT = select(_K.record).where(_K.checkpoint_id == bindparam("checkpoint_id")).order_by(_K.n).limit(1)
_ALL_IDS = select(_K.checkpoint_id).order_by(_K.n)
_ALL = select(_K.record).order_by(_K.n)
_ALL_OF = _ALL.where(_K.experiment_id == bindparam("experiment_id"))
_BATCH_STATE = select(_U.state).where(_U.experiment_id == bindparam("experiment_id"), _U.batch == bindparam("batch"))
_AT_BATCH = (
    select(_K.record)
    .where(_K.experiment_id == bindparam("experiment_id"), _K.batch <= bindparam("batch"))
    .order_by(_K.batch.desc())
    .limit(1)
)
_SETTLED = {UpdateState.APPLIED.value, UpdateState.SKIPPED.value}


class SqlUpdates:
    """Updates inside one transaction. See domain.ledger_ports.Updates."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, lease: Lease, update: Update) -> Update:
        """Insert as preparing, or return what is there. Raises FenceError."""
        self._session.prove(lease, update.unit)
        row = self._session.one(_GET, key=update.update_id)
        if row is None:
            self._session.run(
                _ADD,
                {
                    "update_id": update.update_id,
                    "experiment_id": update.experiment_id,
                    "unit": update.unit,
                    "batch": update.index,
                    "state": UpdateState.PREPARING.value,
                    "parent": encoded(update.parent),
                    "contributions": "[]",
                    "fence": lease.fence,
                },
            )
        return self.get(update.update_id)

    def get(self, update_id: str) -> Update:
        """Return the update. Raises NotFoundError."""
        return _update(self._row(update_id))

    def of(self, experiment_id: str) -> tuple[Update, ...]:
        """Return in order of index."""
        return tuple(_update(row) for row in self._session.all(_OF, experiment_id=experiment_id))

    def intend(self, lease: Lease, update_id: str, contributions: tuple[str, ...]) -> None:
        """Mark unresolved before the step is sent. Raises FenceError; ConflictError unless preparing."""
        self._held(lease, update_id, UpdateState.PREPARING)
        self._move(update_id, UpdateState.UNRESOLVED, contributions=encoded(contributions), fence=lease.fence)

    def commit(self, lease: Lease, update_id: str, checkpoint: Checkpoint) -> None:
        """Applied, together with its checkpoint. Raises FenceError; ConflictError unless unresolved."""
        row = self._held(lease, update_id, UpdateState.UNRESOLVED)
        self._add_checkpoint(row, checkpoint, lease.fence)
        self._move(update_id, UpdateState.APPLIED, fence=lease.fence)

    def skip(self, lease: Lease, update_id: str) -> None:
        """No signal: no step. Raises FenceError; ConflictError unless preparing."""
        self._held(lease, update_id, UpdateState.PREPARING)
        self._move(update_id, UpdateState.SKIPPED, fence=lease.fence)

    def reopen(self, update_id: str) -> None:
        """Unresolved -> preparing. Raises ConflictError unless unresolved."""
        self._expect(self._row(update_id), UpdateState.UNRESOLVED)
        self._move(update_id, UpdateState.PREPARING, contributions="[]")

    def resolve(self, update_id: str, state: UpdateState, checkpoint: Checkpoint | None) -> None:
        """Unresolved -> applied with its checkpoint. Raises ConflictError for anything else."""
        row = self._row(update_id)
        self._expect(row, UpdateState.UNRESOLVED)
        if state is not UpdateState.APPLIED or checkpoint is None:
            message = f"update {update_id} can only be resolved as applied, with its checkpoint, not as {state}"
            raise ConflictError(message, hint="reopen it when the step is known not to have happened")
        self._add_checkpoint(row, checkpoint, row.fence)
        self._move(update_id, UpdateState.APPLIED)

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return by id, or by ``<experiment>@<batch>``: the policy after that batch. Raises NotFoundError."""
        experiment_id, mark, batch = checkpoint_id.rpartition("@")
        if mark and batch.isdecimal():
            row = self._at_batch(experiment_id, int(batch))
        else:
            row = self._session.one(_CHECKPOINT, checkpoint_id=checkpoint_id)
        if row is None:
            message = f"checkpoint {checkpoint_id!r} is not in the ledger"
            raise NotFoundError(message, hint=identity_hint(checkpoint_id, Named.CHECKPOINT, self._ids()))
        return decoded(Checkpoint, row.record)

    def checkpoints(self, experiment_id: str | None = None) -> tuple[Checkpoint, ...]:
        """Return in order of creation."""
        rows = (
            self._session.all(_ALL)
            if experiment_id is None
            else self._session.all(_ALL_OF, experiment_id=experiment_id)
        )
        return tuple(decoded(Checkpoint, row.record) for row in rows)

    def policy(self, name: str) -> PolicyVersion:
        """Return the version a served name means. Raises NotFoundError."""
        base = base_version(self._session, name)
        if base is not None:
            return base
        row = self._session.one(_CHECKPOINT, checkpoint_id=name)
        if row is None:
            message = f"no policy is served under {name!r}"
            raise NotFoundError(message, hint="names are base-<12 hex> of a base policy or ckpt-<12 hex>")
        return decoded(Checkpoint, row.record).version

    def _at_batch(self, experiment_id: str, batch: int) -> Any:
        """Return the newest checkpoint up to a finished batch: a skipped batch leaves the policy as it was."""
        state = self._session.one(_BATCH_STATE, experiment_id=experiment_id, batch=batch)
        if state is None or state.state not in _SETTLED:
            return None
        return self._session.one(_AT_BATCH, experiment_id=experiment_id, batch=batch)

    def _ids(self) -> list[str]:
        return [row.checkpoint_id for row in self._session.all(_ALL_IDS)]

    def _row(self, update_id: str) -> Any:
        row = self._session.one(_GET, key=update_id)
        if row is None:
            message = f"update {update_id!r} is not in the ledger"
            raise NotFoundError(message, hint="its batch has not reached the optimizer yet; an update begins there")
        return row

    def _held(self, lease: Lease, update_id: str, state: UpdateState) -> Any:
        """Return the update's row when the lease is its unit's and the state is as expected."""
        self._session.prove(lease)
        row = self._row(update_id)
        self._session.prove(lease, row.unit)
        self._expect(row, state)
        return row

    def _expect(self, row: Any, state: UpdateState) -> None:
        if row.state != state.value:
            message = f"update {row.update_id} is {row.state}, not {state.value}"
            raise ConflictError(message, hint=f"`synth run show {row.experiment_id}` tells where its batch stands")

    def _move(self, update_id: str, state: UpdateState, **values: object) -> None:
        self._session.run(_MOVE, {"key": update_id, "state": state.value, **values})

    def _add_checkpoint(self, row: Any, checkpoint: Checkpoint, fence: int) -> None:
        if checkpoint.unit != row.unit or checkpoint.experiment_id != row.experiment_id:
            message = f"checkpoint {checkpoint.checkpoint_id} is of {checkpoint.unit}, not of update {row.update_id}"
            raise ConflictError(message, hint="commit an update with the checkpoint that its own step made")
        known = self._session.one(_CHECKPOINT, checkpoint_id=checkpoint.checkpoint_id)
        if known is not None and not _same_weights(decoded(Checkpoint, known.record).version, checkpoint.version):
            message = f"{checkpoint.checkpoint_id} already names other weights"
            raise ConflictError(message, hint="a served name means one set of weights: derive it from their digest")
        self._session.run(
            _ADD_CHECKPOINT,
            {
                "update_id": row.update_id,
                "checkpoint_id": checkpoint.checkpoint_id,
                "experiment_id": row.experiment_id,
                "batch": row.batch,
                "next_batch": checkpoint.next_batch,
                "record": encoded(checkpoint),
                "fence": fence,
            },
        )


def _same_weights(one: PolicyVersion, other: PolicyVersion) -> bool:
    return (one.base, one.adapter) == (other.base, other.adapter)


def _update(row: Any) -> Update:
    return Update(
        update_id=row.update_id,
        experiment_id=row.experiment_id,
        unit=row.unit,
        index=row.batch,
        state=UpdateState(row.state),
        parent=decoded(PolicyVersion, row.parent),
        contributions=tuple(json.loads(row.contributions)),
    )
