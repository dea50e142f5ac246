"""A model process with a scripted sampler: everything else of it is real."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette

from adapters.clock import SystemClock
from adapters.evidence import JournalEvidence
from adapters.servers.calls import CallDesk
from adapters.servers.control import create_control
from adapters.servers.metrics import CallMetrics, create_metrics
from adapters.servers.model_process import Endpoints, serve
from adapters.servers.proxy import create_proxy
from domain.errors import ContextOverflowError, NotFoundError
from domain.ledger_ports import Ledger
from domain.ports import Family, SampleRequest, SampleResult, Store, Trainer
from domain.records.experiment import (
    Experiment,
    ExperimentKind,
    ExperimentSpec,
    ExperimentState,
    TokenScope,
    Unit,
    UnitState,
)
from domain.records.model import BasePolicy, PolicyVersion
from domain.records.names import Reference
from domain.records.profile import Plan
from domain.records.trial import StopReason
from tests.fakes.ledger import FakeLedger
from tests.fakes.scripted_family import END, ScriptedFamily

BASE = PolicyVersion(name=f"base-{'b' * 12}", base="b" * 64)
MODEL = "policy"
UNIT = "evl-0.s000"


def as_bytes(line: str) -> tuple[int, ...]:
    """Return a turn in the scripted family's ids."""
    return (*line.encode(), END)


@dataclass
class ScriptedSampler:
    """Says the lines of its script, one a call; an exception in the script is raised; then "done" for ever."""

    script: list[str | Exception] = field(default_factory=list[str | Exception])
    context_tokens: int = 4096
    delay_s: float = 0.0
    requests: list[SampleRequest] = field(default_factory=list[SampleRequest])
    loaded: list[str] = field(default_factory=list[str])
    encode: Callable[[str], tuple[int, ...]] = as_bytes
    """A whole turn as ids, its stop id included."""

    async def load(self, version: PolicyVersion) -> None:
        """Note the version."""
        if version.name not in self.loaded:
            self.loaded.append(version.name)

    def versions(self) -> tuple[str, ...]:
        """Return the names."""
        return tuple(self.loaded)

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Say the next line, cut at ``max_tokens``."""
        if request.version not in self.loaded:
            raise NotFoundError(f"no version {request.version}")
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise ContextOverflowError("does not fit")
        self.requests.append(request)
        line = self.script.pop(0) if self.script else "done"
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if isinstance(line, Exception):
            raise line
        whole = self.encode(line)
        ids = whole[: request.max_tokens]
        return SampleResult(
            sampled_ids=ids,
            logprobs=tuple(-0.25 - 0.001 * index for index in range(len(ids))),
            stop_reason=StopReason.STOP if len(ids) == len(whole) else StopReason.LENGTH,
            version=request.version,
        )


class TokenBook:
    """A ledger with one running unit, from which tests issue tokens; a fake one unless another is given."""

    def __init__(self, clock: SystemClock, ledger: Ledger | None = None) -> None:
        self.ledger: Ledger = ledger or FakeLedger()
        self._clock = clock
        base = BasePolicy(
            name="tiny",
            digest=BASE.base,
            family="scripted",
            files=(),
            recipe_digest="",
            context_tokens=1,
            n_parameters=1,
        )
        unit = Unit(unit=UNIT, experiment_id="evl-0", index=0, state=UnitState.LAUNCHED, generation=1, policy=BASE)
        reference = Reference(team="tests", name="none", version=1)
        spec = ExperimentSpec(
            kind=ExperimentKind.EVALUATION,
            task_set=reference,
            task_set_digest="",
            actor_digest="",
            assessor="verifier",
            plan=Plan(),
            policy=BASE,
        )
        experiment = Experiment(
            experiment_id="evl-0",
            spec=spec,
            spec_digest="",
            state=ExperimentState.RUNNING,
            n_units=1,
            created_ms=0,
        )
        with self.ledger.begin() as tx:
            tx.catalog.add_base_policy(base)
            tx.experiments.add(experiment, None)
            tx.units.add(unit)
            self._lease = tx.units.acquire(UNIT, "tests", clock.now_ms(), 3600.0)

    def issue(
        self,
        trial_id: str,
        *,
        secret: str = "",
        model: str = MODEL,
        max_tokens: int = 500,
        ttl_s: float = 600.0,
        trial_tokens: int | None = None,
    ) -> str:
        """Return the secret of a new token."""
        secret = secret or self._clock.new_secret()
        scope = TokenScope(
            experiment_id="evl-0",
            unit=UNIT,
            trial_id=trial_id,
            model=model,
            policy=BASE.name,
            expires_ms=self._clock.now_ms() + int(ttl_s * 1000),
            max_tokens=max_tokens,
            temperature=1.0,
            seed=7,
            trial_tokens=trial_tokens,
        )
        with self.ledger.begin() as tx:
            tx.tokens.issue(self._lease, hashlib.sha256(secret.encode()).hexdigest(), scope)
        return secret

    def revoke(self, trial_id: str) -> None:
        """End a trial's tokens."""
        with self.ledger.begin() as tx:
            tx.tokens.revoke_trial(trial_id)


