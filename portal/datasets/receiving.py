"""Bytes from a request onto the disk, never more than the tenant may send.

Invariant: what counts as received is what the file has; a stream cut at any byte leaves a prefix of what was sent.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from portal.datasets.parsing import DatasetInvalid, LineError
from portal.errors import Conflict

CHUNK_BYTES = 64 * 1024
GZIP_MAGIC = b"\x1f\x8b"


class Readable(Protocol):
    """A file, an upload or the request itself."""

    def read(self, size: int, /) -> bytes: ...


def too_large(limit: int) -> DatasetInvalid:
    """The refusal of a file above the tenant's limit."""
    return DatasetInvalid([LineError(0, "", f"The file is larger than {limit:,} bytes, your tenant's limit.")], 1)


def append_stream(stream: Readable, path: Path, *, limit: int, refuse: Callable[[int], Exception] = too_large) -> int:
    """Append to the file, up to ``limit`` bytes in all; return its size. Raises what ``refuse`` makes above that."""
    with path.open("ab") as file:
        size = file.tell()
        try:
            while chunk := stream.read(CHUNK_BYTES):
                size += len(chunk)
                if size > limit:
                    raise refuse(limit)
                file.write(chunk)
        finally:
            file.flush()
            os.fsync(file.fileno())
    return size


def is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def unpack_gzip(path: Path, *, limit: int, refuse: Callable[[int], Exception] = too_large) -> None:
    """Replace a gzip file by what it holds. Raises DatasetInvalid where that is broken, what ``refuse`` makes above
    ``limit`` bytes."""
    if not is_packed(path):
        return
    aside = path.with_name(f".{path.name}")
    aside.unlink(missing_ok=True)
    try:
        with gzip.open(path) as packed:
            append_stream(packed, aside, limit=limit, refuse=refuse)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DatasetInvalid(
            [LineError(0, "", "The gzip data is broken or cut off; send the file again.")], 1
        ) from None
    else:
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """A lock between processes. Raises Conflict where it is taken and we are not to wait."""
    with path.open("ab") as file:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "This upload is busy with another request.", hint="Wait until that one is answered, then try again."
            ) from None
        yield


def file_size(path: Path) -> int:
    """0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
