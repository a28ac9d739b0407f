"""JSON lines, CSV and Parquet as one stream of records.

Invariants: memory stays bounded by ``MAX_LINE_BYTES`` and, for Parquet, by ``BATCH_ROWS`` rows of a row group, whatever
the file's size; every record knows its line (for Parquet its row, counted from 1); what ends the reading is an
``UnreadableFile``, never a record left out silently.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from portal.datasets.parsing import (
    MAX_LINE_BYTES,
    UTF8_BOM,
    UTF16_BOMS,
    RowInvalid,
    iterate_lines,
    load_json,
)

JSONL, CSV, PARQUET = "jsonl", "csv", "parquet"
FORMATS = {JSONL: "JSON lines", CSV: "CSV", PARQUET: "Parquet"}
ENDINGS = {
    ".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET, ".pq": PARQUET
}  # fmt: skip
CHUNK_BYTES = 64 * 1024
BATCH_ROWS = 32
MAX_COLUMNS = 1000
MAX_ROW_GROUP_BYTES = 1 << 30
"""Of a Parquet file, uncompressed: pages are decompressed whole."""

Tick = Callable[[float], None]
"""Told how far the reading is, from 0 to 1."""


@dataclass(frozen=True)
class Record:
    """One row as the file has it, or what is wrong with it."""

    line: int
    data: dict[str, Any] | None
    invalid: RowInvalid | None = None


class UnreadableFile(Exception):
    """Nothing can be read from here on; ``line`` is 0 where the file as a whole is to blame."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def detect_format(path: Path, file_name: str = "") -> str:
    """By content where that is certain, else by the name's ending, else CSV or JSON lines by the first character."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"PAR1"):
        return PARQUET
    ending = Path(file_name.lower().removesuffix(".gz")).suffix
    if ending in ENDINGS and ENDINGS[ending] != PARQUET:
        return ENDINGS[ending]
    text = start.removeprefix(UTF8_BOM).lstrip()
    return JSONL if ending == ".txt" or not text or text[:1] in b"{[" or b"," not in text.split(b"\n")[0] else CSV


def iterate_records(path: Path, format: str, tick: Tick | None = None) -> Iterator[Record]:
    """The file's records in order, blank lines left out. Raises UnreadableFile."""
    tick = tick or _ignore
    if format == PARQUET:
        yield from _parquet_records(path, tick)
        return
    with path.open("rb") as file:
        chunks = _chunks(file, path.stat().st_size, tick)
        yield from _csv_records(chunks) if format == CSV else _json_records(chunks)


def _ignore(fraction: float) -> None:
    pass


def _chunks(file: BinaryIO, size: int, tick: Tick) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
        tick(file.tell() / max(1, size))


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    """``iterate_lines`` without a byte-order mark. Raises UnreadableFile for UTF-16."""
    for number, line in enumerate(iterate_lines(chunks)):
        if number == 0 and line is not None:
            if line.startswith(UTF16_BOMS):
                raise UnreadableFile("The file is UTF-16; save it as UTF-8.")
            line = line.removeprefix(UTF8_BOM)
        yield line


def _too_long() -> RowInvalid:
    return RowInvalid(("", f"is longer than {MAX_LINE_BYTES:,} bytes", None))


# --- JSON lines ------------------------------------------------------------------------------------------------------


def _json_records(chunks: Iterator[bytes]) -> Iterator[Record]:
    first = True
    for number, line in enumerate(_lines(chunks), start=1):
        if line is None:
            yield Record(number, None, _too_long())
            continue
        if not line.strip():
            continue
        if first and line.strip() == b"[":
            raise UnreadableFile("The file is one JSON array; write one object a line, without the brackets.", number)
        first = False
        try:
            yield Record(number, load_json(line))
        except RowInvalid as invalid:
            yield Record(number, None, invalid)


# --- CSV -------------------------------------------------------------------------------------------------------------


