"""The ``ModelService`` contract over the control socket and the fake; the trainer's client; death of the process."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from adapters.clock import SystemClock
from adapters.model_client import HttpModelService, HttpTrainer
from adapters.stores.directory import DirectoryStore
from domain.errors import ConfigurationError, EvidenceError, NotFoundError, SamplerError, TrainerError
from domain.ports import (
    Contribution,
    ContributionResult,
    Evidence,
    ModelService,
    StepResult,
    StepStatus,
    TrainingRun,
)
from domain.records.model import FileEntry, PolicyVersion
from domain.records.profile import Objective, Optimisation
from domain.records.task import ObjectRef
from tests.contracts.test_evidence import a_conversation
from tests.fakes.model_service import FakeModelService
from tests.fakes.scripted_model import BASE, MODEL, Process, model_process
from tests.fakes.scripted_process import SECRET
from tests.fakes.store import MemoryStore

FILE = FileEntry(path="adapter.safetensors", content=ObjectRef(digest="a" * 64, size_bytes=3))
NEXT = PolicyVersion(name="ckpt-1", base=BASE.base, adapter=(FILE,), n_optimizer_steps=1)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator[Process]:
    """A running process without a trainer."""
    async with model_process(tmp_path, MemoryStore()) as running:
        yield running


@pytest.fixture(params=["http", "fake"])
def service(request: pytest.FixtureRequest, process: Process) -> tuple[ModelService, Evidence]:
    """Each implementation, with the journal behind it."""
    if request.param == "fake":
        fake = FakeModelService(MemoryStore())
        return fake, fake.evidence
    client = HttpModelService(process.endpoints.control_socket, process.store, SystemClock(), reconnect_s=0.5)
    return client, process.evidence


async def test_versions_are_served(service: tuple[ModelService, Evidence]) -> None:
    """Serving is idempotent, for a base and for an adapter."""
    for version in (BASE, NEXT, NEXT):
        await service[0].serve(version)


async def test_evidence_is_published_and_read(service: tuple[ModelService, Evidence]) -> None:
    """A run gets exactly what the journal has, as often as it asks."""
    calls = a_conversation()
    for call in calls:
        await service[1].append(call)
    ref = await service[0].publish("t1")
    assert await service[0].publish("t1") == ref
    assert await service[0].read(ref) == calls
    arrays = await service[0].read_calls(ref)
    assert [call.interaction_id for call in arrays] == [call.interaction_id for call in calls]
    assert [tuple(call.sampled_ids.tolist()) for call in arrays] == [call.sampled_ids for call in calls]
    with pytest.raises(EvidenceError):
        await service[0].read_calls(replace(ref, n_sampled_tokens=1))
    assert (await service[0].publish("nothing")).n_interactions == 0


@dataclass
class ScriptedTrainer:
    """A trainer that keeps its word in memory, and fails where told."""

    opened: list[tuple[TrainingRun, tuple[FileEntry, ...]]] = field(
        default_factory=list[tuple[TrainingRun, tuple[FileEntry, ...]]]
    )
    held: dict[str, ContributionResult] = field(default_factory=dict[str, ContributionResult])
    steps: dict[str, StepResult] = field(default_factory=dict[str, StepResult])
    n_computed: int = 0
    delay_s: float = 0.0
    fails: Exception | None = None

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Note the run."""
        self.opened.append((run, state))

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Return what is held."""
        return tuple(self.held)

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Count a contribution once."""
        if contribution.key not in self.held:
            await asyncio.sleep(self.delay_s)
            self.n_computed += 1
            result = ContributionResult(key=contribution.key, loss_sum=-0.5, n_tokens=3, metrics={"kl_v1": 0.25})
            self.held[contribution.key] = result
        return self.held[contribution.key]

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step once."""
        if self.fails is not None:
            raise self.fails
        if keys != tuple(self.held):
            raise TrainerError("other keys are held", hint="submit them again")
        result = StepResult(update_id=update_id, n_optimizer_steps=1, grad_norm=0.5, state=(FILE,), sampler=NEXT)
        return self.steps.setdefault(update_id, result)

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Say what is known."""
        step = self.steps.get(update_id)
        return (StepStatus.APPLIED, step) if step is not None else (StepStatus.NOT_APPLIED, None)

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop it."""
        self.held.clear()


RUN = TrainingRun(run="trn-1", base=BASE, optimisation=Optimisation(), seed=3)
CONTRIBUTION = Contribution(update_id="u1", group=2, datums=FILE.content, objective=Objective.IMPORTANCE_SAMPLING)


async def test_trainer_operations_pass_the_socket(tmp_path: Path) -> None:
    """Every operation's arguments and results arrive as the same records, and errors as the same class."""
    trainer = ScriptedTrainer()
    async with model_process(tmp_path, MemoryStore(), trainer=trainer) as process:
        client = HttpTrainer(process.endpoints.control_socket, SystemClock())
        await client.open(RUN, (FILE,))
        assert trainer.opened == [(RUN, (FILE,))]
        assert await client.begin_update("trn-1", "u1") == ()
        assert await client.step_status("trn-1", "u1") == (StepStatus.NOT_APPLIED, None)
        result = await client.forward_backward("trn-1", CONTRIBUTION)
        assert result == trainer.held[CONTRIBUTION.key]
        with pytest.raises(TrainerError, match="other keys") as refused:
            await client.optim_step("trn-1", "u1", ("wrong",))
        assert refused.value.hint == "submit them again"
        step = await client.optim_step("trn-1", "u1", (CONTRIBUTION.key,))
        assert step == trainer.steps["u1"]
        assert await client.step_status("trn-1", "u1") == (StepStatus.APPLIED, step)
        await client.abandon_update("trn-1", "u1")
        assert trainer.held == {}
        for fault, kind in ((NotFoundError("no run"), NotFoundError), (ZeroDivisionError("bug"), TrainerError)):
            trainer.fails = fault
            with pytest.raises(kind):
                await client.optim_step("trn-1", "u1", ())