@dataclass(frozen=True, kw_only=True)
class Process:
    """A running model process."""

    url: str
    endpoints: Endpoints
    sampler: ScriptedSampler
    evidence: JournalEvidence
    desk: CallDesk
    tokens: TokenBook
    store: Store
    serving: asyncio.Task[None]

    async def stopped(self) -> None:
        """Wait until a signal has ended it."""
        await asyncio.shield(self.serving)


def _endpoints(directory: Path, host: str, metrics_port: int | None) -> Endpoints:
    return Endpoints(
        host=host,
        proxy_socket=directory / "p.sock",
        control_socket=directory / "c.sock",
        port_file=directory / "port",
        metrics=None if metrics_port is None else (host, metrics_port),
    )


def _desk(
    sampler: ScriptedSampler, family: Family, evidence: JournalEvidence, ledger: Ledger
) -> tuple[CallDesk, Starlette]:
    """Return the desk, and the app that tells its figures."""
    metrics = CallMetrics()
    desk = CallDesk(
        sampler=sampler,
        family_of=lambda _: family,
        evidence=evidence,
        ledger=ledger,
        clock=SystemClock(),
        observe=metrics.observe,
    )
    metrics.follow(lambda: desk.counters, lambda: {"n_calls_in_flight": desk.n_in_flight, **evidence.counters()})

    def answers() -> None:
        with ledger.snapshot() as tx:
            tx.tokens.scope("", 0)

    return desk, create_metrics(metrics, answers)


@contextlib.asynccontextmanager
async def model_process(
    directory: Path,
    store: Store,
    script: Sequence[str | Exception] = (),
    *,
    sampler: ScriptedSampler | None = None,
    family: Family | None = None,
    trainer: Trainer | None = None,
    ping_s: float = 5.0,
    tokens: TokenBook | None = None,
    ledger: Ledger | None = None,
    host: str = "127.0.0.1",
    metrics_port: int | None = None,
) -> AsyncGenerator[Process]:
    """Serve in this event loop until the block ends; stopping and starting again is a restart."""
    tokens = tokens or TokenBook(SystemClock())
    sampler = sampler or ScriptedSampler(script=list(script))
    evidence = JournalEvidence(directory / "journal", store)
    desk, watched = _desk(sampler, family or ScriptedFamily(), evidence, ledger or tokens.ledger)
    endpoints = _endpoints(directory, host, metrics_port)
    ready = asyncio.get_running_loop().create_future()

    async def stop() -> None:
        await desk.drain(wait_s=5.0)
        await evidence.close()

    control = create_control(desk=desk, sampler=sampler, evidence=evidence, trainer=trainer, counters=evidence.counters)
    serving = asyncio.create_task(
        serve(
            endpoints,
            proxy=create_proxy(desk, ping_s=ping_s),
            control=control,
            metrics=watched,
            on_ready=ready.set_result,
            on_stop=stop,
        )
    )
    await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        yield Process(
            url=f"http://127.0.0.1:{ready.result()}",
            endpoints=endpoints,
            sampler=sampler,
            evidence=evidence,
            desk=desk,
            tokens=tokens,
            store=store,
            serving=serving,
        )
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
