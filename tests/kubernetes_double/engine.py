"""The Docker engine over its own API, as far as the double's node needs it.

One event loop waits for many containers and programs at once, which the blocking SDK would do in as many threads.

Source: Docker Engine API v1.41; "Attach to a container" for the frames of a stream.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]

_VERSION = "v1.41"
_FRAME = 8
"""Bytes of the head of a frame: stream, three zeros, length."""
_CHUNK = 1 << 16
_SWITCHING = 101


class EngineError(Exception):
    """The engine refuses.

    Args:
        code: HTTP status.
        message: its words.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Engine:
    """A connection to an engine; it belongs to the loop that made it.

    Args:
        url: ``unix:///PATH`` or ``tcp://HOST:PORT``.
    """

    def __init__(self, url: str) -> None:
        import aiohttp

        self._parts = urlsplit(url)
        self._is_local = self._parts.scheme == "unix"
        self._base = "http://engine" if self._is_local else f"http://{self._parts.netloc}"
        connector = aiohttp.UnixConnector(path=self._parts.path, limit=0) if self._is_local else None
        self._session = aiohttp.ClientSession(
            connector=connector or aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | bytes | None = None,
        /,
        *,
        absent: Sequence[int] = (),
        **query: str,
    ) -> Any:
        """Return the answer's JSON, None for an empty one and for statuses that mean that there is nothing.

        Raises:
            EngineError: any other status that is no success.
        """
        data = json.dumps(body) if isinstance(body, dict) else body
        kind = {"Content-Type": "application/json" if isinstance(body, dict) else "application/x-tar"}
        async with self._session.request(
            method, f"{self._base}/{_VERSION}{path}", params=query, data=data, headers=kind if data else {}
        ) as answer:
            text = await answer.text()
            if answer.status in absent:
                return None
            if answer.status >= 400:
                raise EngineError(answer.status, _message(text))
            return json.loads(text) if text.startswith(("{", "[")) else None

    async def lines(self, method: str, path: str, **query: str) -> AsyncIterator[Json]:
        """Yield the objects of an answer that comes bit by bit. Raises EngineError."""
        async with self._session.request(method, f"{self._base}/{_VERSION}{path}", params=query) as answer:
            if answer.status >= 400:
                raise EngineError(answer.status, _message(await answer.text()))
            async for line in answer.content:
                if line.strip():
                    yield json.loads(line)

    async def log(self, container: str, *, follow: bool, tail: str, stamps: bool) -> AsyncIterator[bytes]:
        """Yield what a container wrote, both streams in one. Raises EngineError."""
        query = {"stdout": "1", "stderr": "1", "follow": str(int(follow)), "tail": tail, "timestamps": str(int(stamps))}
        async with self._session.get(f"{self._base}/{_VERSION}/containers/{container}/logs", params=query) as answer:
            if answer.status >= 400:
                raise EngineError(answer.status, _message(await answer.text()))
            async for _, data in frames(answer.content):
                yield data

    @asynccontextmanager
    async def program(
        self, exec_id: str, *, is_tty: bool
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Start a program that was made with ``/exec`` and open its streams. Raises EngineError."""
        reader, writer = await self._connected()
        try:
            body = json.dumps({"Detach": False, "Tty": is_tty}).encode()
            head = (
                f"POST /{_VERSION}/exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\n"
                f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            first = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace")
            code = int(first.split(" ", 2)[1])
            if code != _SWITCHING:
                raise EngineError(code, _message((await reader.read(_CHUNK)).decode(errors="replace")))
            yield reader, writer
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._is_local:
            return await asyncio.open_unix_connection(self._parts.path, limit=_CHUNK)
        return await asyncio.open_connection(self._parts.hostname, self._parts.port, limit=_CHUNK)


async def frames(reader: Any) -> AsyncIterator[tuple[int, bytes]]:
    """Yield stream number and bytes of a multiplexed stream, in pieces of bounded size, until it ends."""
    while True:
        try:
            head = await reader.readexactly(_FRAME)
            stream, left = head[0], int.from_bytes(head[4:], "big")
            while left:
                data = await reader.read(min(left, _CHUNK))
                if not data:
                    return
                left -= len(data)
                yield stream, data
        except (asyncio.IncompleteReadError, OSError):
            return


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:500]


def query_of(labels: dict[str, str]) -> str:
    """Return a filter for what carries labels."""
    return json.dumps({"label": [f"{name}={value}" for name, value in labels.items()]})
