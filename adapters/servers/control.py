"""The control app of the model process: what runs, not boxes, may ask. Served on a Unix socket of mode 0600."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.servers.calls import CallDesk
from domain.errors import (
    AuthorizationError,
    ConfigurationError,
    ConflictError,
    EvidenceError,
    NotFoundError,
    SamplerError,
    SynthError,
    TrainerError,
    boundary,
)
from domain.ports import Contribution, Evidence, Sampler, Trainer, TrainingRun
from domain.records.canonical import canonical_bytes
from domain.records.model import FileEntry, PolicyVersion

_VERSION = TypeAdapter(PolicyVersion)
_RUN = TypeAdapter(TrainingRun)
_STATE = TypeAdapter(tuple[FileEntry, ...])
_CONTRIBUTION = TypeAdapter(Contribution)
_KEYS = TypeAdapter(tuple[str, ...])
_STATUS: tuple[tuple[type[SynthError], int], ...] = (
    (AuthorizationError, 403),
    (ConfigurationError, 400),
    (NotFoundError, 404),
    (ConflictError, 409),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One POST: how its body is read, what it does, and what it raises when it fails in a way of its own."""

    read: Callable[[Any], tuple[Any, ...]]
    run: Callable[..., Awaitable[object]]
    fault: type[SynthError]


def create_control(
    *,
    desk: CallDesk,
    sampler: Sampler,
    evidence: Evidence,
    trainer: Trainer | None = None,
    counters: Callable[[], dict[str, int]] | None = None,
) -> Starlette:
    """Return the ASGI application.

    Args:
        desk: the proxy's calls.
        sampler: loads versions.
        evidence: publishes.
        trainer: learns; None: this process only samples.
        counters: further figures for ``GET /status``.
    """
    posts = {
        "/serve": _Operation(read=lambda body: (_VERSION.validate_python(body),), run=sampler.load, fault=SamplerError)
    }
    if trainer is not None:
        posts.update(_trainer_operations(trainer))

    async def health(_: Request) -> Response:
        return _answer({"ok": True})

    async def status(_: Request) -> Response:
        figures = {**desk.counters, **(counters() if counters is not None else {})}
        return _answer(
            {
                "versions": sampler.versions(),
                "context_tokens": sampler.context_tokens,
                "n_in_flight": desk.n_in_flight,
                "has_trainer": trainer is not None,
                "counters": figures,
            }
        )

    async def publish(request: Request) -> Response:
        return await _guarded(EvidenceError, lambda: _publish(desk, evidence, request.path_params["trial_id"]))

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/status", status, methods=["GET"]),
            Route("/evidence/{trial_id}/publish", publish, methods=["POST"]),
            *(Route(path, _posted(operation), methods=["POST"]) for path, operation in posts.items()),
        ]
    )


async def _publish(desk: CallDesk, evidence: Evidence, trial_id: str) -> object:
    """Close a trial and publish its evidence.

    Raises:
        SamplerError: it is published, but the platform left an agent without an answer.
    """
    fault = await desk.close_trial(trial_id)
    published = await evidence.publish(trial_id)
    desk.forget_trial(trial_id)
    if fault:
        raise SamplerError(f"trial {trial_id}: the model could not answer: {fault}")
    return published


def _trainer_operations(trainer: Trainer) -> dict[str, _Operation]:
    # Learning operations are ordered: one at a time, also when a client lost its connection and asks again.
    turn = asyncio.Lock()

    def ordered(work: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def run(*arguments: Any) -> object:
            async with turn:
                return await work(*arguments)

        return run

    def update(body: Any) -> tuple[Any, ...]:
        return str(body["run"]), str(body["update_id"])

    reads: dict[str, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Awaitable[object]]]] = {
        "open": (lambda b: (_RUN.validate_python(b["run"]), _STATE.validate_python(b["state"])), trainer.open),
        "begin_update": (update, trainer.begin_update),
        "forward_backward": (
            lambda b: (str(b["run"]), _CONTRIBUTION.validate_python(b["contribution"])),
            trainer.forward_backward,
        ),
        "optim_step": (lambda b: (*update(b), _KEYS.validate_python(b["keys"])), trainer.optim_step),
        "step_status": (update, trainer.step_status),
        "abandon_update": (update, trainer.abandon_update),
    }
    return {
        f"/trainer/{name}": _Operation(read=read, run=ordered(work), fault=TrainerError)
        for name, (read, work) in reads.items()
    }


def _posted(operation: _Operation) -> Callable[[Request], Awaitable[Response]]:
    async def posted(request: Request) -> Response:
        data = await request.body()

        async def work() -> object:
            with boundary(ConfigurationError, f"control request {request.url.path}"):
                arguments = operation.read(json.loads(data))
            return await operation.run(*arguments)

        return await _guarded(operation.fault, work)

    return posted


async def _guarded(fault: type[SynthError], work: Callable[[], Awaitable[object]]) -> Response:
    try:
        with boundary(fault, "model process"):
            return _answer(await work())
    except SynthError as error:
        return _refusal(error)


def _answer(value: object) -> Response:
    return Response(canonical_bytes({} if value is None else value), media_type="application/json")


def _refusal(error: SynthError) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    body = {"error": {"class": type(error).__name__, "message": error.message, "hint": error.hint}}
    return Response(canonical_bytes(body), status, media_type="application/json")
