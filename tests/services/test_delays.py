"""Connections that harnesses wait on: none holds a small write back for the acknowledgement of the one before."""

import asyncio
import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.scripted_model import model_process
from tests.fakes.store import MemoryStore

_RELAY = Path("adapters/sandboxes/box/relay.py")


async def test_the_proxys_connections_have_no_nagle_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection that is accepted for the proxy is set so: asyncio does it for named protocols alone."""
    seen: list[int] = []
    loop = asyncio.get_running_loop()
    original = getattr(loop, "_make_socket_transport")  # noqa: B009 - private: where a server's sockets pass

    def noted(sock: socket.socket, *args: Any, **others: Any) -> object:
        made = original(sock, *args, **others)
        if sock.family == socket.AF_INET:
            seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return made

    monkeypatch.setattr(loop, "_make_socket_transport", noted)
    async with model_process(tmp_path, MemoryStore()) as process:
        _, writer = await asyncio.open_connection("127.0.0.1", int(process.url.rpartition(":")[2]))
        writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.close()
    assert len(seen) >= 2, "the client's connection and the server's"
    assert all(seen)


def test_a_relays_connections_have_no_nagle_delay() -> None:
    """The relay in a box sets it on what it accepts."""
    found = importlib.util.spec_from_file_location("relay_under_test", _RELAY)
    assert found is not None
    assert found.loader is not None
    relay = importlib.util.module_from_spec(found)
    found.loader.exec_module(relay)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted = relay.accept(listener)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.close()
