"""Alembic's entry: runs migrations on the connection that adapters.ledgers.migrate opened.

That connection already holds the write lock inside one transaction, so a migration happens whole or not at all and
only one process does it. Add a migration with
``alembic -c deploy/migrations/alembic.ini revision --rev-id 0002 -m "what changes"``.
"""

from alembic import context

from adapters.ledgers.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
