"""Programs in a pod over a WebSocket with channels.

The first byte of a message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 a Status object at the end, 4 a terminal's
size; 255 in v5: the channel named by the next byte is closed. Nothing is kept here: what the other side does not take
yet is not read from the program, and the other way round.

Source: Kubernetes ``v4.channel.k8s.io`` and ``v5.channel.k8s.io``, client-go ``tools/remotecommand``.
"""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from tests.kubernetes_double.answers import RefusalError, status
from tests.kubernetes_double.engine import Engine, EngineError, frames

Json = dict[str, Any]

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STATUS, _CLOSE = 0, 1, 3, 255
_CHUNK = 1 << 15
_END_S = 10.0
_NOT_FOUND = b"OCI runtime exec failed"
_NOT_STARTED = {126, 127}


def wanted(request: web.Request) -> Json:
    """Return the program that a request asks for, as the engine is told. Raises RefusalError."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise RefusalError(400, "Upgrade request required")
    offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if not set(offered) & set(PROTOCOLS):
        raise RefusalError(403, f"the client offers {offered}, the server speaks {list(PROTOCOLS)}")
    query = request.query
    flags = {name: query.get(name, "").lower() in {"true", "1"} for name in ("stdin", "stdout", "stderr", "tty")}
    if not query.getall("command", []):
        raise RefusalError(400, "you must specify at least one command for the container")
    if not (flags["stdin"] or flags["stdout"] or flags["stderr"]):
        raise RefusalError(400, "you must specify at least one of stdin, stdout, stderr")
    return {
        "AttachStdin": flags["stdin"],
        "AttachStdout": flags["stdout"],
        "AttachStderr": flags["stderr"] and not flags["tty"],
        "Tty": flags["tty"],
        "Cmd": query.getall("command"),
    }


async def serve(request: web.Request, engine: Engine, container: str, program: Json) -> web.WebSocketResponse:
    """Start a program and carry its streams until it ends or the client goes."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0, timeout=2.0)
    await socket.prepare(request)
    try:
        await socket.send_bytes(bytes([_STDOUT]))  # tells the client that the connection stands
        made: Json = await engine.ask("POST", f"/containers/{container}/exec", program)
        async with engine.program(made["Id"], is_tty=program["Tty"]) as (reader, writer):
            ended = await _carry(socket, reader, writer, program)
        if ended is not None:
            end = await _end(engine, made["Id"], ended)
            await socket.send_bytes(bytes([_STATUS]) + json.dumps(end).encode())
    except EngineError as error:
        words = f"Internal error occurred: error executing command in container: {error.message}"
        await _tell(socket, status(500, words, "InternalError"))
    except (ConnectionError, RuntimeError):
        pass  # the client is gone
    await socket.close()
    return socket


async def _tell(socket: web.WebSocketResponse, end: Json) -> None:
    with suppress(ConnectionError, RuntimeError):
        await socket.send_bytes(bytes([_STATUS]) + json.dumps(end).encode())


async def _carry(
    socket: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, program: Json
) -> bytes | None:
    """Carry both ways; returns why the program was not started, None when the client went before its end."""
    feeding = asyncio.ensure_future(_feed(socket, writer, takes_input=program["AttachStdin"]))
    reading = asyncio.ensure_future(_output(socket, reader, is_tty=program["Tty"]))
    try:
        await asyncio.wait({feeding, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return None
        return reading.result()
    finally:
        for task in (feeding, reading):
            task.cancel()
        await asyncio.wait({feeding, reading})


async def _output(socket: web.WebSocketResponse, reader: asyncio.StreamReader, *, is_tty: bool) -> bytes:
    if is_tty:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(bytes([_STDOUT]) + data)
        return b""
    not_started = b""
    is_first = True
    async for stream, data in frames(reader):
        if is_first and data.startswith(_NOT_FOUND):
            not_started = data
            continue
        is_first = False
        for start in range(0, len(data), _CHUNK):
            await socket.send_bytes(bytes([stream]) + data[start : start + _CHUNK])
    return not_started


async def _feed(socket: web.WebSocketResponse, writer: asyncio.StreamWriter, *, takes_input: bool) -> None:
    """Hand on standard input until the client goes; a program that takes no more of it is no end."""
    is_open = takes_input
    async for message in socket:
        if message.type not in {WSMsgType.BINARY, WSMsgType.TEXT}:
            return
        data: bytes = message.data.encode() if message.type is WSMsgType.TEXT else message.data
        if not data or not is_open:
            continue
        try:
            if data[0] == _STDIN:
                writer.write(data[1:])
                await writer.drain()
            elif data[0] == _CLOSE and socket.ws_protocol == PROTOCOLS[0] and data[1:2] == bytes([_STDIN]):
                is_open = False
                writer.write_eof()
        except OSError:
            is_open = False


async def _end(engine: Engine, exec_id: str, not_started: bytes) -> Json:
    """Return the Status of a program that has closed its outputs."""
    deadline_s = time.monotonic() + _END_S
    found: Json = await engine.ask("GET", f"/exec/{exec_id}/json")
    while found["Running"] and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
        found = await engine.ask("GET", f"/exec/{exec_id}/json")
    code = found["ExitCode"]
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    if code is None or (not_started and code in _NOT_STARTED):
        said = not_started.decode(errors="replace").strip() or "the container has ended"
        words = f"Internal error occurred: error executing command in container: failed to exec in container: {said}"
        return status(500, words, "InternalError")
    cause = {"reason": "ExitCode", "message": str(code)}
    words = f"command terminated with non-zero exit code: exit status {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": words,
        "reason": "NonZeroExitCode",
        "details": {"causes": [cause]},
        "code": 500,
    }
