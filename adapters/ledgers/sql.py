"""The ledger over SQL: one transaction with all aggregates."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from adapters.ledgers.catalog import SqlCatalog
from adapters.ledgers.engine import WAIT_S, open_engine, parse_url, reading, writing
from adapters.ledgers.events import SqlEvents
from adapters.ledgers.experiments import SqlExperiments
from adapters.ledgers.grants import SqlGrants
from adapters.ledgers.session import Session
from adapters.ledgers.tokens import SqlTokens
from adapters.ledgers.trials import SqlTrials
from adapters.ledgers.units import SqlUnits
from adapters.ledgers.updates import SqlUpdates
from domain.errors import LedgerError

_HINTS = (
    ("database is locked", "another process writes for too long: look for one that hangs, then try again"),
    ("lock timeout", "another process writes for too long: look for one that hangs, then try again"),
    ("disk is full", "free space on the ledger's disk; what was acknowledged is still there"),
    ("readonly database", "let this user write the ledger's file and its directory"),
    ("no such table", "bring the database up to date first: adapters.ledgers.migrate.upgrade"),
    ("UndefinedTable", "bring the database up to date first: adapters.ledgers.migrate.upgrade"),
    ("no such column", "this database belongs to another version of Synth"),
    ("malformed", "the file is damaged: restore it from a copy"),
    ("onnection", "check that the PostgreSQL server runs and that the URL is right"),
)


class SqlTransaction:
    """The aggregates inside one transaction. See domain.ledger_ports.Transaction."""

    __slots__ = ("catalog", "events", "experiments", "grants", "tokens", "trials", "units", "updates")

    def __init__(self, connection: Connection) -> None:
        session = Session(connection)
        self.catalog = SqlCatalog(session)
        self.experiments = SqlExperiments(session)
        self.units = SqlUnits(session)
        self.trials = SqlTrials(session)
        self.updates = SqlUpdates(session)
        self.events = SqlEvents(session)
        self.tokens = SqlTokens(session)
        self.grants = SqlGrants(session)


class SqlLedger:
    """The ledger in SQLite or PostgreSQL; one object serves many threads, many processes share a database.

    Write transactions take turns: threads of this process by a lock, processes by SQLite's write lock or a
    PostgreSQL advisory lock. Bring the database up to date with :func:`adapters.ledgers.migrate.upgrade` first.
    """

    def __init__(self, url: str) -> None:
        """Name the database; nothing is opened yet.

        Args:
            url: ``sqlite:////path/ledger.db`` or ``postgresql+psycopg2://user@host/database``.

        Raises:
            ConfigurationError: the URL names no ledger.
        """
        parsed = parse_url(url)
        self._where = parsed.render_as_string(hide_password=True)
        self._engine = open_engine(parsed)
        self._reads, self._writes = reading(self._engine), writing(self._engine)
        self._turn = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def begin(self) -> Generator[SqlTransaction]:
        """Open a write transaction: commits at the end of the block, rolls back on any exception.

        Raises:
            LedgerError: the transaction cannot begin or commit; nothing was changed.
        """
        with self._own_turn(), self._transaction(self._writes) as transaction:
            yield transaction

    @contextmanager
    def snapshot(self) -> Generator[SqlTransaction]:
        """Open a read transaction, which sees one state of the ledger from its first to its last read.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        with self._transaction(self._reads) as transaction:
            yield transaction

    def close(self) -> None:
        """Close idle connections; the ledger can still be used and opens new ones."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, engine: Engine) -> Generator[SqlTransaction]:
        try:
            with engine.begin() as connection:
                yield SqlTransaction(connection)
        except SQLAlchemyError as cause:
            origin = cause.orig if isinstance(cause, DBAPIError) else cause
            reason = str(origin).strip()
            hints = (hint for mark, hint in _HINTS if mark in f"{type(origin).__name__} {reason}")
            raise LedgerError(f"ledger {self._where}: {reason}", hint=next(hints, "nothing was changed")) from cause

    @contextmanager
    def _own_turn(self) -> Generator[None]:
        """Let the threads of this process wait in line instead of polling the database's lock."""
        me = threading.get_ident()
        if self._owner == me:
            message = f"ledger {self._where}: this thread is already inside a write transaction"
            raise LedgerError(message, hint="end the outer one first; never await inside a transaction")
        if not self._turn.acquire(timeout=WAIT_S):
            message = f"ledger {self._where}: another thread of this process has been writing for {WAIT_S:.0f} s"
            raise LedgerError(message, hint="look for a transaction that does slow work inside its block")
        self._owner = me
        try:
            yield
        finally:
            self._owner = None
            self._turn.release()
