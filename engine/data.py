"""Datasets on the engine's side: read one immutable version, check it, and draw prompts from it in a fixed order.

Invariants: a file that differs from its sha256 is refused before a row of it is used; the order of prompts is a
function of (seed, cursor) alone, so a resumed job continues exactly where its last commit stood.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from engine.spec import DatasetRef, DatasetRow

NumberedRow = tuple[int, DatasetRow]
"""(line of the file counted from 0, row)"""


class DatasetError(ValueError):
    """The dataset cannot be used; the message is for the tenant. Lines are counted from 1 in it."""


@dataclass(frozen=True)
class Dataset:
    """The rows of one dataset version, in file order."""

    train: list[NumberedRow]
    held_out: list[NumberedRow]


def load_dataset(ref: DatasetRef) -> Dataset:
    """Read the file a spec refers to.

    Raises:
        DatasetError: the file is missing or unreadable, its bytes or row counts differ from the reference, or a line
            is not a ``DatasetRow``.
    """
    try:
        content = Path(ref.path).read_bytes()
    except OSError as error:
        raise DatasetError(f"The dataset file {ref.path} cannot be read: {error.strerror}.") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != ref.sha256:
        raise DatasetError(
            f"The dataset file {ref.path} was changed after the job was submitted: its sha256 is {digest}, "
            f"not {ref.sha256}. Upload it as a new version."
        )
    lines = content.split(b"\n")  # not splitlines: U+2028 and the like may stand inside a JSON string
    if not lines[-1]:
        lines.pop()
    dataset = Dataset([], [])
    for number, line in enumerate(lines):
        row = _parse_row(number, line)
        (dataset.train if row.split == "train" else dataset.held_out).append((number, row))
    counts = (len(dataset.train), len(dataset.held_out))
    if counts != (ref.train_rows, ref.held_out_rows):
        raise DatasetError(
            f"The dataset has {counts[0]} training and {counts[1]} held-out rows, but the job was submitted for "
            f"{ref.train_rows} and {ref.held_out_rows}."
        )
    return dataset


def _parse_row(number: int, line: bytes) -> DatasetRow:
    try:
        return DatasetRow.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DatasetError(
            f"Line {number + 1} of the dataset: {where + ': ' if where else ''}{first['msg']}."
        ) from None


def draw(train_rows: int, seed: int, cursor: int, count: int) -> list[int]:
    """Indices into the training rows of the next ``count`` prompts of a job.

    Args:
        train_rows: N, at least 1.
        seed: the job's.
        cursor: prompts drawn so far. Position ``cursor`` lies in epoch ``cursor // N``; every epoch has a permutation
            of its own, so each row is drawn once an epoch.
        count: how many to draw; more than N runs on into the next epochs.

    Returns:
        ``count`` indices in [0, N); the caller's next cursor is ``cursor + count``.
    """
    if train_rows < 1:
        raise ValueError("there are no training rows to draw from")
    return [
        _permutation(train_rows, seed, position // train_rows)[position % train_rows]
        for position in range(cursor, cursor + count)
    ]


@lru_cache(maxsize=64)
def _permutation(rows: int, seed: int, epoch: int) -> array[int]:
    """Rows ordered by a hash of (seed, epoch, row): no library's shuffle can change under a job that resumes."""

    def key(row: int) -> bytes:
        return hashlib.blake2b(b"%d:%d:%d" % (seed, epoch, row), digest_size=16).digest()

    return array("Q", sorted(range(rows), key=key))
