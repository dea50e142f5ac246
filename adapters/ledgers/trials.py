"""Terminal trial records, their assessments and groups."""

from sqlalchemy import Boolean, ColumnElement, and_, bindparam, func, insert, or_, select, update

from adapters.ledgers.schema import assessments, experiments, groups, trials, units
from adapters.ledgers.session import Session, decoded, encoded, object_ref
from domain.errors import ConflictError, NotFoundError
from domain.records.assessment import Assessment, AssessmentOutcome, QualifiedGroup
from domain.records.experiment import ExperimentSpec, Lease
from domain.records.identities import Named, identity_hint
from domain.records.task import ObjectRef
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord

_T, _A, _G = trials.c, assessments.c, groups.c
_ATTEMPT = (_T.unit == bindparam("unit"), _T.group_index == bindparam("group"), _T.attempt == bindparam("attempt"))
_UNCOUNTED = {TrialOutcome.INFRA_ERROR, TrialOutcome.CANCELLED}
_ATTEMPT_ORDER = (_T.group_index, _T.attempt)

_ADD = insert(trials)
_TAKEN = (
    select(_T.trial_id)
    .where(or_(_T.trial_id == bindparam("trial_id"), and_(*_ATTEMPT, _T.counts, bindparam("counting", type_=Boolean))))
    .limit(1)
)
_GET = select(_T.record).where(_T.trial_id == bindparam("trial_id"))
_EVERY_SAMPLE = select(_T.record).where(_T.unit == bindparam("unit"), _T.counts).order_by(*_ATTEMPT_ORDER)
_PRESENT = select(_T.record).join(units, and_(units.c.unit == _T.unit, units.c.first_attempt <= _T.attempt))
_OF_UNIT = _PRESENT.where(_T.unit == bindparam("unit"), _T.counts).order_by(*_ATTEMPT_ORDER)
_OF_EXPERIMENT = _PRESENT.where(_T.experiment_id == bindparam("experiment_id"), _T.counts).order_by(
    _T.unit, *_ATTEMPT_ORDER
)
_INFRA_FAILURES = select(func.count()).where(*_ATTEMPT, _T.outcome == TrialOutcome.INFRA_ERROR.value)

_ASSESSED = (
    select(_T.unit, _T.group_index, _T.attempt, _A.outcome)
    .join_from(
        trials, assessments, and_(_A.trial_id == _T.trial_id, _A.assessor == bindparam("assessor")), isouter=True
    )
    .where(_T.trial_id == bindparam("trial_id"))
)
_ADD_ASSESSMENT = insert(assessments)
_REPLACE_ASSESSMENT = update(assessments).where(
    _A.trial_id == bindparam("key"), _A.assessor == bindparam("key_assessor")
)
_ASSESSMENT_ORDER = (_A.trial_unit, _A.group_index, _A.attempt, _A.n)
_ASSESSMENTS_OF = select(_A.record).where(_A.trial_id == bindparam("trial_id")).order_by(_A.n)
_PINNED = (
    select(experiments.c.spec)
    .join(units, units.c.experiment_id == experiments.c.experiment_id)
    .where(units.c.unit == bindparam("unit"))
)

_GROUP_KEY = (_G.unit == bindparam("key"), _G.group_index == bindparam("key_group"))
_ADD_GROUP = insert(groups)
_REPLACE_GROUP = update(groups).where(*_GROUP_KEY)
_GROUPS = select(groups).where(_G.unit == bindparam("unit")).order_by(_G.group_index)


