"""The adapter store of one job: every committed step as one directory that is whole or absent.

Layout: ``<job_dir>/versions/<n>/`` holds ``adapter_model.safetensors`` and ``adapter_config.json`` (what PEFT and vLLM
load), ``optimizer.safetensors`` and ``manifest.json`` (step, cursor, random state, metrics, sha256 and size of every
file).

Invariants:
- A step commits once. A version is written aside in the same file system, every file and the directory fsynced, then
  renamed into place and the parent fsynced. A crash at any instant leaves the version whole or absent.
- Versions are consecutive: only 0, or the last one plus 1, can be committed, and the last one is never removed. So a
  number is never used twice, whatever was pruned.
- What is read back is checked against the manifest's digests; a version that differs is an error, never skipped,
  because its name may already have been published.
- Nothing is stored but safetensors and JSON.

A commit and a prune hold a lock (flock) on the job's folder, which the kernel drops when the process dies; leftovers
of a dead process are removed by whoever takes the lock next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import FiniteFloat, ValidationError

from engine.spec import Contract
from engine.types import Commit

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"
MANIFEST_FILE = "manifest.json"

KEPT_OPTIMIZERS = 2
"""So many of the latest versions keep their optimizer state and can be trained on."""

_ASIDE = "."
"""Prefix of what is being written or removed; a version's folder is its bare number."""


class StoreError(Exception):
    """The store refuses: the message says what is wrong and where."""


class StoredFile(Contract):
    """Digest and size of one file of a version."""

    sha256: str
    size_bytes: int


class Manifest(Contract):
    """What a version says of itself."""

    format: Literal[1] = 1
    job_id: str
    version: int
    """Equal to ``step``."""
    step: int
    cursor: int
    """Prompts drawn from the dataset so far."""
    rng: dict[str, int]
    """State of the job's random generators: with the cursor, all that the next step's data depends on."""
    rank: int
    metrics: dict[str, FiniteFloat]
    """Of the step that made this version; empty for version 0."""
    files: dict[str, StoredFile]


def commit_version(
    job_dir: str,
    *,
    job_id: str,
    step: int,
    cursor: int,
    rng: dict[str, int],
    rank: int,
    metrics: dict[str, float],
    write_files: Callable[[Path], None],
) -> Commit:
    """Commit ``step`` as version ``step``: 0 in an empty store, else the last version plus 1.

    ``write_files(folder)`` puts the adapter, its config and the optimizer state into an empty folder. If it raises,
    nothing is committed. Raises ``StoreError`` for any other number, and for a version that exists.
    """
    versions = _versions_dir(job_dir)
    if not versions.is_dir():
        versions.mkdir(parents=True, exist_ok=True)
        _fsync(versions.parent)
        _fsync(versions.parent.parent)
    with _locked(versions):
        _remove_leftovers(versions)
        _check_next(versions, step)
        aside = versions / f"{_ASIDE}{step}.writing"
        aside.mkdir()
        write_files(aside)
        files = {path.name: _describe(path) for path in sorted(aside.iterdir())}
        if ADAPTER_FILE not in files or CONFIG_FILE not in files:
            raise StoreError(f"version {step} was written without {ADAPTER_FILE} or {CONFIG_FILE}")
        manifest = Manifest(
            job_id=job_id, version=step, step=step, cursor=cursor, rng=rng, rank=rank, metrics=metrics, files=files
        )
        (aside / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
        for path in aside.iterdir():
            _fsync(path)
        _fsync(aside)
        folder = versions / str(step)
        os.rename(aside, folder)
        _fsync(versions)
    return _commit_of(folder, manifest)


def last_commit(job_dir: str) -> Commit | None:
    """The last committed version, digests checked; None where nothing was committed.

    Half-written leftovers are ignored, and removed unless a commit is under way.
    """
    versions = _versions_dir(job_dir)
    if not versions.is_dir():
        return None
    with _locked(versions, wait=False) as held:
        if held:
            _remove_leftovers(versions)
    numbers = list_versions(job_dir)
    return load_commit(job_dir, numbers[-1]) if numbers else None


def load_commit(job_dir: str, version: int) -> Commit:
    """One committed version, digests checked. Raises ``StoreError`` if it is missing or differs from its manifest."""
    folder = _versions_dir(job_dir) / str(version)
    manifest = read_manifest(job_dir, version)
    for name, expected in manifest.files.items():
        path = folder / name
        if name == OPTIMIZER_FILE and not path.exists():
            continue  # pruned
        if not path.is_file() or _describe(path) != expected:
            raise StoreError(f"{path} is damaged: it differs from its manifest. Restore it from a backup.")
    return _commit_of(folder, manifest)


def read_manifest(job_dir: str, version: int) -> Manifest:
    """The manifest of a committed version. Raises ``StoreError`` if it is missing or unreadable."""
    path = _versions_dir(job_dir) / str(version) / MANIFEST_FILE
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"version {version} is not in {job_dir}: it was never committed, or it was pruned") from None
    except ValidationError as error:
        raise StoreError(f"{path} is damaged: {error}") from None


