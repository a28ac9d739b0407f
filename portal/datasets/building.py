"""From uploaded files to the one file of a dataset version.

Invariants: rows go from file to file one at a time, and what is kept of each in memory is a few numbers; every fault is
written down (``FaultLog``), the first ``MAX_ERRORS`` also in memory; a file under its final name is complete.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tempfile
import uuid
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from portal.datasets.formats import Tick, UnreadableFile, iterate_records
from portal.datasets.mapping import FieldMapping, map_row
from portal.datasets.parsing import MAX_ERRORS, DatasetInvalid, LineError, RowInvalid, excerpt
from portal.datasets.splitting import HELD_OUT, TRAIN, UNDECIDED, assign_splits, prompt_hash
from portal.errors import Conflict

SPLIT_NAMES = {TRAIN: "train", HELD_OUT: "held_out"}
SPLIT_NUMBERS = {"train": TRAIN, "held_out": HELD_OUT, None: UNDECIDED}
HELD_OUT_FILE = "held-out file"
KEEP, DROP, ASK = "keep", "drop", "ask"
DROPPED = -1


@dataclass(frozen=True)
class BuildOptions:
    """What the tenant chose."""

    mapping: FieldMapping | None = None
    """None: the columns are named as in ``DatasetRow``, with ``prompt`` for a single message."""
    held_out_fraction: float = 0.1
    held_out_rows: int | None = None
    """A number of rows instead of a fraction."""
    seed: int = 0
    skip_bad_rows: bool = False
    duplicates: str = KEEP
    """Exact repeats of a row: keep, drop, or ask (raise RepeatsFound)."""
    overlap: str = KEEP
    """Training rows whose prompt is held out too: keep, drop, or ask."""


@dataclass(frozen=True)
class Source:
    """One file as received."""

    path: Path
    format: str


@dataclass
class Built:
    """A file of rows under its final name, and how it came about."""

    sha256: str
    size_bytes: int
    splits: array[int]
    skipped_rows: int
    duplicates: int
    """Exact repeats found (the first of each not counted), dropped or not."""
    overlap: int
    """Training rows whose prompt is held out too, dropped or not."""

    @property
    def train_rows(self) -> int:
        return self.splits.count(TRAIN)

    @property
    def held_out_rows(self) -> int:
        return self.splits.count(HELD_OUT)


class RepeatsFound(Conflict):
    """The rows are good, but some repeat others: the tenant is to choose."""

    code = "repeats_found"
    upload_id: uuid.UUID | None = None
    """The upload that is kept for another try."""

    def __init__(self, *, duplicates: int, overlap: int, rows: int) -> None:
        found = [
            f"{count:,} {what}"
            for count, what in (
                (duplicates, "exact repeat(s) of a row"),
                (overlap, "training row(s) whose prompt is held out too"),
            )
            if count
        ]
        super().__init__(f"Found {' and '.join(found)}.", hint="Choose whether to keep or to drop them.")
        self.duplicates = duplicates
        self.overlap = overlap
        self.rows = rows


@dataclass
class FaultLog:
    """Where faults go: all into a CSV file, the first ``MAX_ERRORS`` into memory."""

    path: Path
    first: list[LineError] = field(default_factory=list)
    total: int = 0
    bad_rows: int = 0
    _file: IO[str] | None = None

    def add(self, error: LineError) -> None:
        self.total += 1
        if len(self.first) < MAX_ERRORS:
            self.first.append(error)
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
            csv.writer(self._file).writerow(["file", "line", "field", "problem", "value"])
        row = [error.file, error.line or "", error.field, error.message, error.excerpt]
        csv.writer(self._file).writerow([_harmless(value) for value in row])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _harmless(value: Any) -> Any:
    """No cell that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


@dataclass
class _Staged:
    """What is kept in memory of the rows in the staging file."""

    splits: array[int] = field(default_factory=lambda: array("b"))
    prompts: array[int] = field(default_factory=lambda: array("Q"))
    rows: array[int] = field(default_factory=lambda: array("Q"))


def build_file(
    *,
    main: Source,
    held_out: Source | None,
    options: BuildOptions,
    folder: Path,
    max_rows: int,
    faults: Path,
    tick: Tick,
) -> Built:
    """Check and map the files' rows, decide the splits, write the version's file into ``folder``.

    All faults go to the CSV file ``faults``. Raises DatasetInvalid, RepeatsFound.
    """
    faults.unlink(missing_ok=True)
    log = FaultLog(faults)
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as out:
        staged = _Staged()
        try:
            sources = [(main, "", None)] + ([(held_out, HELD_OUT_FILE, HELD_OUT)] if held_out else [])
            for source, label, forced in sources:
                _stage(source, label, forced, out, staged, log=log, options=options, max_rows=max_rows, tick=tick)
            _refuse_unusable(staged, log, options)
        finally:
            log.close()
        duplicates, overlap = _decide(staged, options, by_file=held_out is not None)
        out.seek(0)
        sha256, size_bytes = _store_rows(out, staged.splits, folder)
    splits = array("b", (split for split in staged.splits if split != DROPPED))
    return Built(sha256, size_bytes, splits, log.bad_rows, duplicates, overlap)


