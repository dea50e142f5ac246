"""What a box with an allowlist reaches: a forward proxy on a Unix socket that connects to the allowed hosts alone.

The box has no network but its loopback; a relay in its network namespace joins a port there to this socket. Programs
find it by ``HTTP_PROXY`` and its like. Source: RFC 9110, sections 7.1 and 9.3.6.
"""

import asyncio
import ipaddress
import os
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from domain.errors import SandboxError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

PORT = 3129
"""Where the relay answers inside a box."""
_HEAD_BYTES = 65_536
_HEAD_S = 30.0
_CONNECT_S = 30.0
_CHUNK = 65_536
_ACCEPTING = 10
"""Turns of the event loop within which an accepted connection becomes a client; asyncio takes three."""
_CLOSE_S = 1.0
_UNNAMED = 7
"""Columns of a socket without a path."""
_NAMED = 20
"""Refused hosts that are told apart; an agent may ask for any number."""
_HOP = re.compile(rb"(?im)^(?:proxy-connection|proxy-authorization|connection|keep-alive):[^\n]*\n")


class Allowlist:
    """Host names, ``*.wildcards``, addresses and networks. Source: Harbor 0.26 ``models/task/config.py``."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Read the entries; what is no address or network is a name."""
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for host in hosts:
            try:
                self._networks.append(ipaddress.ip_network(host, strict=False))
            except ValueError:
                self._names.add(host.rstrip(".").lower())

    def names(self, host: str) -> bool:
        """Say whether a host is allowed by its name; a wildcard stands for one or more labels before it."""
        labels = host.rstrip(".").lower().split(".")
        wild = ("*." + ".".join(labels[start:]) for start in range(1, len(labels)))
        return ".".join(labels) in self._names or any(name in self._names for name in wild)

    def holds(self, address: Address) -> bool:
        """Say whether an address is allowed by itself."""
        return any(address in network for network in self._networks)


def is_reachable(address: Address, allowlist: Allowlist, *, by_name: bool) -> bool:
    """Say whether a connection may go to an address.

    Never to this machine, nor to where clouds keep their credentials. A name gives no right to a private address: its
    owner could point it anywhere.
    """
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_loopback or plain.is_link_local or plain.is_unspecified or plain.is_multicast:
        return False
    return allowlist.holds(plain) or (by_name and plain.is_global)


async def resolved(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a host, by this machine's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def socket_of(box_id: str) -> Path:
    """Return where a box's proxy listens, in a directory that is this user's alone.

    Raises:
        SandboxError: the directory is somebody else's.
    """
    directory = Path(tempfile.gettempdir()) / f"synth-egress-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise SandboxError(f"{directory} belongs to another user", hint="remove it")
    return directory / f"{box_id[-64:]}.sock"


def sweep_sockets() -> None:
    """Remove the sockets that nobody has open any more: their owner was killed. Source: proc(5), /proc/net/unix."""
    found = list(socket_of("any").parent.glob("*.sock"))  # first: what is made meanwhile is not found, and stays
    rows = (line.split() for line in Path("/proc/net/unix").read_text(errors="replace").splitlines())
    held = {row[-1] for row in rows if len(row) > _UNNAMED}
    for path in found:
        if str(path) not in held:
            path.unlink(missing_ok=True)


class EgressProxy:
    """One box's way out. Start it in the event loop that makes the box."""

    def __init__(self, hosts: Sequence[str], path: Path, *, resolve: Resolve = resolved) -> None:
        """Prepare.

        Args:
            hosts: the allowlist.
            path: of the Unix socket; its directory exists and is nobody else's.
            resolve: name to addresses.
        """
        self._allowlist, self._path, self._resolve = Allowlist(hosts), path, resolve
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._refused: Counter[str] = Counter()

    @property
    def path(self) -> Path:
        """The Unix socket."""
        return self._path

    @property
    def environment(self) -> dict[str, str]:
        """What programs in the box read to find it."""
        url, own = f"http://127.0.0.1:{PORT}", "localhost,127.0.0.1,::1"
        spelled = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": own}
        return spelled | {name.upper(): value for name, value in spelled.items()}

    @property
    def refused(self) -> dict[str, int]:
        """How often which host was asked for in vain; past some hosts, the rest are one."""
        return dict(self._refused)

    async def __aenter__(self) -> Self:
        """Listen; who may use the socket, the directory says."""
        self._server = await asyncio.start_unix_server(self._begin, self._path, limit=_HEAD_BYTES)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End at once, with every connection."""
        if self._server is not None:
            self._path.unlink(missing_ok=True)
            self._server.close()
            for _ in range(_ACCEPTING):
                await asyncio.sleep(0)  # who was accepted already becomes a client first
            clients = dict(self._clients)
            for client, writer in clients.items():
                client.cancel()
                writer.transport.abort()
            await asyncio.gather(*clients, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.ensure_future(self._serve(reader, writer))
        self._clients[client] = writer
        client.add_done_callback(self._clients.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            with suppress(OSError):
                writer.write(_response(502, f"{type(error).__name__}: {error}"))
                await writer.drain()
        finally:
            await _ended(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname or "", parts.port or 80
        addresses = await self._addresses(host, port) if host and parts.scheme in {"", "http"} else []
        if not addresses:
            self._refuse(host)
            writer.write(_response(403, f"{host or target} is not on this task's list of hosts"))
            await writer.drain()
            return
        out_reader, out_writer = await asyncio.wait_for(_connect(addresses, port), _CONNECT_S)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = parts._replace(scheme="", netloc="").geturl() or "/"
                kept = _HOP.sub(b"", rest)
                out_writer.write(f"{method} {path} {version}\r\nConnection: close\r\n".encode("latin-1") + kept)
            await _joined((reader, out_writer), (out_reader, writer))
        finally:
            await _ended(out_writer)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return where a connection may go; empty: nowhere. The name is looked up once, so it cannot change between."""
        try:
            literal = ipaddress.ip_address(host)
        except ValueError:
            if not self._allowlist.names(host):
                return []
            found = await self._resolve(host, port)
            return [item for item in found if is_reachable(ipaddress.ip_address(item), self._allowlist, by_name=True)]
        return [host] if is_reachable(literal, self._allowlist, by_name=False) else []

    def _refuse(self, host: str) -> None:
        name = host[:100] or "?"
        self._refused[name if name in self._refused or len(self._refused) < _NAMED else "others"] += 1


async def _connect(addresses: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers. Raises OSError."""
    problem: OSError = OSError("no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as error:
            problem = error
    raise problem


async def _ended(writer: asyncio.StreamWriter) -> None:
    """Close a connection, at once when its other end does not take what is left."""
    writer.close()
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), _CLOSE_S)
    writer.transport.abort()


async def _joined(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Copy both ways until both have ended."""
    await asyncio.gather(*(_copied(reader, writer) for reader, writer in ways))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _response(status: int, text: str) -> bytes:
    body = f"{text}\n".encode(errors="replace")
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
