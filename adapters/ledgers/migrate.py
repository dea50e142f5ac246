"""Brings the ledger's database up to date. Safe when several processes start at once."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import as_file, files

from sqlalchemy import URL, Connection, inspect, select, table
from sqlalchemy import column as sql_column
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from adapters.ledgers.engine import open_engine, parse_url, writing
from adapters.ledgers.schema import REVISION
from domain.errors import LedgerError

_VERSION = table("alembic_version", sql_column("version_num"))
"""Alembic's own table."""


def upgrade(url: str) -> None:
    """Create the ledger's tables or bring them up to date; does nothing when they are.

    Args:
        url: as for :class:`adapters.ledgers.sql.SqlLedger`.

    Raises:
        ConfigurationError: the URL names no ledger.
        LedgerError: the migration failed or the database is newer than this program; nothing was changed.
    """
    parsed = parse_url(url)
    with _writer(parsed) as connection:
        now = _revision(connection)
        if now == REVISION:
            return
        if now is not None and now > REVISION:
            message = f"ledger {parsed.render_as_string(hide_password=True)} has version {now}, newer than {REVISION}"
            raise LedgerError(message, hint="run a newer Synth against it")
        _run(connection)


def _run(connection: Connection) -> None:
    # Alembic takes a third of a second to import and is needed once in a database's life.
    from alembic import command
    from alembic.config import Config

    with as_file(files("deploy") / "migrations") as directory:
        config = Config()
        config.set_main_option("script_location", str(directory).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, REVISION)


@contextmanager
def _writer(url: URL) -> Generator[Connection]:
    """Open one write transaction, so that processes migrate one after the other."""
    engine = open_engine(url)
    try:
        with writing(engine).begin() as connection:
            yield connection
    except SQLAlchemyError as cause:
        reason = str(cause.orig if isinstance(cause, DBAPIError) else cause).strip()
        message = f"migrating {url.render_as_string(hide_password=True)}: {reason}"
        raise LedgerError(message, hint="nothing was changed; check the database and try again") from cause
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar()
