"""The first tables. A frozen copy: later changes of adapters/ledgers/schema.py come with later migrations."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    _catalog()
    _experiments()
    _trials()
    _updates()
    _events_and_tokens()


def _catalog() -> None:
    _table(
        "task_sets",
        _text("reference"),
        _text("digest"),
        _text("object_digest"),
        _integer("object_bytes"),
        _text("record"),
        _unique("task_sets", "reference"),
    )
    _table("profiles", _text("digest"), _text("record"), _unique("profiles", "digest"))
    _table("published_profiles", _text("reference"), _text("digest"), _unique("published_profiles", "reference"))
    _table(
        "base_policies",
        _text("name"),
        _text("digest"),
        _text("served_name"),
        _text("record"),
        _unique("base_policies", "name"),
    )
    _index("base_policies", "digest")
    _index("base_policies", "served_name")


def _experiments() -> None:
    _table(
        "experiments",
        _text("experiment_id"),
        _text("idempotency_key", null=True),
        _text("spec_digest"),
        _text("spec"),
        _text("state"),
        _integer("n_units"),
        _integer("created_ms"),
        _flag("cancel_requested"),
        _unique("experiments", "experiment_id"),
        _unique("experiments", "idempotency_key"),
    )
    _index("experiments", "state")
    _table(
        "units",
        _text("unit"),
        _text("experiment_id"),
        _integer("position"),
        _text("state"),
        _integer("generation"),
        _text("policy", null=True),
        _integer("fence"),
        _text("lease_holder", null=True),
        _integer("lease_expires_ms"),
        _text("detail"),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.experiment_id"], name="fk_units_experiment_id"),
        _unique("units", "unit"),
        _unique("units", "experiment_id", "position"),
    )
    _table(
        "manifests",
        _text("unit"),
        _text("kind"),
        _text("object_digest"),
        _integer("object_bytes"),
        _integer("fence"),
        _unique("manifests", "unit", "kind"),
    )


def _trials() -> None:
    _table(
        "trials",
        _text("trial_id"),
        _text("experiment_id"),
        _text("unit"),
        _integer("group_index"),
        _integer("attempt"),
        _text("outcome"),
        _flag("counts"),
        _text("record"),
        _integer("fence"),
        _unique("trials", "trial_id"),
    )
    _index("trials", "experiment_id")
    attempt = ["unit", "group_index", "attempt"]
    op.create_index("ix_trials_attempt", "trials", attempt)
    counting = sa.text("counts")
    op.create_index(
        "uq_trials_counting_attempt", "trials", attempt, unique=True, sqlite_where=counting, postgresql_where=counting
    )
    _table(
        "assessments",
        _text("trial_id"),
        _text("assessor"),
        _text("unit"),
        _text("trial_unit"),
        _integer("group_index"),
        _integer("attempt"),
        _text("outcome"),
        _text("record"),
        _integer("fence"),
        _unique("assessments", "trial_id", "assessor"),
    )
    _index("assessments", "unit")
    _index("assessments", "trial_unit")
    _table(
        "groups",
        _text("unit"),
        _integer("group_index"),
        _text("record"),
        _text("datums_digest", null=True),
        _integer("datums_bytes", null=True),
        _integer("fence"),
        _unique("groups", "unit", "group_index"),
    )


def _updates() -> None:
    _table(
        "updates",
        _text("update_id"),
        _text("experiment_id"),
        _text("unit"),
        _integer("batch"),
        _text("state"),
        _text("parent"),
        _text("contributions"),
        _integer("fence"),
        _unique("updates", "update_id"),
        _unique("updates", "experiment_id", "batch"),
    )
    _table(
        "checkpoints",
        _text("update_id"),
        _text("checkpoint_id"),
        _text("experiment_id"),
        _integer("batch"),
        _integer("next_batch"),
        _text("record"),
        _integer("fence"),
        _unique("checkpoints", "update_id"),
        _unique("checkpoints", "experiment_id", "batch"),
    )
    _index("checkpoints", "checkpoint_id")


def _events_and_tokens() -> None:
    op.create_table(
        "events",
        sa.Column("cursor", _number(), autoincrement=False, nullable=False),
        _text("experiment_id"),
        _text("unit", null=True),
        _text("kind"),
        _integer("at_ms"),
        _text("body"),
        _integer("fence", null=True),
        sa.PrimaryKeyConstraint("cursor", name="pk_events"),
    )
    op.create_index("ix_events_experiment_cursor", "events", ["experiment_id", "cursor"])
    _table(
        "tokens",
        _text("secret_sha256"),
        _text("experiment_id"),
        _text("unit"),
        _text("trial_id"),
        _integer("expires_ms"),
        _flag("revoked"),
        _text("scope"),
        _integer("fence"),
        _unique("tokens", "secret_sha256"),
    )
    _index("tokens", "unit")
    _index("tokens", "trial_id")


def _number() -> Any:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def _integer(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=null)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _index(table: str, column: str) -> None:
    op.create_index(f"ix_{table}_{column}", table, [column])


def _table(name: str, *parts: Any) -> None:
    number = sa.Column("n", _number(), autoincrement=True, nullable=False)
    key = sa.PrimaryKeyConstraint("n", name=f"pk_{name}")
    op.create_table(name, number, *parts, key, sqlite_autoincrement=True)
