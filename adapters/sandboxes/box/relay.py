"""Runs inside a box, or in its network namespace: hands TCP connections of the box's loopback on to the model proxy.

Usage: ``relay.py PORT SOCKET [stay]``. It listens before it goes to the background, so that the command that follows
can connect at once; with ``stay`` it writes a line instead and stays in front. Only C modules are imported: start-up is
what every command with a model pays.
"""

import _socket
import _thread
import os
import sys

_CHUNK = 65536


def pump(source: _socket.socket, sink: _socket.socket) -> None:
    """Copy bytes until ``source`` ends, then end the writing half of ``sink``."""
    try:
        while data := source.recv(_CHUNK):
            view = memoryview(data)
            while view:
                view = view[sink.send(view) :]
    except OSError:
        pass
    try:  # noqa: SIM105 - contextlib would double the start-up
        sink.shutdown(_socket.SHUT_WR)
    except OSError:
        pass


def serve(client: _socket.socket, path: str) -> None:
    """Join one client to the proxy; both ends close when both directions have ended."""
    proxy = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        proxy.connect(path)
        _thread.start_new_thread(pump, (proxy, client))
        pump(client, proxy)
    except OSError:
        client.close()


def accept(listener: _socket.socket) -> _socket.socket:
    """Return the next connection, as ``socket.accept`` does over the same C call, without Nagle's delay.

    An answer whose head and body come apart would wait 40 ms for the client's acknowledgement.
    """
    descriptor = int(getattr(listener, "_accept")()[0])  # noqa: B009 - the stubs leave it out
    client = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fileno=descriptor)
    client.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    return client


def main(port: int, path: str, *, stays: bool) -> None:
    """Listen, go to the background unless it ``stays``, accept forever. The box's end ends it."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    if stays:
        os.write(1, b"listening\n")
    elif os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    while True:
        client = accept(listener)
        _thread.start_new_thread(serve, (client, path))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], stays=sys.argv[3:] == ["stay"])
