"""The way out of a box with an allowlist: who is let through, who is not, and that nothing else is reached."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.sandboxes.egress import Allowlist, EgressProxy, is_reachable, socket_of, sweep_sockets

ENTRIES = ("pypi.org", "*.python.org", "10.1.2.3", "192.0.2.0/24", "2001:db8::/32")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("pypi.org", True),
        ("PyPI.org.", True),
        ("files.pypi.org", False),
        ("evilpypi.org", False),
        ("pypi.org.evil.example", False),
        ("docs.python.org", True),
        ("a.b.python.org", True),
        ("python.org", False),
        ("evilpython.org", False),
        ("10.1.2.3", False),
        ("", False),
    ],
)
def test_names_are_whole_labels(host: str, *, allowed: bool) -> None:
    """A wildcard stands for one or more labels; nothing is allowed by a part of a label."""
    assert Allowlist(ENTRIES).names(host) is allowed


@pytest.mark.parametrize(
    ("address", "by_name", "reachable"),
    [
        ("10.1.2.3", False, True),
        ("10.1.2.4", False, False),
        ("192.0.2.77", False, True),
        ("2001:db8::5", False, True),
        ("1.1.1.1", False, False),
        ("1.1.1.1", True, True),
        ("10.9.9.9", True, False),
        ("192.168.1.1", True, False),
        ("127.0.0.1", True, False),
        ("::1", True, False),
        ("::ffff:127.0.0.1", True, False),
        ("169.254.169.254", True, False),
        ("fe80::1", True, False),
        ("0.0.0.0", True, False),  # noqa: S104 - an address to refuse
    ],
)
def test_a_name_gives_no_right_to_private_addresses(address: str, *, by_name: bool, reachable: bool) -> None:
    """An address is allowed by an entry of its own; this machine and the metadata address never are."""
    assert is_reachable(ipaddress.ip_address(address), Allowlist(ENTRIES), by_name=by_name) is reachable


@pytest.mark.parametrize("entry", ["127.0.0.0/8", "169.254.169.254", "0.0.0.0/0", "::1"])
def test_no_entry_opens_this_machine_or_its_metadata(entry: str) -> None:
    """Not even an explicit one."""
    for address in ("127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
        assert not is_reachable(ipaddress.ip_address(address), Allowlist((entry,)), by_name=True)


def own_address() -> str:
    """Return an address of this machine that is not loopback; without one the test is skipped."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@asynccontextmanager
async def site() -> AsyncGenerator[tuple[str, int, list[bytes]]]:
    """A server on an address of this machine that answers every request, with what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    address = own_address()
    server = await asyncio.start_server(answer, address, 0)
    async with server:
        yield address, server.sockets[0].getsockname()[1], asked


async def ask(path: Path, request: str) -> bytes:
    """Send one request through the proxy's socket and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request.encode())
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_requests_and_tunnels_go_to_allowed_hosts_alone(tmp_path: Path) -> None:
    """A plain request is rewritten, a tunnel is joined; what is refused is counted by host and reaches nobody."""
    async with site() as (address, port, asked):

        async def resolve(host: str, _port: int) -> tuple[str, ...]:
            return {"inside.example": (address,), "rebound.example": ("127.0.0.1",)}.get(host, ())

        path = tmp_path / "out.sock"
        hosts = (address, "inside.example", "rebound.example")
        async with EgressProxy(hosts, path, resolve=resolve) as proxy:
            plain = await ask(
                path,
                f"GET http://{address}:{port}/a?b=1 HTTP/1.1\r\nHost: {address}\r\nProxy-Authorization: x\r\n\r\n",
            )
            assert plain.endswith(b"hello")
            assert asked[0].startswith(b"GET /a?b=1 HTTP/1.1\r\nConnection: close\r\n")
            assert b"Proxy-Authorization" not in asked[0]
            tunnel = await ask(path, f"CONNECT inside.example:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
            assert tunnel.startswith(b"HTTP/1.1 200 ")
            assert tunnel.endswith(b"hello")
            for host in ("other.example", "rebound.example", "127.0.0.1"):
                refused = await ask(path, f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n")
                assert refused.startswith(b"HTTP/1.1 403 "), refused
                assert host.encode() in refused
            assert len(asked) == 2
            assert proxy.refused == {"other.example": 1, "rebound.example": 1, "127.0.0.1": 1}
            assert (await ask(path, "nonsense\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
            assert (await ask(path, f"CONNECT {address}:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
        assert not path.exists()


async def test_the_end_of_a_box_ends_its_connections(tmp_path: Path) -> None:
    """A client that says nothing keeps nobody waiting; refused hosts are told apart up to a number."""
    path = tmp_path / "out.sock"
    async with EgressProxy(("a.example",), path) as proxy:
        reader, writer = await asyncio.open_unix_connection(path)
        for number in range(30):
            await ask(path, f"CONNECT h{number}.example:443 HTTP/1.1\r\n\r\n")
        assert len(proxy.refused) == 21
        assert proxy.refused["others"] == 10
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_sockets_of_dead_owners_are_swept_and_live_ones_stay() -> None:
    """The file of a killed process goes; the one that somebody listens on stays."""
    dead = socket_of("test-egress-dead")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(dead))
    async with EgressProxy((), socket_of("test-egress-live")) as live:
        await asyncio.to_thread(sweep_sockets)
        assert live.path.exists()
    assert not dead.exists()