class SqlTrials:
    """Trials inside one transaction. See domain.ledger_ports.Trials."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, lease: Lease, trial: TrialRecord) -> None:
        """Insert. Raises FenceError; ConflictError when the attempt or the trial id is taken."""
        key = trial.key
        self._session.prove(lease, key.unit)
        counts = trial.outcome not in _UNCOUNTED
        taken = self._session.one(
            _TAKEN, trial_id=trial.trial_id, unit=key.unit, group=key.group, attempt=key.attempt, counting=counts
        )
        if taken is not None:
            message = f"attempt {key} already has trial {taken.trial_id}, so {trial.trial_id} cannot be added"
            raise ConflictError(message, hint="read the record that is there: an attempt counts once")
        self._session.run(
            _ADD,
            {
                "trial_id": trial.trial_id,
                "experiment_id": trial.experiment_id,
                "unit": key.unit,
                "group_index": key.group,
                "attempt": key.attempt,
                "outcome": trial.outcome.value,
                "counts": counts,
                "record": encoded(trial),
                "fence": lease.fence,
            },
        )

    def get(self, trial_id: str) -> TrialRecord:
        """Return the record. Raises NotFoundError."""
        row = self._session.one(_GET, trial_id=trial_id)
        if row is None:
            raise _unknown(trial_id)
        return decoded(TrialRecord, row.record)

    def of_unit(self, unit: str, *, every_sample: bool = False) -> tuple[TrialRecord, ...]:
        """Return the counting record of each attempt of the present sample, or of all, in order of key."""
        rows = self._session.all(_EVERY_SAMPLE if every_sample else _OF_UNIT, unit=unit)
        return tuple(decoded(TrialRecord, row.record) for row in rows)

    def of_experiment(self, experiment_id: str) -> tuple[TrialRecord, ...]:
        """Return counting records of all units, in order of unit and key."""
        rows = self._session.all(_OF_EXPERIMENT, experiment_id=experiment_id)
        return tuple(decoded(TrialRecord, row.record) for row in rows)

    def infra_failures(self, key: AttemptKey) -> int:
        """Count infra_error records of an attempt."""
        row = self._session.one(_INFRA_FAILURES, unit=key.unit, group=key.group, attempt=key.attempt)
        return int(row[0])

    def add_assessment(self, lease: Lease, assessment: Assessment) -> None:
        """Insert, or replace an ungraded one. Raises FenceError, NotFoundError (no such trial), ConflictError."""
        self._session.prove(lease)
        trial = self._session.one(_ASSESSED, trial_id=assessment.trial_id, assessor=assessment.assessor)
        if trial is None:
            raise _unknown(assessment.trial_id)
        values = {
            "unit": lease.unit,
            "outcome": assessment.outcome.value,
            "record": encoded(assessment),
            "fence": lease.fence,
        }
        if trial.outcome is None:
            where = {"trial_unit": trial.unit, "group_index": trial.group_index, "attempt": trial.attempt}
            names = {"trial_id": assessment.trial_id, "assessor": assessment.assessor}
            self._session.run(_ADD_ASSESSMENT, names | where | values)
        elif trial.outcome == AssessmentOutcome.UNGRADED.value:
            key = {"key": assessment.trial_id, "key_assessor": assessment.assessor}
            self._session.run(_REPLACE_ASSESSMENT, key | values)
        else:
            message = f"trial {assessment.trial_id} is already {trial.outcome} by {assessment.assessor}"
            raise ConflictError(message, hint="assess with another assessor: a graded assessment is never replaced")

    def assessments(self, unit: str, assessor: str | None = None) -> tuple[Assessment, ...]:
        """Return in order of attempt key; without an assessor, the canonical ones.

        Canonical are those made under the unit's own lease by the assessor that its experiment pins. A named
        assessor (an identity, ``verifier``, or ``judge:<profile digest>``) is also found on the unit's trials
        when a regrade made it. A unit's assessments are those of its present sample; a regrade's are of the sample
        that it read.
        """
        wanted = self._pinned(unit) if assessor is None else assessor
        if wanted is None:
            return ()
        place = _A.unit == unit if assessor is None else or_(_A.unit == unit, _A.trial_unit == unit)
        first_attempt = select(units.c.first_attempt).where(units.c.unit == unit).scalar_subquery()
        present = or_(_A.trial_unit != unit, _A.attempt >= first_attempt)
        rows = self._session.all(select(_A.record).where(place, present, _by(wanted)).order_by(*_ASSESSMENT_ORDER))
        return tuple(decoded(Assessment, row.record) for row in rows)

    def assessments_of(self, trial_id: str) -> tuple[Assessment, ...]:
        """Return every assessor's, oldest first."""
        rows = self._session.all(_ASSESSMENTS_OF, trial_id=trial_id)
        return tuple(decoded(Assessment, row.record) for row in rows)

    def add_group(self, lease: Lease, group: QualifiedGroup, datums: ObjectRef | None) -> None:
        """Insert or replace the group of (unit, group). Raises FenceError."""
        self._session.prove(lease, group.unit)
        values = {
            "record": encoded(group),
            "datums_digest": None if datums is None else datums.digest,
            "datums_bytes": None if datums is None else datums.size_bytes,
            "fence": lease.fence,
        }
        if self._session.run(_REPLACE_GROUP, {"key": group.unit, "key_group": group.group, **values}) == 0:
            self._session.run(_ADD_GROUP, {"unit": group.unit, "group_index": group.group, **values})

    def groups(self, unit: str) -> tuple[tuple[QualifiedGroup, ObjectRef | None], ...]:
        """Return in order of group index, each with its datum table."""
        return tuple(
            (decoded(QualifiedGroup, row.record), object_ref(row.datums_digest, row.datums_bytes))
            for row in self._session.all(_GROUPS, unit=unit)
        )

    def _pinned(self, unit: str) -> str | None:
        """Return the assessor that the unit's experiment pins."""
        row = self._session.one(_PINNED, unit=unit)
        return None if row is None else decoded(ExperimentSpec, row.spec).assessor


def _by(assessor: str) -> ColumnElement[bool]:
    """Match ``verifier`` (any task's tests), ``judge:<profile digest>`` (its short form is kept), or an identity."""
    if assessor == "verifier":
        return _A.assessor.startswith("verifier:")
    kind, _, digest = assessor.partition(":")
    return _A.assessor == (f"judge:{digest[:12]}" if kind == "judge" else assessor)


def _unknown(trial_id: str) -> NotFoundError:
    return NotFoundError(f"trial {trial_id!r} is not in the ledger", hint=identity_hint(trial_id, Named.TRIAL))
