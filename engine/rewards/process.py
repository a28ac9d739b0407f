"""A child process that is spoken to in JSON lines, over one socket that is its stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GRACE_SECONDS = 0.05
ROOT = Path(__file__).resolve().parents[2]


class LineProcess:
    """One process at a time, in a session of its own: started when asked, killed with all its children.

    Invariant: it has nothing of this process's environment, and no descriptor but its end of the socket and stderr.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], max_line: int = 1 << 20) -> None:
        """
        Args:
            max_line: the longest line it may send, in bytes.
        """
        self._command = command
        self._environment = environment
        self._max_line = max_line
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def id(self) -> int | None:
        """The process id, None where none runs."""
        return self._process.pid if self._process else None

    def start(self) -> int:
        """Start the process; does not wait until it is ready. Returns its id."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Not asyncio's subprocess support: it needs a child watcher, which not every event loop and thread has.
            self._process = subprocess.Popen(
                list(self._command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                cwd=ROOT,
                env=dict(self._environment),
                start_new_session=True,
            )
        return self._process.pid

    async def write(self, line: bytes) -> None:
        """Send a line. Raises ConnectionError where the process is gone."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=self._max_line)
        self._streams[1].write(line)

    async def read(self, timeout: float) -> dict[str, Any] | None:
        """The next line, after a ``write``; None where it takes longer than ``timeout`` seconds.

        Raises:
            EOFError, ConnectionError: the process has ended.
            ValueError: the line is too long or no JSON.
        """
        assert self._streams is not None
        reading = asyncio.ensure_future(self._streams[0].readline())
        try:
            done, _ = await asyncio.wait([reading], timeout=timeout)
            if not done:  # this process itself may have been held up, with the answer already here: look once more
                done, _ = await asyncio.wait([reading], timeout=GRACE_SECONDS)
            if not done:
                return None
        finally:
            reading.cancel()
        line = reading.result()
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(line)
        return message

    async def stop(self) -> int:
        """Kill the process with all its children and reap it. Returns its exit code, 0 where none runs."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if self._streams:
            self._streams[1].close()
            self._streams = None
        else:
            self._socket.close()
        return await asyncio.to_thread(process.wait)


def exit_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