class _CsvLines:
    """Lines for ``csv.reader``; a record longer than ``MAX_LINE_BYTES`` has a quote that never closes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._lines = _lines(chunks)
        self.number = 0
        self.start = 1
        self._record_bytes = 0

    def begin_record(self) -> None:
        self.start = self.number + 1
        self._record_bytes = 0

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if line is None:
            raise _too_long()
        self._record_bytes += len(line) + 1
        if self._record_bytes > MAX_LINE_BYTES and self.number > self.start:
            raise UnreadableFile("The quote opened in this row is never closed.", self.start)
        try:
            return line.decode("utf-8") + "\n"
        except UnicodeDecodeError as error:
            message = f"is not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}"
            raise RowInvalid(("", message, None)) from None


def _csv_records(chunks: Iterator[bytes]) -> Iterator[Record]:
    csv.field_size_limit(MAX_LINE_BYTES + 1)  # one setting for the process; nothing else in the portal reads CSV
    lines = _CsvLines(chunks)
    header, delimiter = _csv_header(lines)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin_record()
        try:
            values = next(reader)
        except StopIteration:
            return
        except RowInvalid as invalid:
            yield Record(lines.start, None, invalid)
            continue
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise UnreadableFile("The quote opened in this row is never closed.", lines.start) from None
            yield Record(lines.start, None, RowInvalid(("", f"is not valid CSV: {error}", None)))
            continue
        if len(values) == len(header):
            yield Record(lines.start, dict(zip(header, values, strict=True)))
        elif values:
            message = f"has {len(values)} field{'' if len(values) == 1 else 's'} where the header has {len(header)}"
            yield Record(lines.start, None, RowInvalid(("", message, delimiter.join(values))))


def _csv_header(lines: _CsvLines) -> tuple[list[str], str]:
    try:
        line = next(line for line in lines if line.strip())
    except StopIteration:
        return [], ","
    except RowInvalid as invalid:
        raise UnreadableFile(f"The header {invalid.faults[0][1]}.", lines.number) from None
    delimiter = max(",;\t|", key=line.count)
    try:
        (names,) = csv.reader(io.StringIO(line), delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):
        raise UnreadableFile("The header must be one line of column names.", lines.number) from None
    names = [name.strip() or f"column_{number}" for number, name in enumerate(names, start=1)]
    repeated = next((name for name in names if names.count(name) > 1), None) if len(names) <= MAX_COLUMNS else None
    if repeated is not None:
        raise UnreadableFile(f"The column {repeated!r} appears twice in the header.", lines.number)
    if len(names) > MAX_COLUMNS:
        raise UnreadableFile(f"The header has more than {MAX_COLUMNS} columns.", lines.number)
    return names, delimiter


# --- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet_records(path: Path, tick: Tick) -> Iterator[Record]:
    import pyarrow  # large, and only needed here
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            _check_parquet(file.metadata)
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                for data in batch.to_pylist():
                    number += 1
                    yield _parquet_record(number, data)
                tick(number / max(1, file.metadata.num_rows))
    except (pyarrow.ArrowException, OSError) as error:
        raise UnreadableFile(f"The file is no readable Parquet file: {str(error).splitlines()[0]}") from None


def _check_parquet(metadata: Any) -> None:
    if metadata.num_columns > MAX_COLUMNS:
        raise UnreadableFile(f"The file has more than {MAX_COLUMNS} columns.")
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if sum(group.column(column).total_uncompressed_size for column in range(group.num_columns)) > (
            MAX_ROW_GROUP_BYTES
        ):
            raise UnreadableFile("A row group has more than 1 GiB uncompressed; write it with smaller row groups.")


def _parquet_record(number: int, data: dict[str, Any]) -> Record:
    try:
        plain = {name: _plain(name, value) for name, value in data.items()}
    except RowInvalid as invalid:
        return Record(number, None, invalid)
    return Record(number, plain)


def _plain(field: str, value: Any) -> Any:
    """An Arrow value as JSON has it. Raises RowInvalid."""
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): _plain(f"{field}.{key}", item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(f"{field}.{index}", item) for index, item in enumerate(value)]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | datetime.timedelta() | uuid.UUID():
            return str(value)
        case bytes():
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                raise RowInvalid((field, "holds bytes that are not UTF-8 text", None)) from None
    raise RowInvalid((field, f"has a type that cannot be stored: {type(value).__name__}", None))
