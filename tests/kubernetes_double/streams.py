"""Programs and logs of a pod over HTTP: exec on WebSocket channels, with back-pressure, and logs as they come.

Source: Kubernetes ``v4.channel.k8s.io`` and ``v5.channel.k8s.io`` (client-go ``tools/remotecommand``).
"""

import asyncio
import json
from contextlib import suppress

from aiohttp import WSMsgType, web

from tests.kubernetes_double.engine import Engine
from tests.kubernetes_double.state import Refused, Thing

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_CHUNK = 32_768


async def execute(request: web.Request, engine: Engine, pod: Thing, container: str) -> web.StreamResponse:
    """Run a program in a pod and join its streams to a WebSocket.

    Raises:
        Refused: the pod does not run.
    """
    if pod.get("status", {}).get("phase") != "Running":
        raise Refused(400, "BadRequest", f"cannot exec in a stopped container: pod {pod['metadata']['name']}")
    socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    wants_stdin = request.query.get("stdin") in {"1", "true"}
    argv = ["exec", *(["-i"] if wants_stdin else []), container, *request.query.getall("command")]
    process = await engine.open(*argv)
    feeding = asyncio.ensure_future(_feed(socket, process, wants_stdin=wants_stdin))
    try:
        await asyncio.gather(_pump(socket, process.stdout, _STDOUT), _pump(socket, process.stderr, _STDERR))
        await socket.send_bytes(bytes([_STATUS]) + json.dumps(_ended(await process.wait())).encode())
    except (ConnectionError, OSError):
        pass
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await socket.close()
    return socket


async def _pump(socket: web.WebSocketResponse, source: asyncio.StreamReader | None, channel: int) -> None:
    """Send what comes, no faster than the client takes it: ``send_bytes`` waits for the socket to drain."""
    while source is not None and (data := await source.read(_CHUNK)):
        await socket.send_bytes(bytes([channel]) + data)


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process, *, wants_stdin: bool) -> None:
    """Write standard input as it comes, no faster than the program reads it; a client that leaves ends the program."""
    stdin = process.stdin
    if stdin is not None and not wants_stdin:
        stdin.close()
    async for message in socket:
        data = message.data if message.type is WSMsgType.BINARY else b""
        with suppress(OSError, RuntimeError):
            if stdin is not None and wants_stdin and data[:1] == bytes([_STDIN]):
                stdin.write(data[1:])
                await stdin.drain()
            elif stdin is not None and data[:2] == bytes([_CLOSE, _STDIN]):
                stdin.close()
    with suppress(ProcessLookupError):
        process.kill()


def _ended(code: int) -> Thing:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def logs(request: web.Request, engine: Engine, container: str) -> web.StreamResponse:
    """Send what a pod's container wrote, and go on until it ends when asked to follow."""
    follow = ["--follow"] if request.query.get("follow") in {"1", "true"} else []
    tail = ["--tail", request.query["tailLines"]] if "tailLines" in request.query else []
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    process = await engine.open("logs", *follow, *tail, container)
    try:
        await asyncio.gather(*(_copy(response, source) for source in (process.stdout, process.stderr)))
    except (ConnectionError, OSError):
        pass
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return response


async def _copy(response: web.StreamResponse, source: asyncio.StreamReader | None) -> None:
    while source is not None and (data := await source.read(_CHUNK)):
        await response.write(data)
