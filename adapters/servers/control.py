"""The control app of the model process: what runs, not boxes, may ask. Served on a Unix socket of mode 0600."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.servers.calls import CallDesk
from domain.errors import (
    AuthorizationError,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    SamplerError,
    SynthError,
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
Operation = Callable[[Any], Awaitable[object]]


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
    control = _Control(desk, sampler, evidence)
    posts: dict[str, Operation] = {"/serve": control.serve}
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
        return await _guarded(control.publish, request.path_params["trial_id"])

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/status", status, methods=["GET"]),
            Route("/evidence/{trial_id}/publish", publish, methods=["POST"]),
            *(Route(path, _posted(operation), methods=["POST"]) for path, operation in posts.items()),
        ]
    )


class _Control:
    def __init__(self, desk: CallDesk, sampler: Sampler, evidence: Evidence) -> None:
        self._desk = desk
        self._sampler = sampler
        self._evidence = evidence

    async def serve(self, body: Any) -> object:
        """Load a policy version."""
        await self._sampler.load(_VERSION.validate_python(body))
        return {}

    async def publish(self, trial_id: str) -> object:
        """Close a trial and publish its evidence.

        Raises:
            SamplerError: it is published, but the platform left an agent without an answer.
        """
        fault = await self._desk.close_trial(trial_id)
        published = await self._evidence.publish(trial_id)
        self._desk.forget_trial(trial_id)
        if fault:
            raise SamplerError(f"trial {trial_id}: the model could not answer: {fault}")
        return published


def _trainer_operations(trainer: Trainer) -> dict[str, Operation]:
    # Learning operations are ordered: one at a time, also when a client lost its connection and asks again.
    turn = asyncio.Lock()

    async def open_run(body: Any) -> object:
        async with turn:
            await trainer.open(_RUN.validate_python(body["run"]), _STATE.validate_python(body["state"]))
        return {}

    async def begin_update(body: Any) -> object:
        async with turn:
            return await trainer.begin_update(str(body["run"]), str(body["update_id"]))

    async def forward_backward(body: Any) -> object:
        contribution = _CONTRIBUTION.validate_python(body["contribution"])
        async with turn:
            return await trainer.forward_backward(str(body["run"]), contribution)

    async def optim_step(body: Any) -> object:
        keys = _KEYS.validate_python(body["keys"])
        async with turn:
            return await trainer.optim_step(str(body["run"]), str(body["update_id"]), keys)

    async def step_status(body: Any) -> object:
        async with turn:
            return await trainer.step_status(str(body["run"]), str(body["update_id"]))

    async def abandon_update(body: Any) -> object:
        async with turn:
            await trainer.abandon_update(str(body["run"]), str(body["update_id"]))
        return {}

    return {
        "/trainer/open": open_run,
        "/trainer/begin_update": begin_update,
        "/trainer/forward_backward": forward_backward,
        "/trainer/optim_step": optim_step,
        "/trainer/step_status": step_status,
        "/trainer/abandon_update": abandon_update,
    }


def _posted(operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def posted(request: Request) -> Response:
        return await _guarded(operation, await request.body())

    return posted


async def _guarded(operation: Operation, argument: bytes | str) -> Response:
    try:
        body = json.loads(argument) if isinstance(argument, bytes) else argument
        return _answer(await operation(body))
    except SynthError as error:
        return _refusal(error)
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        return _refusal(ConfigurationError(f"control request: {type(error).__name__}: {error}"))


def _answer(value: object) -> Response:
    return Response(canonical_bytes(value), media_type="application/json")


def _refusal(error: SynthError) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    body = {"error": {"class": type(error).__name__, "message": error.message, "hint": error.hint}}
    return Response(canonical_bytes(body), status, media_type="application/json")
