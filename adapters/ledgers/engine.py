"""Database engines: SQLite embedded, PostgreSQL in service; both make write transactions serial."""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from domain.errors import ConfigurationError

WAIT_S = 30.0
"""How long a writer waits for the one before it; a transaction takes milliseconds, so longer means a fault."""

_ABANDONED_MS = 60_000
"""PostgreSQL ends a session that keeps a transaction open and says nothing: it would block every writer."""

_WRITE_LOCK = 0x5359_4E54_4800
"""Key of PostgreSQL's advisory lock that makes writers take turns ("SYNTH")."""

_WRITES = "ledger_writes"

_FORMS = "write sqlite:////absolute/path/ledger.db or postgresql://user@host/database"


def parse_url(url: str) -> URL:
    """Return the URL with its driver settled.

    Raises:
        ConfigurationError: not a URL of SQLite on disk or PostgreSQL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as cause:
        message = "the ledger's URL cannot be read"
        raise ConfigurationError(message, hint=_FORMS) from cause
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        # SQLAlchemy 2.1 means another driver by the bare name. Source: facts/dagster.md section 5.4.
        return parsed.set(drivername="postgresql+psycopg2")
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return parsed
    message = f"{parsed.render_as_string(hide_password=True)} names no ledger"
    raise ConfigurationError(message, hint=_FORMS)


def open_engine(url: URL) -> Engine:
    """Return an engine; its transactions are made with :func:`reading` or :func:`writing`."""
    return _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)


def reading(engine: Engine) -> Engine:
    """Return the same engine, whose transactions see one state and write nothing."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine


def writing(engine: Engine) -> Engine:
    """Return the same engine, whose transactions take their turn to write."""
    return engine.execution_options(**{_WRITES: True})


def _writes(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get(_WRITES, False))


# --- SQLite --------------------------------------------------------------------------------------


def _sqlite(url: URL) -> Engine:
    parent = Path(url.database or "").absolute().parent
    if not parent.is_dir():
        message = f"the ledger's directory {parent} does not exist"
        raise ConfigurationError(message, hint="create it, or name another file in the ledger's URL")
    engine = create_engine(url, connect_args={"timeout": WAIT_S}, pool_size=16, max_overflow=-1)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver's own transactions begin too late and deferred; ``begin`` below says BEGIN itself.
    # Source: SQLAlchemy, "Serializable isolation / Savepoints / Transactional DDL" of the SQLite dialect.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")  # an acknowledged commit survives a power cut, also in WAL
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # IMMEDIATE takes the write lock at once: a transaction that read first could not upgrade later.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if _writes(connection) else "BEGIN")


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgresql(url: URL) -> Engine:
    options = f"-c lock_timeout={WAIT_S:.0f}s -c idle_in_transaction_session_timeout={_ABANDONED_MS}"
    engine = create_engine(
        url,
        connect_args={"options": options, "connect_timeout": 10, "application_name": "synth"},
        pool_size=8,
        max_overflow=-1,
        pool_pre_ping=True,  # a restarted server costs a reconnect, not an error
        isolation_level="READ COMMITTED",
    )
    event.listen(engine, "begin", _begin_postgresql)
    return engine


def _begin_postgresql(connection: Connection) -> None:
    # Writers take turns, so that every transaction sees all commits before it and event cursors become
    # visible in order; READ COMMITTED then reads like SERIALIZABLE and nothing has to be tried again.
    if _writes(connection):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")
