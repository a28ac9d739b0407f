"""What every part's process begins with: its arguments, its scratch folder, its progress lines."""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZES = ("smoke", "quick", "full")
"""``smoke`` shows that everything runs and means nothing; ``quick`` takes minutes; ``full`` is what is reported."""

_began = time.monotonic()


@dataclass(frozen=True)
class Options:
    """What a part is to do."""

    size: str
    out: Path
    """Folder of results, ``var/bench``."""


def options(description: str | None) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    found = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended on the way out
    return Options(found.size, found.out.resolve())


def say(text: str) -> None:
    """A line of progress, with the time since the part began."""
    print(f"[{time.monotonic() - _began:7.1f} s] {text}", flush=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; its path is short, as unix sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="mbench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something listens on a local port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
