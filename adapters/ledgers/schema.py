"""The ledger's tables. A change here needs a migration (deploy/migrations/versions); a test compares the two.

Records lie as canonical JSON text beside the columns that are looked up or compared. Every table that a worker
writes carries the fence of the lease it was written under.
"""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint

REVISION = "0004"
"""The newest migration."""

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only when the key is a plain INTEGER."""


def _table(name: str, *parts: Column[str] | Column[int] | Column[bool] | UniqueConstraint | Index) -> Table:
    """Return a table whose rows are numbered in the order of their insertion."""
    return Table(
        name, METADATA, Column("n", _NUMBER, primary_key=True, autoincrement=True), *parts, sqlite_autoincrement=True
    )


def _text(name: str, *, null: bool = False, index: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null, index=index, unique=unique)


def _integer(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


# --- catalog: written at publication, never by workers -------------------------------------------

task_sets = _table(
    "task_sets",
    _text("reference", unique=True),
    _text("digest"),
    _text("object_digest"),
    _integer("object_bytes"),
    _text("record"),
)
profiles = _table("profiles", _text("digest", unique=True), _text("record"))
published_profiles = _table("published_profiles", _text("reference", unique=True), _text("digest"))
base_policies = _table(
    "base_policies",
    _text("name", unique=True),
    _text("digest", index=True),
    _text("served_name", index=True),
    _text("record"),
)

# --- experiments and units -----------------------------------------------------------------------

experiments = _table(
    "experiments",
    _text("experiment_id", unique=True),
    _text("idempotency_key", null=True, unique=True),
    _text("spec_digest"),
    _text("spec"),
    _text("state", index=True),
    _integer("n_units"),
    _integer("created_ms"),
    _flag("cancel_requested"),
)
units = _table(
    "units",
    _text("unit", unique=True),
    Column("experiment_id", Text, ForeignKey("experiments.experiment_id"), nullable=False),
    _integer("position"),
    _text("state"),
    _integer("generation"),
    _text("policy", null=True),
    _integer("fence"),
    _text("lease_holder", null=True),
    _integer("lease_expires_ms"),
    _text("detail"),
    _integer("first_attempt"),
    _text("sample_key"),
    _integer("retry_at_ms"),
    _integer("n_stalled"),
    _text("progress"),
    UniqueConstraint("experiment_id", "position"),
)
manifests = _table(
    "manifests",
    _text("unit"),
    _text("kind"),
    _text("object_digest"),
    _integer("object_bytes"),
    _integer("fence"),
    UniqueConstraint("unit", "kind"),
)

# --- trials, assessments, groups -----------------------------------------------------------------

trials = _table(
    "trials",
    _text("trial_id", unique=True),
    _text("experiment_id", index=True),
    _text("unit"),
    _integer("group_index"),
    _integer("attempt"),
    _text("outcome"),
    _flag("counts"),
    _text("record"),
    _integer("fence"),
    Index("ix_trials_attempt", "unit", "group_index", "attempt"),
)
Index(
    "uq_trials_counting_attempt",
    trials.c.unit,
    trials.c.group_index,
    trials.c.attempt,
    unique=True,
    sqlite_where=trials.c.counts,
    postgresql_where=trials.c.counts,
)
assessments = _table(
    "assessments",
    _text("trial_id"),
    _text("assessor"),
    _text("unit", index=True),
    _text("trial_unit", index=True),
    _integer("group_index"),
    _integer("attempt"),
    _text("outcome"),
    _text("record"),
    _integer("fence"),
    UniqueConstraint("trial_id", "assessor"),
)
groups = _table(
    "groups",
    _text("unit"),
    _integer("group_index"),
    _text("record"),
    _text("datums_digest", null=True),
    _integer("datums_bytes", null=True),
    _integer("fence"),
    UniqueConstraint("unit", "group_index"),
)

# --- optimizer updates ---------------------------------------------------------------------------

updates = _table(
    "updates",
    _text("update_id", unique=True),
    _text("experiment_id"),
    _text("unit"),
    _integer("batch"),
    _text("state"),
    _text("parent"),
    _text("contributions"),
    _integer("fence"),
    UniqueConstraint("experiment_id", "batch"),
)
checkpoints = _table(
    "checkpoints",
    # Two trainings from the same seeds reach the same weights, hence the same id: the update is what is unique.
    _text("update_id", unique=True),
    _text("checkpoint_id", index=True),
    _text("experiment_id"),
    _integer("batch"),
    _integer("next_batch"),
    _text("record"),
    _integer("fence"),
    UniqueConstraint("experiment_id", "batch"),
)

# --- events and tokens ---------------------------------------------------------------------------

events = Table(
    "events",
    METADATA,
    Column("cursor", _NUMBER, primary_key=True, autoincrement=False),
    _text("experiment_id"),
    _text("unit", null=True),
    _text("kind"),
    _integer("at_ms"),
    _text("body"),
    _integer("fence", null=True),
    Index("ix_events_experiment_cursor", "experiment_id", "cursor"),
)
tokens = _table(
    "tokens",
    _text("secret_sha256", unique=True),
    _text("experiment_id"),
    _text("unit", index=True),
    _text("trial_id", index=True),
    _integer("expires_ms"),
    _flag("revoked"),
    _text("scope"),
    _integer("fence"),
)

# --- grants of the budget ------------------------------------------------------------------------

grants = _table("grants", _text("unit", unique=True), _text("record"), _integer("fence"))
