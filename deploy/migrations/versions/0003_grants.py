"""What each unit may use of the budget."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table; units that run while it is made write their rows at their next refresh."""
    op.create_table(
        "grants",
        sa.Column("n", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("unit", name="uq_grants_unit"),
        sa.PrimaryKeyConstraint("n", name="pk_grants"),
        sqlite_autoincrement=True,
    )
