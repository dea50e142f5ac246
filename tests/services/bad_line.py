"""A bad line between a harness and the model proxy: it cuts answers, and refuses as an overloaded server does."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_REFUSED = (
    "HTTP/1.1 {status} No\r\ncontent-type: application/json\r\nconnection: close\r\n"
    "{headers}content-length: {size}\r\n\r\n{body}"
)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A request is answered by the line itself."""

    status: int
    kind: str = "overloaded_error"
    retry_after_s: str = ""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The answer ends where ``before`` begins for the ``n``-th time."""

    before: bytes
    n: int = 1


@dataclass(kw_only=True)
class BadLine:
    """What happens to the calls of the model, by number from 0; each fault happens once."""

    faults: dict[int, Refusal | Cut] = field(default_factory=dict[int, Refusal | Cut])
    n_calls: int = 0
    paths: Counter[str] = field(default_factory=Counter[str])
    """How often each was asked."""
    met: list[Refusal | Cut] = field(default_factory=list[Refusal | Cut])

    @asynccontextmanager
    async def between(self, listening: Path, proxy: Path) -> AsyncGenerator[Path]:
        """Listen on one Unix socket for what the other answers; yields the first."""
        listening.parent.mkdir(parents=True, exist_ok=True)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer, proxy)
            writer.close()

        server = await asyncio.start_unix_server(serve, listening)
        listening.chmod(0o666)  # noqa: ASYNC240 - one call of the kernel
        try:
            yield listening
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Path) -> None:
        """Answer one request and close."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        fault: Refusal | Cut | None = None
        self.paths[lines[0].split(" ")[1].partition("?")[0]] += 1
        if " /v1/messages?" in lines[0]:
            fault = self.faults.pop(self.n_calls, None)
            self.n_calls += 1
        if fault is not None:
            self.met.append(fault)
        if isinstance(fault, Refusal):
            writer.write(_refused(fault))
            await writer.drain()
            return
        up, down = await asyncio.open_unix_connection(proxy)
        kept = [line for line in lines if line and not line.lower().startswith("connection:")]
        down.write("\r\n".join([*kept, "connection: close", "", ""]).encode("latin-1") + body)
        await _pass_on(up, writer, fault)
        down.close()


async def _pass_on(up: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut | None) -> None:
    held = b""
    seen = 0
    while chunk := await up.read(65536):
        if cut is None:
            writer.write(chunk)
        else:
            held += chunk
            while (place := held.find(cut.before)) >= 0:
                seen += 1
                if seen == cut.n:
                    writer.write(held[:place])
                    await writer.drain()
                    writer.transport.abort()
                    return
                end = place + len(cut.before)
                writer.write(held[:end])
                held = held[end:]
        await writer.drain()
    writer.write(held)
    await writer.drain()


def _refused(fault: Refusal) -> bytes:
    body = f'{{"type": "error", "error": {{"type": "{fault.kind}", "message": "try later"}}}}'
    headers = f"retry-after: {fault.retry_after_s}\r\n" if fault.retry_after_s else ""
    return _REFUSED.format(status=fault.status, headers=headers, size=len(body), body=body).encode()