def _stage(
    source: Source,
    label: str,
    forced: int | None,
    out: IO[str],
    staged: _Staged,
    *,
    log: FaultLog,
    options: BuildOptions,
    max_rows: int,
    tick: Tick,
) -> None:
    """Write the good rows to ``out``, one JSON a line; note the faults of the others."""
    try:
        for record in iterate_records(source.path, source.format, tick):
            if len(staged.splits) + log.bad_rows == max_rows:
                raise UnreadableFile(f"The file has more than {max_rows:,} rows, your tenant's limit.")
            try:
                if record.data is None:
                    raise record.invalid or RowInvalid(("", "cannot be read", None))
                row = map_row(record.data, options.mapping)
            except RowInvalid as invalid:
                log.bad_rows += 1
                for name, message, value in invalid.faults:
                    log.add(LineError(record.line, name, message, excerpt(value), label))
                continue
            split = SPLIT_NUMBERS[row.get("split")] if forced is None else forced
            staged.splits.append(split)
            staged.prompts.append(prompt_hash(row["messages"], options.seed))
            staged.rows.append(_row_hash(row, split))
            out.write(json.dumps(row) + "\n")
    except UnreadableFile as unreadable:
        log.add(LineError(unreadable.line, "", unreadable.message, file=label))
        raise DatasetInvalid(log.first, log.total) from None


def _row_hash(row: dict[str, Any], split: int) -> int:
    content = json.dumps([row["messages"], row["answer"], split], sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def _refuse_unusable(staged: _Staged, log: FaultLog, options: BuildOptions) -> None:
    good = len(staged.splits)
    if log.total and not (options.skip_bad_rows and good):
        raise DatasetInvalid(log.first, log.total, rows=good)
    message = ""
    if not good:
        message = "The file has no rows. Each should have a prompt, as a JSON object on a line or under a CSV header."
    elif staged.splits.count(HELD_OUT) == good:
        message = "Every row has split 'held_out': there is nothing to train on."
    if message:
        log.add(LineError(0, "", message))
        raise DatasetInvalid(log.first, log.total)


def _decide(staged: _Staged, options: BuildOptions, *, by_file: bool) -> tuple[int, int]:
    """Set every split to TRAIN, HELD_OUT or DROPPED; return how many repeats and overlapping rows were found."""
    repeats = _find_repeats(staged.rows)
    kept = [index for index in range(len(staged.splits)) if options.duplicates != DROP or index not in repeats]
    prompts = array("Q", (staged.prompts[index] for index in kept))
    before = array("b", (staged.splits[index] for index in kept))
    fraction, count = (0.0, None) if by_file else (options.held_out_fraction, options.held_out_rows)
    decided = assign_splits(before, prompts, fraction, count_rows=count)
    held_out = {prompt for prompt, split in zip(prompts, decided, strict=True) if split == HELD_OUT}
    overlapping = [
        place
        for place, (prompt, split) in enumerate(zip(prompts, decided, strict=True))
        if split == TRAIN and prompt in held_out
    ]
    asked_duplicates = len(repeats) if options.duplicates == ASK else 0
    asked_overlap = len(overlapping) if options.overlap == ASK else 0
    if asked_duplicates or asked_overlap:
        raise RepeatsFound(duplicates=asked_duplicates, overlap=asked_overlap, rows=len(staged.splits))
    if options.overlap == DROP:
        for place in overlapping:
            decided[place] = DROPPED
        if TRAIN not in decided:
            message = "Every training row has a prompt that is held out too: dropping them leaves nothing to train on."
            raise DatasetInvalid([LineError(0, "", message)], 1, rows=len(staged.splits))
    staged.splits = array("b", [DROPPED]) * len(staged.splits)
    for place, index in enumerate(kept):
        staged.splits[index] = decided[place]
    return len(repeats), len(overlapping)


def _find_repeats(rows: array[int]) -> set[int]:
    seen: set[int] = set()
    repeats = set()
    for index, row in enumerate(rows):
        if row in seen:
            repeats.add(index)
        seen.add(row)
    return repeats


def _store_rows(staged: Iterable[str], splits: array[int], folder: Path) -> tuple[str, int]:
    """Write the final file, named by the sha256 of its bytes; return that and its size in bytes.

    Written aside, fsynced and renamed: a file under its final name is complete.
    """
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as aside:
        try:
            for encoded in _final_rows(staged, splits):
                digest.update(encoded)
                aside.write(encoded)
            aside.flush()
            os.fsync(aside.fileno())
            size_bytes = aside.tell()
            Path(aside.name).replace(folder / f"{digest.hexdigest()}.jsonl")
        except BaseException:
            Path(aside.name).unlink(missing_ok=True)
            raise
    fsync_folder(folder)
    return digest.hexdigest(), size_bytes


def _final_rows(staged: Iterable[str], splits: array[int]) -> Iterator[bytes]:
    for line, split in zip(staged, splits, strict=True):
        if split != DROPPED:
            row: dict[str, Any] = {**json.loads(line), "split": SPLIT_NAMES[split]}
            yield (json.dumps(row, ensure_ascii=False) + "\n").encode()


def fsync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
