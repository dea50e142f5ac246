"""Client adapters of the model process: ``ModelService`` and ``Trainer`` over its Unix control socket.

A lost connection is tried again, because the process is restarted by its supervisor and every operation is
idempotent by its id.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter

from adapters.evidence_arrays import decode_calls
from adapters.evidence_codec import decode_trial
from domain import errors
from domain.errors import SamplerError, SynthError, TrainerError, boundary
from domain.ports import (
    Clock,
    Contribution,
    ContributionResult,
    StepResult,
    StepStatus,
    Store,
    TrainingRun,
)
from domain.records.canonical import Json, canonical_bytes
from domain.records.model import FileEntry, PolicyVersion
from domain.records.trajectory import TokenCall
from domain.records.trial import EvidenceRef, Interaction

RECONNECT_S = 60.0
"""How long a lost connection is tried again: longer than the process takes to start."""
_RETRY_S = 0.25
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Never used on a Unix socket; without it httpx reads the system's certificates for each client."""
_EVIDENCE = TypeAdapter(EvidenceRef)
_KEYS = TypeAdapter(tuple[str, ...])
_CONTRIBUTION = TypeAdapter(ContributionResult)
_STEP = TypeAdapter(StepResult)
_STATUS: TypeAdapter[tuple[StepStatus, StepResult | None]] = TypeAdapter(tuple[StepStatus, StepResult | None])
T = TypeVar("T")


class ControlClient:
    """JSON over the control socket."""

    def __init__(self, socket: Path, clock: Clock, *, reconnect_s: float = RECONNECT_S) -> None:
        """Name the process.

        Args:
            socket: path of its control socket.
            clock: for waiting between tries.
            reconnect_s: how long a lost connection is tried again.
        """
        self._socket = socket
        self._clock = clock
        self._reconnect_s = reconnect_s

    async def get(self, path: str) -> Any:
        """Return the decoded answer of a GET."""
        return await self._request("GET", path, b"", SamplerError)

    async def post(self, path: str, body: object, fault: type[SynthError]) -> Any:
        """Return the decoded answer of a POST.

        Args:
            path: the operation.
            body: is sent as canonical JSON.
            fault: what is raised when the process cannot be reached.

        Raises:
            SynthError: of the class that the process names, or ``fault``.
        """
        return await self._request("POST", path, canonical_bytes(body), fault)

    async def _request(self, method: str, path: str, body: bytes, fault: type[SynthError]) -> Any:
        deadline_s = self._clock.monotonic_s() + self._reconnect_s
        while True:
            try:
                # One client for each request: a run may use several event loops, and connecting is cheap here.
                transport = httpx.AsyncHTTPTransport(uds=str(self._socket), verify=_NO_TLS)
                timeout = httpx.Timeout(None, connect=10.0)
                async with httpx.AsyncClient(transport=transport, base_url="http://model", timeout=timeout) as client:
                    response = await client.request(method, path, content=body)
            except httpx.TransportError as error:
                if self._clock.monotonic_s() >= deadline_s:
                    hint = "is the model process up? see `synth up`"
                    raise fault(
                        f"model process at {self._socket}: {type(error).__name__}: {error}", hint=hint
                    ) from error
                await self._clock.sleep(_RETRY_S)
                continue
            return _decoded(response, path, fault)


class HttpModelService:
    """The ``ModelService`` port."""

    def __init__(self, socket: Path, store: Store, clock: Clock, *, reconnect_s: float = RECONNECT_S) -> None:
        """Name the process.

        Args:
            socket: path of its control socket.
            store: where it publishes evidence.
            clock: for waiting between tries.
            reconnect_s: how long a lost connection is tried again.
        """
        self._client = ControlClient(socket, clock, reconnect_s=reconnect_s)
        self._store = store

    async def serve(self, version: PolicyVersion) -> None:
        """Make a version answerable; idempotent."""
        await self._client.post("/serve", version, SamplerError)

    async def publish(self, trial_id: str) -> EvidenceRef:
        """Close a trial and publish its evidence.

        Raises:
            SamplerError: the platform left an agent without an answer: the trial says nothing about the agent.
        """
        return _read(_EVIDENCE, await self._client.post(f"/evidence/{trial_id}/publish", {}, SamplerError))

    async def read(self, ref: EvidenceRef) -> tuple[Interaction, ...]:
        """Return published interactions."""
        return decode_trial(await asyncio.to_thread(self._store.get, ref.object))

    async def read_calls(self, ref: EvidenceRef) -> tuple[TokenCall, ...]:
        """Return the same as arrays.

        Raises:
            EvidenceError: the object cannot be read, or its counts are not those of ``ref``.
        """
        return await asyncio.to_thread(lambda: decode_calls(self._store.get(ref.object), ref))

    async def status(self) -> Mapping[str, Json]:
        """Return what the process serves and its figures."""
        return await self._client.get("/status")


class HttpTrainer:
    """The ``Trainer`` port."""

    def __init__(self, socket: Path, clock: Clock, *, reconnect_s: float = RECONNECT_S) -> None:
        """Name the process.

        Args:
            socket: path of its control socket.
            clock: for waiting between tries.
            reconnect_s: how long a lost connection is tried again.
        """
        self._client = ControlClient(socket, clock, reconnect_s=reconnect_s)

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Bring the run to ``state``."""
        await self._call("open", {"run": run, "state": state})

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Open an update or return to it."""
        return _read(_KEYS, await self._call("begin_update", {"run": run, "update_id": update_id}))

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Add one contribution."""
        answer = await self._call("forward_backward", {"run": run, "contribution": contribution})
        return _read(_CONTRIBUTION, answer)

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step once over exactly ``keys``."""
        return _read(_STEP, await self._call("optim_step", {"run": run, "update_id": update_id, "keys": keys}))

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Say what is known of a step."""
        return _read(_STATUS, await self._call("step_status", {"run": run, "update_id": update_id}))

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop an open update."""
        await self._call("abandon_update", {"run": run, "update_id": update_id})

    async def _call(self, operation: str, body: object) -> Any:
        return await self._client.post(f"/trainer/{operation}", body, TrainerError)


def _decoded(response: httpx.Response, path: str, fault: type[SynthError]) -> Any:
    with boundary(fault, f"answer of the model process to {path}"):
        body = json.loads(response.content)
        if not response.is_success:
            raise error_from(body["error"], fault)
        return body


def error_from(body: Mapping[str, str], fault: type[SynthError]) -> SynthError:
    """Return the error that the process raised; ``fault`` when its class is not one of ours."""
    kind = getattr(errors, body["class"], fault)
    if not (isinstance(kind, type) and issubclass(kind, SynthError)):
        kind = fault
    return kind(body["message"], hint=body["hint"])


def _read(adapter: TypeAdapter[T], value: Any) -> T:
    with boundary(SamplerError, "answer of the model process"):
        return adapter.validate_python(value)
