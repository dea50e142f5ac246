"""What an acknowledged commit survives, and databases made by migrations."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from adapters.ledgers.engine import parse_url
from adapters.ledgers.migrate import upgrade
from adapters.ledgers.schema import METADATA, REVISION
from adapters.ledgers.sql import SqlLedger
from domain.errors import ConfigurationError, LedgerError
from tests.contracts.ledger_scene import EXPERIMENT
from tests.contracts.tiny_disk import tiny_disk

WRITER = """
import sys
from adapters.ledgers.sql import SqlLedger
ledger = SqlLedger(sys.argv[1])
while True:
    with ledger.begin() as tx:
        cursors = [tx.events.append("trn-kill", "tick", number) for number in range(3)]
    print(cursors[-1], flush=True)
"""

MIGRATOR = "import sys; from adapters.ledgers.migrate import upgrade; upgrade(sys.argv[1])"

ROOT = Path(__file__).parents[2]


def python(code: str, url: str) -> "subprocess.Popen[str]":
    """Start a process that uses the ledger at ``url``."""
    return subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Every real database in turn."""
    urls = {"sqlite": "sqlite_url", "postgresql": "empty_postgres_url"}
    return str(request.getfixturevalue(urls[request.param]))


@pytest.fixture
def no_database_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    """A place for a database that no migration has seen."""
    if url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'fresh.db'}"
    name = f"fresh_{abs(hash(request.node.name))}"
    engine = create_engine(parse_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.replace("/postgres", f"/{name}")


def test_sigkill_loses_nothing_acknowledged(url: str) -> None:
    """Two processes write and are killed at some moment: whole transactions stay, all that were announced."""
    writers = [python(WRITER, url) for _ in range(2)]
    announced: list[int] = []
    for writer in writers:
        assert writer.stdout is not None
        announced.append(int(writer.stdout.readline()))
    time.sleep(0.3)
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
    for writer in writers:
        out, _ = writer.communicate(timeout=30)
        # The last line may be torn by the kill; whole lines were acknowledged.
        announced += [int(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    ledger = SqlLedger(url)
    with ledger.snapshot() as tx:
        cursors = [event.cursor for event in tx.events.after(None, 0, limit=1_000_000)]
    assert cursors == list(range(1, len(cursors) + 1))
    assert len(cursors) % 3 == 0
    assert max(announced) <= len(cursors)
    with ledger.begin() as tx:
        assert tx.events.append(EXPERIMENT, "after the crash", 0) == len(cursors) + 1
    ledger.close()


def test_a_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """The commit that does not fit fails with what to do; all before it stay; freed space heals."""
    with tiny_disk(tmp_path / "small", size_kib=2048) as small:
        url = f"sqlite:///{small / 'ledger.db'}"
        upgrade(url)
        ballast = small / "ballast"
        ballast.write_bytes(b"x" * 300_000)
        ledger = SqlLedger(url)
        acknowledged = 0

        def fill() -> None:
            nonlocal acknowledged
            for number in range(1000):
                with ledger.begin() as tx:
                    tx.events.append(EXPERIMENT, "tick", number, None, {"text": "x" * 20_000})
                acknowledged += 1

        with pytest.raises(LedgerError, match=r"ledger\.db") as refused:
            fill()
        assert "free space" in refused.value.hint
        assert acknowledged > 0
        ballast.unlink()
        with ledger.begin() as tx:
            assert tx.events.append(EXPERIMENT, "healed", 0) == acknowledged + 1
        ledger.close()
        again = SqlLedger(url)
        with again.snapshot() as tx:
            assert len(tx.events.after(None, 0, limit=2000)) == acknowledged + 1
        again.close()


def test_migrations_make_the_schema(no_database_url: str) -> None:
    """A migrated database is exactly what the code expects, and migrating again does nothing."""
    for _ in range(2):
        upgrade(no_database_url)
    engine = create_engine(parse_url(no_database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert context.get_current_revision() == REVISION
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_units_of_an_older_ledger_have_one_sample(no_database_url: str) -> None:
    """What was written before fresh samples existed reads as the first sample."""
    migrate_to("0001", no_database_url)
    engine = create_engine(parse_url(no_database_url))
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO experiments"
                " (experiment_id, spec_digest, spec, state, n_units, created_ms, cancel_requested)"
                " VALUES ('evl-1', 'd', '{}', 'running', 1, 1, false)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO units"
                " (unit, experiment_id, position, state, generation, fence, lease_expires_ms, detail)"
                " VALUES ('evl-1.s000', 'evl-1', 0, 'succeeded', 0, 1, 0, '')"
            )
        )
    engine.dispose()
    upgrade(no_database_url)
    ledger = SqlLedger(no_database_url)
    with ledger.snapshot() as tx:
        row = tx.units.get("evl-1.s000")
    ledger.close()
    assert (row.first_attempt, row.sample_key, row.fence) == (0, "", 1)


def migrate_to(revision: str, url: str) -> None:
    """Bring an empty database to an older version, as the program of that time left it."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "deploy" / "migrations"))
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_processes_migrate_at_once(no_database_url: str) -> None:
    """Several processes that start together all find the tables."""
    starters = [python(MIGRATOR, no_database_url) for _ in range(3)]
    for starter in starters:
        starter.communicate(timeout=60)
    assert [starter.returncode for starter in starters] == [0, 0, 0]
    ledger = SqlLedger(no_database_url)
    with ledger.snapshot() as tx:
        assert tx.experiments.all() == ()
    ledger.close()


def test_a_newer_database_is_refused(url: str) -> None:
    """An old program does not touch what a newer one made."""
    engine = create_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(LedgerError, match="newer"):
            upgrade(url)
    finally:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :now"), {"now": REVISION})
        engine.dispose()


def test_an_unmigrated_database_says_what_to_do(no_database_url: str) -> None:
    """The hint names the migration."""
    ledger = SqlLedger(no_database_url)
    with pytest.raises(LedgerError) as refused, ledger.snapshot() as tx:
        tx.experiments.all()
    assert "upgrade" in refused.value.hint
    ledger.close()


def test_an_absent_server_says_so_without_the_password() -> None:
    """The address is named; the password is not."""
    ledger = SqlLedger("postgresql://synth:hunter2@127.0.0.1:1/synth")
    with pytest.raises(LedgerError, match=r"127\.0\.0\.1") as refused, ledger.begin():
        pass
    assert "PostgreSQL" in refused.value.hint
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "ledger.db", "mysql://host/ledger", "sqlite://", "sqlite:////no/such/place/l.db"])
def test_other_urls_are_refused(url: str) -> None:
    """What names no ledger is a configuration error with the forms that do."""
    with pytest.raises(ConfigurationError) as refused:
        SqlLedger(url)
    assert refused.value.hint
