"""When a unit is launched again, and how often in a row it was without having done anything."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns; no unit has stalled so far."""
    with op.batch_alter_table("units") as batch:
        batch.add_column(sa.Column("retry_at_ms", sa.BigInteger(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("n_stalled", sa.BigInteger(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("progress", sa.Text(), nullable=False, server_default=""))
