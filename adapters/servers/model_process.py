"""The model process: proxy and control app in one event loop, until SIGTERM."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from domain.errors import ConfigurationError, ConflictError

_SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket in bytes. Source: Linux unix(7), sun_path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the process listens."""

    proxy_socket: Path
    """Bound into boxes; what may be asked there depends on the token alone."""
    control_socket: Path
    """Mode 0600: only this user's runs."""
    host: str = "127.0.0.1"
    port: int = 0
    """Of the proxy on TCP; 0: a free one."""
    metrics: tuple[str, int] | None = None
    """Host and port of figures and health; None: nowhere."""
    port_file: Path | None = None
    """Receives the port number once the process answers, and is removed when it stops."""
    stop_timeout_s: int = 5
    """How long calls under way may take to end after SIGTERM: those who asked are ended as well, and ask again."""


async def serve(
    endpoints: Endpoints,
    *,
    proxy: Starlette,
    control: Starlette,
    metrics: Starlette | None = None,
    on_ready: Callable[[int], None] | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled; then end calls under way and stop.

    Args:
        endpoints: where to listen.
        proxy: the app for harnesses.
        control: the app for runs.
        metrics: the app for whoever watches, where the endpoints have a place for it.
        on_ready: called with the TCP port once both answer.
        on_stop: awaited after the last request: drain calls, close the journal.

    Raises:
        ConflictError: another process answers at one of the sockets.
        ConfigurationError: an address cannot be used.
    """
    with contextlib.ExitStack() as stack:
        listening = [
            (proxy, _proxy_sockets(stack, endpoints)),
            (control, [stack.enter_context(_unix_socket(endpoints.control_socket, 0o600))]),
        ]
        port = int(listening[0][1][1].getsockname()[1])
        if metrics is not None and endpoints.metrics is not None:
            listening.append((metrics, [stack.enter_context(_tcp_socket(*endpoints.metrics))]))
        servers = tuple(_server(app, endpoints) for app, _ in listening)
        tasks = [
            asyncio.create_task(server.serve(sockets=sockets))
            for server, (_, sockets) in zip(servers, listening, strict=True)
        ]
        try:
            with _stopped_by_signals(servers):
                await _started(servers, tasks)
                stack.enter_context(_port_noted(endpoints.port_file, port))
                if on_ready is not None:
                    on_ready(port)
                # Unlike gather, wait leaves the servers alone when it is cancelled: they must close their sockets.
                await asyncio.wait(tasks)
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks, return_exceptions=True)
            if on_stop is not None:
                await on_stop()


def _proxy_sockets(stack: contextlib.ExitStack, endpoints: Endpoints) -> list[socket.socket]:
    """Return the Unix socket that is bound into boxes, and the TCP one."""
    unix = stack.enter_context(_unix_socket(endpoints.proxy_socket, 0o666))
    return [unix, stack.enter_context(_tcp_socket(endpoints.host, endpoints.port))]


class _Server(uvicorn.Server):
    """Leaves signals to :func:`serve`: several servers share this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _server(app: Starlette, endpoints: Endpoints) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=endpoints.stop_timeout_s,
        )
    )


async def _started(servers: tuple[_Server, ...], tasks: list[asyncio.Task[None]]) -> None:
    while not all(server.started for server in servers):
        for task in tasks:
            if task.done():
                await task
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def _stopped_by_signals(servers: tuple[_Server, ...]) -> Generator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    signals = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in signals:
            loop.add_signal_handler(number, stop)
    except (RuntimeError, ValueError):
        # Not the main thread (tests): whoever runs the loop cancels instead.
        yield
        return
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _unix_socket(path: Path, mode: int) -> Generator[socket.socket]:
    """Bind, replacing the socket of a process that is gone."""
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise ConfigurationError(f"socket path {path} is too long", hint="choose a shorter data directory")
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigurationError(f"{path} exists and is no socket")
        if _answers(path):
            raise ConflictError(f"a model process answers at {path}", hint="stop it first")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    inode = 0
    try:
        # Nobody may connect between bind and chmod.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        path.chmod(mode)
        inode = path.stat().st_ino
        yield listener
    except OSError as error:
        raise ConfigurationError(f"socket {path}: {error}") from error
    finally:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == inode:
                path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _tcp_socket(host: str, port: int) -> Generator[socket.socket]:
    # With its protocol named, or asyncio leaves Nagle's delay on, and an answer of two writes takes 40 ms longer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigurationError(f"model process at {host}:{port}: {error}", hint="choose another port") from error
        yield listener
    finally:
        listener.close()


@contextlib.contextmanager
def _port_noted(path: Path | None, port: int) -> Generator[None]:
    if path is None:
        yield
        return
    partial = path.with_suffix(".partial")
    partial.write_text(f"{port}\n")
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
