"""A unit may be sampled afresh: which attempts are the present sample's, and which request began it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; every unit so far has one sample."""
    with op.batch_alter_table("units") as batch:
        batch.add_column(sa.Column("first_attempt", sa.BigInteger(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("sample_key", sa.Text(), nullable=False, server_default=""))