async def test_a_repeated_operation_waits_for_the_first(tmp_path: Path) -> None:
    """A client that lost its connection asks again: the work is done once."""
    trainer = ScriptedTrainer(delay_s=0.2)
    async with model_process(tmp_path, MemoryStore(), trainer=trainer) as process:
        client = HttpTrainer(process.endpoints.control_socket, SystemClock())
        first = asyncio.create_task(client.forward_backward("trn-1", CONTRIBUTION))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await client.forward_backward("trn-1", CONTRIBUTION)).n_tokens == 3
    assert trainer.n_computed == 1


async def test_bad_control_requests_are_refused(process: Process) -> None:
    """Garbage is a 400 that says what is wrong; a process without a trainer has no such operations."""
    transport = httpx.AsyncHTTPTransport(uds=str(process.endpoints.control_socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        for content in (b"{", b"[]", b'{"name": 3}'):
            response = await client.post("/serve", content=content)
            assert response.status_code == 400
            assert response.json()["error"]["class"] == ConfigurationError.__name__
        assert (await client.post("/trainer/open", json={})).status_code == 404
        assert (await client.get("/health")).json() == {"ok": True}
        status = (await client.get("/status")).json()
        assert status["has_trainer"] is False
        assert status["counters"]["n_calls"] == 0


async def test_a_fault_of_the_platform_is_told_at_publication(tmp_path: Path) -> None:
    """A trial whose agent got no answer is published, and its run is told that the platform was the reason."""
    async with model_process(tmp_path, MemoryStore(), ["one", SamplerError("out of memory")]) as process:
        client = HttpModelService(process.endpoints.control_socket, process.store, SystemClock())
        headers = {"x-api-key": process.tokens.issue("t1")}
        assert [await ask(process, headers, text) for text in ("0", "1")] == [200, 500]
        with pytest.raises(SamplerError, match="out of memory"):
            await client.publish("t1")
        assert (await client.publish("t1")).n_interactions == 1
        assert await ask(process, headers, "late") == 500, "a published trial takes no more calls"


async def ask(process: Process, headers: dict[str, str], text: str) -> int:
    """Make a call in a conversation of its own and return its status."""
    async with httpx.AsyncClient(base_url=process.url, headers=headers) as harness:
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        return (await harness.post("/v1/messages", json=body)).status_code


async def test_an_absent_process_is_named_after_a_while(tmp_path: Path) -> None:
    """Without a process the client gives up with the port's error and says what to look at."""
    service = HttpModelService(tmp_path / "none.sock", MemoryStore(), SystemClock(), reconnect_s=0.3)
    with pytest.raises(SamplerError, match=r"none\.sock.*synth up"):
        await service.serve(BASE)
    trainer = HttpTrainer(tmp_path / "none.sock", SystemClock(), reconnect_s=0.0)
    with pytest.raises(TrainerError):
        await trainer.abandon_update("trn-1", "u1")


class Program:
    """A model process in a process of its own."""

    def __init__(self, directory: Path, delay_s: float = 0.0) -> None:
        self.directory = directory
        self._command = [sys.executable, "-m", "tests.fakes.scripted_process", str(directory), str(delay_s)]
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it is up once its port is noted."""
        root = Path(__file__).parents[2]
        self._running.append(subprocess.Popen(self._command, cwd=root))
        return self._running[-1]

    async def url(self) -> str:
        """Wait until it answers."""
        for _ in range(1200):
            try:
                url = f"http://127.0.0.1:{(self.directory / 'port').read_text().strip()}"
                async with httpx.AsyncClient() as client:
                    await client.head(url)
            except (OSError, httpx.TransportError):
                await asyncio.sleep(0.05)
                continue
            return url
        pytest.fail("the process did not come up")

    def kill(self) -> None:
        """End what still runs."""
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def program(tmp_path: Path) -> Generator[Program]:
    """A program that is dead when the test ends."""
    made = Program(tmp_path)
    yield made
    made.kill()


async def test_what_was_delivered_survives_sigkill(program: Program) -> None:
    """SIGKILL right after a response: the call is in the journal, and a client that was waiting gets its answer."""
    first = program.start()
    url = await program.url()
    messages: list[dict[str, object]] = []
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {SECRET}"}) as client:
        for number in range(3):
            messages.append({"role": "user", "content": f"turn {number}"})
            body = {"model": MODEL, "max_tokens": 50, "messages": messages}
            answer = (await client.post(f"{url}/v1/messages", json=body)).json()
            messages.append({"role": "assistant", "content": answer["content"]})
        first.send_signal(signal.SIGKILL)
        first.wait()
        (program.directory / "port").unlink()
        clock = SystemClock()
        store = DirectoryStore(program.directory / "store")
        service = HttpModelService(program.directory / "c.sock", store, clock, reconnect_s=60.0)
        waiting = asyncio.create_task(service.publish("other"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        second = program.start()
        url = await program.url()
        assert (await waiting).n_interactions == 0
        messages.append({"role": "user", "content": "after"})
        body = {"model": MODEL, "max_tokens": 50, "messages": messages}
        assert (await client.post(f"{url}/v1/messages", json=body)).status_code == 200
    calls = await service.read(await service.publish("t1"))
    assert [call.sequence for call in calls] == [0, 1, 2, 3]
    assert [call.segment for call in calls] == [0, 0, 0, 0]
    known = calls[2].prompt_ids + calls[2].sampled_ids
    assert calls[3].prompt_ids[: len(known)] == known
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=30) == 0
    assert not (program.directory / "port").exists()
    assert not (program.directory / "c.sock").exists()
