"""Real parts and fakes that contract suites run over."""

from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from adapters.ledgers.engine import parse_url
from adapters.ledgers.migrate import upgrade
from adapters.ledgers.schema import METADATA
from adapters.ledgers.sql import SqlLedger
from domain.ledger_ports import Ledger
from tests.contracts.postgres import postgres
from tests.fakes.ledger import FakeLedger


@pytest.fixture(scope="session")
def postgres_url() -> Generator[str]:
    """One server for the session, migrated."""
    with postgres() as url:
        upgrade(url)
        yield url


@pytest.fixture
def empty_postgres_url(postgres_url: str) -> str:
    """The same server without rows."""
    engine = create_engine(parse_url(postgres_url))
    with engine.begin() as connection:
        names = ", ".join(METADATA.tables)
        connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
    engine.dispose()
    return postgres_url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A migrated database file."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    upgrade(url)
    return url


@pytest.fixture(params=["fake", "sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest) -> Generator[Ledger]:
    """Every ledger in turn, empty."""
    if request.param == "fake":
        yield FakeLedger()
        return
    urls = {"sqlite": "sqlite_url", "postgresql": "empty_postgres_url"}
    opened = SqlLedger(request.getfixturevalue(urls[request.param]))
    yield opened
    opened.close()
