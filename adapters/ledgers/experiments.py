"""Accepted experiments."""

from typing import Any

from sqlalchemy import bindparam, insert, select, update

from adapters.ledgers.schema import experiments
from adapters.ledgers.session import Session, decoded, encoded
from domain.errors import ConflictError, NotFoundError
from domain.records.experiment import Experiment, ExperimentSpec, ExperimentState
from domain.records.identities import Named, identity_hint

_C = experiments.c
_CANCELLED = ExperimentState.CANCELLED.value
_TERMINAL = tuple(state.value for state in ExperimentState if state.is_terminal())

_ADD = insert(experiments)
_GET = select(experiments).where(_C.experiment_id == bindparam("experiment_id"))
_BY_KEY = select(experiments).where(_C.idempotency_key == bindparam("key"))
_NEWEST = select(experiments).order_by(_C.n.desc()).limit(bindparam("count"))
_NEWEST_IDS = select(_C.experiment_id).order_by(_C.n.desc()).limit(bindparam("count"))
_MEANT_PERHAPS = 1000
"""Newest experiments among which a mistyped id is looked for."""
_OPEN = select(experiments).where(_C.state.not_in(_TERMINAL)).order_by(_C.n)
_MOVE = update(experiments).where(_C.experiment_id == bindparam("key"), _C.state.not_in(_TERMINAL))
_REOPEN = (
    update(experiments)
    .where(_C.experiment_id == bindparam("key"), _C.cancel_requested.is_(False), _C.state != _CANCELLED)
    .values(state=ExperimentState.RUNNING.value)
)
_CANCEL = update(experiments).where(_C.experiment_id == bindparam("key")).values(cancel_requested=True)


class SqlExperiments:
    """Experiments inside one transaction. See domain.ledger_ports.Experiments."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, experiment: Experiment, idempotency_key: str | None) -> Experiment:
        """Insert, or return the one that is there with the same spec. Raises ConflictError for another spec."""
        row = self._session.one(_GET, experiment_id=experiment.experiment_id)
        if row is None and idempotency_key is not None:
            row = self._session.one(_BY_KEY, key=idempotency_key)
        if row is not None:
            if row.spec_digest == experiment.spec_digest:
                return _experiment(row)
            message = (
                f"{idempotency_key or experiment.experiment_id} already names {row.experiment_id} with another spec"
            )
            raise ConflictError(message, hint="choose another idempotency key, or submit the same documents")
        self._session.run(
            _ADD,
            {
                "experiment_id": experiment.experiment_id,
                "idempotency_key": idempotency_key,
                "spec_digest": experiment.spec_digest,
                "spec": encoded(experiment.spec),
                "state": experiment.state.value,
                "n_units": experiment.n_units,
                "created_ms": experiment.created_ms,
                "cancel_requested": experiment.cancel_requested,
            },
        )
        return experiment

    def get(self, experiment_id: str) -> Experiment:
        """Return the experiment. Raises NotFoundError."""
        return _experiment(self._row(experiment_id))

    def all(self, limit: int = 200) -> tuple[Experiment, ...]:
        """Return newest first."""
        return tuple(_experiment(row) for row in self._session.all(_NEWEST, count=limit))

    def open(self) -> tuple[Experiment, ...]:
        """Return those not terminal, oldest first."""
        return tuple(_experiment(row) for row in self._session.all(_OPEN))

    def set_state(self, experiment_id: str, state: ExperimentState) -> None:
        """Move; a terminal state stays as it is. Raises NotFoundError."""
        if self._session.run(_MOVE, {"key": experiment_id, "state": state.value}) == 0:
            self._row(experiment_id)

    def reopen(self, experiment_id: str) -> None:
        """Run again. Raises NotFoundError, and ConflictError when its end was asked for."""
        if self._session.run(_REOPEN, {"key": experiment_id}) == 0:
            self._row(experiment_id)
            message = f"{experiment_id} was cancelled, so nothing of it runs again"
            raise ConflictError(message, hint="submit a new experiment")

    def request_cancel(self, experiment_id: str) -> None:
        """Ask for the end. Raises NotFoundError."""
        if self._session.run(_CANCEL, {"key": experiment_id}) == 0:
            self._row(experiment_id)

    def _ids(self) -> list[str]:
        return [row.experiment_id for row in self._session.all(_NEWEST_IDS, count=_MEANT_PERHAPS)]

    def _row(self, experiment_id: str) -> Any:
        row = self._session.one(_GET, experiment_id=experiment_id)
        if row is None:
            message = f"experiment {experiment_id!r} is not in the ledger"
            raise NotFoundError(message, hint=identity_hint(experiment_id, Named.EXPERIMENT, self._ids()))
        return row


def _experiment(row: Any) -> Experiment:
    return Experiment(
        experiment_id=row.experiment_id,
        spec=decoded(ExperimentSpec, row.spec),
        spec_digest=row.spec_digest,
        state=ExperimentState(row.state),
        n_units=row.n_units,
        created_ms=row.created_ms,
        cancel_requested=row.cancel_requested,
    )
