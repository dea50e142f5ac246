"""A platform of real parts in a temporary directory; only the model process is a fake."""

from collections.abc import Mapping
from pathlib import Path

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.clock import SystemClock
from adapters.engines.nop import NopEngine
from adapters.engines.oracle import OracleEngine
from adapters.ledgers.migrate import upgrade
from adapters.ledgers.sql import SqlLedger
from adapters.sandboxes.local import LocalSandbox
from adapters.sandboxes.memory import MemorySandbox
from adapters.stores.arrow import ArrowDatumTables
from adapters.stores.directory import DirectoryStore
from adapters.stores.records import StoredRecords
from adapters.trainers.base_policy import DemonstrationPolicyMaker
from adapters.verifiers.script import ScriptVerifier
from domain.ports import Sandbox
from domain.service.platform import Platform
from resources.wiring import family_of_tokenizer
from tests.fakes.model_service import FakeModelService
from tests.fakes.scripted_trainer import ScriptedTrainer

TASK_TOML = """schema_version = "1.4"
[task]
name = "{name}"
[metadata]
host_runnable = true
family = "{family}"
[verifier]
environment_mode = "separate"
"""
NOOP_TEST = "# synth-memory: reward 1\necho 1 > /logs/verifier/reward.txt\n"


def make_platform(home: Path, *, sandboxes: Mapping[str, Sandbox] | None = None) -> Platform:
    """Return a platform over SQLite and a directory store below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{home}/ledger.db"
    upgrade(url)
    clock = SystemClock()
    store = DirectoryStore(home / "store")
    boxes = sandboxes or {"local": LocalSandbox(home / "boxes", None), "memory": MemorySandbox()}
    return Platform(
        clock=clock,
        ledger=SqlLedger(url),
        store=store,
        records=StoredRecords(store),
        datum_tables=ArrowDatumTables(store),
        tasks=HarborTaskSource(),
        engines={"nop": NopEngine(), "oracle": OracleEngine()},
        sandboxes=boxes,
        verifiers={name: ScriptVerifier(sandbox, store, clock) for name, sandbox in boxes.items()},
        model=FakeModelService(store),
        trainer=ScriptedTrainer(),
        policies=DemonstrationPolicyMaker(store, family_of_tokenizer),
    )


def write_task(directory: Path, name: str, *, test: str = NOOP_TEST, solution: str = "true\n") -> Path:
    """Write a small task named ``t/<name>`` and return its directory."""
    task = directory / name
    for part in ("environment", "tests", "solution"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(TASK_TOML.format(name=f"t/{name}", family=name[:1]))
    (task / "instruction.md").write_text(f"Do {name}.\n")
    (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
    (task / "tests" / "test.sh").write_text(test)
    (task / "solution" / "solve.sh").write_text(solution)
    return task
