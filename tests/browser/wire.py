"""The network between browser and web server: a relay of TCP connections that can be cut and mended."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator


class Wire:
    """Passes bytes on in both directions.

    ``cut`` as when a router dies: nothing is closed, nothing comes through any more, new connections are never
    answered. ``mend`` lets new connections through; one of before is reset as soon as the browser says something on it,
    since the server has given it up meanwhile, and otherwise stays open and dead.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._whole = threading.Event()
        self._whole.set()
        self._open: list[socket.socket] = []
        self._dead: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._start(self._accept)

    def cut(self) -> None:
        self._whole.clear()
        self._dead.update(self._open)

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._whole.set()
        for end in [self._door, *self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
            end.close()

    def _start(self, function: Callable[..., None], *args: socket.socket) -> None:
        threading.Thread(target=function, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:  # closed
                return
            self._open.append(near)
            if not self._whole.is_set():
                self._dead.add(near)
                self._start(self._hear, near, near)
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the server is away
                near.close()
                continue
            self._open.append(far)
            self._start(self._hear, near, far)
            self._start(self._answer, far, near)

    def _hear(self, near: socket.socket, far: socket.socket) -> None:
        """What the browser says."""
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if near in self._dead:
                    self._whole.wait()
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    near.close()
                    return
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if near in self._dead:
                    return
                near.sendall(data)
            if near not in self._dead:
                near.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    yield wire
    wire.close()