def list_versions(job_dir: str) -> list[int]:
    """Numbers of the versions present, ascending."""
    versions = _versions_dir(job_dir)
    if not versions.is_dir():
        return []
    return sorted(int(entry.name) for entry in versions.iterdir() if entry.name.isdecimal())


def prune(job_dir: str, keep: Collection[int]) -> list[int]:
    """Remove every version not in ``keep`` but the last two, and the optimizer state of all but the last two.

    Returns the numbers removed by this call. Each removal is one rename, so a crash leaves every version whole or
    gone; call again to finish.
    """
    versions = _versions_dir(job_dir)
    if not versions.is_dir():
        return []
    removed = []
    with _locked(versions):
        _remove_leftovers(versions)
        for version in list_versions(job_dir)[:-KEPT_OPTIMIZERS]:
            if version in keep:
                (versions / str(version) / OPTIMIZER_FILE).unlink(missing_ok=True)
            else:
                os.rename(versions / str(version), versions / f"{_ASIDE}{version}.removed")
                removed.append(version)
        _fsync(versions)
        _remove_leftovers(versions)
    return removed


def version_folder(job_dir: str, version: int) -> Path:
    """Where a version is, or would be."""
    return _versions_dir(job_dir) / str(version)


def _versions_dir(job_dir: str) -> Path:
    return Path(job_dir).absolute() / "versions"


def _check_next(versions: Path, version: int) -> None:
    present = [int(entry.name) for entry in versions.iterdir() if entry.name.isdecimal()]
    following = max(present, default=-1) + 1
    if version < following:
        raise StoreError(f"version {version} was committed already; a version number is never used twice")
    if version > following:
        raise StoreError(f"version {version} cannot be committed: the next one is {following}")


def _commit_of(folder: Path, manifest: Manifest) -> Commit:
    adapter = manifest.files[ADAPTER_FILE]
    return Commit(
        job_id=manifest.job_id,
        version=manifest.version,
        step=manifest.step,
        cursor=manifest.cursor,
        path=str(folder),
        sha256=adapter.sha256,
        size_bytes=adapter.size_bytes,
        rank=manifest.rank,
    )


def _describe(path: Path) -> StoredFile:
    with path.open("rb") as file:
        return StoredFile(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size_bytes=path.stat().st_size)


def _remove_leftovers(versions: Path) -> None:
    for entry in versions.glob(f"{_ASIDE}*"):
        if entry.is_dir():
            shutil.rmtree(entry)


@contextmanager
def _locked(versions: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the store's lock; yields whether it is held (always, with ``wait``)."""
    descriptor = os.open(versions, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            held = False
        yield held
    finally:
        os.close(descriptor)  # drops the lock


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
