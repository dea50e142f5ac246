"""Wiring: settings in, adapters out. The one place that reads the environment; imports no Dagster.

What is heavy (torch, Arrow) is imported when it is first used, so that looking at an experiment costs no model library.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.clock import SystemClock
from adapters.engines.claude_code import ClaudeCodeEngine
from adapters.engines.mini import MiniEngine
from adapters.engines.nop import NopEngine
from adapters.engines.oracle import OracleEngine
from adapters.ledgers.migrate import upgrade
from adapters.ledgers.sql import SqlLedger
from adapters.model_client import HttpModelService, HttpTrainer
from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.local import LocalSandbox
from adapters.sandboxes.memory import MemorySandbox
from adapters.stores.directory import DirectoryStore
from adapters.stores.records import StoredRecords
from adapters.verifiers.script import ScriptVerifier
from domain.ledger_ports import Ledger
from domain.ports import DatumTables, Engine, Family, PolicyMaker, Progress, Sampler, Sandbox, Store
from domain.records.assessment import Datum
from domain.records.chat import Demonstration, ToolSpec
from domain.records.family import FamilyAbility, FamilyOptions
from domain.records.model import BasePolicy, PolicyRecipe
from domain.records.task import ObjectRef
from domain.service.platform import Platform
from resources.settings import Settings, read_settings

if TYPE_CHECKING:
    from adapters.servers.model_process import Endpoints


def settings_from_environment(home: Path | str | None = None) -> Settings:
    """Return this process's settings.

    Args:
        home: state directory that replaces SYNTH_HOME; its ledger follows unless SYNTH_LEDGER_URL names another.

    Raises:
        ConfigurationError: naming the variable.
    """
    variables = dict(os.environ)  # noqa: TID251 - settings enter the program here and nowhere else
    if home:
        variables["SYNTH_HOME"] = str(home)
    return read_settings(variables)


@cache
def connect(settings: Settings) -> Platform:
    """Return the platform for a worker, a command or the graph; the ledger is brought up to date first.

    Raises:
        ConfigurationError: a directory or URL cannot be used.
        LedgerError: the ledger cannot be opened or migrated.
    """
    settings.make_directories()
    upgrade(settings.ledger_url)
    clock = SystemClock()
    store = DirectoryStore(settings.store)
    sandboxes: dict[str, Sandbox] = {
        "local": LocalSandbox(settings.boxes, settings.proxy_socket),
        "memory": MemorySandbox(),
        "docker": DockerSandbox(settings.docker_url, store, settings.proxy_socket, compose=settings.docker_compose),
        "kubernetes": KubernetesSandbox(settings.cluster),
    }
    variables = _task_variables(settings)
    engines: tuple[Engine, ...] = (NopEngine(), OracleEngine(), MiniEngine(), ClaudeCodeEngine(settings.claude_code))
    return Platform(
        clock=clock,
        ledger=SqlLedger(settings.ledger_url),
        store=store,
        records=StoredRecords(store),
        datum_tables=_LazyDatumTables(store),
        tasks=HarborTaskSource(),
        engines={engine.name: engine for engine in engines},
        sandboxes=sandboxes,
        verifiers={
            name: ScriptVerifier(sandbox, store, clock, variables=variables) for name, sandbox in sandboxes.items()
        },
        model=HttpModelService(settings.control_socket, store, clock),
        trainer=HttpTrainer(settings.control_socket, clock),
        policies=_LazyPolicyMaker(store),
        variables=variables,
        budget=settings.budget.capacity,
    )


def _task_variables(settings: Settings) -> dict[str, str]:
    """Return the values of the variables that the operator gives to tasks; one that is not set is not given."""
    return {
        name: os.environ[name]  # noqa: TID251 - the operator's values enter the program here and nowhere else
        for name in settings.task_variables
        if name in os.environ  # noqa: TID251 - as above
    }


def family_of_tokenizer(tokenizer_json: bytes) -> Family:
    """Return the native format over the bytes of a ``tokenizer.json``."""
    from adapters.families.qwen3 import Qwen3Family

    return Qwen3Family.from_json(tokenizer_json)


def family_of_base(base: BasePolicy, store: Store, options: FamilyOptions | None = None) -> Family:
    """Return a base policy's native format.

    Raises:
        ConfigurationError: no such family, or the policy's files are of another one.
    """
    from adapters.families.registry import family_of_policy

    return family_of_policy(base, store, options)


def ability_of_base(base: BasePolicy, store: Store) -> FamilyAbility:
    """Return whether a base policy can be sampled and whether it can be trained, with reasons."""
    from adapters.families.registry import ability_of_policy

    return ability_of_policy(base, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """What the model process asks about base policies."""

    ledger: Ledger
    store: Store

    def by_digest(self, digest: str) -> BasePolicy:
        """Return a base policy. Raises NotFoundError."""
        with self.ledger.snapshot() as tx:
            return tx.catalog.base_policy(digest)

    def check_ledger(self) -> None:
        """Raise LedgerError while the ledger does not answer."""
        with self.ledger.snapshot() as tx:
            tx.tokens.scope("", 0)

    def family_of(self, policy: str) -> Family:
        """Return the native format of a served policy version. Raises NotFoundError."""
        with self.ledger.snapshot() as tx:
            base = tx.catalog.base_policy(tx.updates.policy(policy).base)
        return family_of_base(base, self.store)


def pin_images(
    settings: Settings, directory: Path, out: Path, prefix: str, limit_s: float, progress: Progress
) -> dict[str, str]:
    """Copy tasks to ``out`` with their Dockerfiles built, pushed below ``prefix`` and named by digest.

    Raises:
        TaskError: a task cannot be read, or has no single image.
        SandboxError: an image cannot be built or pushed.
    """
    from adapters.benchmarks.pinned_images import pin_images as pin
    from adapters.sandboxes.docker_engine import Engine as DockerEngine
    from domain.records.canonical import digest_bytes

    engine = DockerEngine(settings.docker_url, DirectoryStore(settings.store))

    def publish(context: bytes, name: str) -> str:
        tag = f"synth-task:{digest_bytes(context)[:32]}"
        engine.build(tag, lambda: context, limit_s)
        return engine.push(tag, name, limit_s)

    return pin(directory, out, prefix, publish, progress)


def _endpoints(settings: Settings) -> "Endpoints":
    from adapters.servers.model_process import Endpoints

    return Endpoints(
        proxy_socket=settings.proxy_socket,
        control_socket=settings.control_socket,
        host=settings.proxy_host,
        port=settings.proxy_port,
        port_file=settings.run / "proxy.port",
        metrics=settings.metrics,
    )


def _sampler(settings: Settings, store: Store, bases: Bases) -> tuple[Sampler, Callable[[], Awaitable[None]]]:
    """Return the sampler that the settings name, and what ends it."""
    if settings.vllm_urls:
        from adapters.samplers.vllm import VllmSampler

        served = VllmSampler(
            store,
            bases.by_digest,
            settings.vllm_urls,
            settings.vllm_adapters,
            max_versions=settings.vllm_versions,
            token=os.environ.get("VLLM_API_KEY", ""),  # noqa: TID251 - a secret enters here and is kept in no setting
        )
        return served, served.close
    from adapters.samplers.transformers import TransformersSampler

    embedded = TransformersSampler(store, bases.by_digest, threads=settings.model_threads)

    async def close() -> None:
        embedded.close()

    return embedded, close


async def run_model_process(settings: Settings, on_ready: Callable[[int], None]) -> None:
    """Serve sampler, trainer and proxy until SIGTERM. It needs no base policy: versions are loaded when asked for.

    Args:
        settings: where.
        on_ready: called with the proxy's TCP port.

    Raises:
        ConfigurationError: an address cannot be used.
        ConflictError: another model process lives here.
        EvidenceError: the journal cannot be opened.
    """
    from adapters.evidence import JournalEvidence
    from adapters.samplers.bounded import BoundedSampler
    from adapters.servers.calls import CallDesk
    from adapters.servers.control import create_control
    from adapters.servers.metrics import CallMetrics, create_metrics
    from adapters.servers.model_process import serve
    from adapters.servers.proxy import create_proxy
    from adapters.stores.arrow import ArrowDatumTables
    from adapters.trainers.peft import PeftTrainer

    platform = connect(settings)
    bases = Bases(ledger=platform.ledger, store=platform.store)
    evidence = JournalEvidence(settings.journal, platform.store)
    sampler, close_sampler = _sampler(settings, platform.store, bases)
    n_calls = settings.budget.model_calls
    metrics = CallMetrics()
    desk = CallDesk(
        sampler=sampler if n_calls is None else BoundedSampler(sampler, n_calls),
        family_of=bases.family_of,
        evidence=evidence,
        ledger=platform.ledger,
        clock=platform.clock,
        observe=metrics.observe,
    )
    metrics.follow(lambda: desk.counters, lambda: {"n_calls_in_flight": desk.n_in_flight, **evidence.counters()})
    trainer = PeftTrainer(platform.store, ArrowDatumTables(platform.store), settings.home / "trainer", bases.by_digest)

    async def stop() -> None:
        await close_sampler()
        await evidence.close()

    await serve(
        _endpoints(settings),
        proxy=create_proxy(desk),
        control=create_control(
            desk=desk, sampler=sampler, evidence=evidence, trainer=trainer, counters=evidence.counters
        ),
        metrics=create_metrics(metrics, bases.check_ledger),
        on_ready=on_ready,
        on_stop=stop,
    )


class _LazyDatumTables:
    """Datum tables that import Arrow when first used."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _tables(self) -> DatumTables:
        from adapters.stores.arrow import ArrowDatumTables

        return ArrowDatumTables(self._store)

    def write(self, datums: Sequence[Datum]) -> ObjectRef:
        """Keep rows in order."""
        return self._tables.write(datums)

    def read(self, ref: ObjectRef) -> tuple[Datum, ...]:
        """Return the rows."""
        return self._tables.read(ref)


class _LazyPolicyMaker:
    """A policy maker that imports torch when it has to make one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _maker(self) -> PolicyMaker:
        from adapters.trainers.base_policy import DemonstrationPolicyMaker

        return DemonstrationPolicyMaker(self._store, family_of_tokenizer)

    def make(
        self,
        recipe: PolicyRecipe,
        demonstrations: Sequence[Demonstration],
        tools: Sequence[ToolSpec],
        progress: Progress,
    ) -> BasePolicy:
        """Train tokenizer and model."""
        return self._maker.make(recipe, demonstrations, tools, progress)
