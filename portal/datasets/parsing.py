"""From uploaded bytes to dataset rows, line by line.

Invariants: memory stays bounded whatever is sent (a line above ``MAX_LINE_BYTES`` is skipped over, never held whole);
every fault names its line; a row comes out exactly as ``engine.spec.DatasetRow`` accepts it.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from engine.spec import DatasetRow
from portal.errors import FieldError, InvalidInput, field_errors

MAX_LINE_BYTES = 1_000_000
MAX_ERRORS = 100
MAX_FAULTS_PER_ROW = 20
EXCERPT_CHARACTERS = 80
UTF8_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class LineError:
    """One fault of one line of an upload."""

    line: int
    """Counted from 1; 0 where the file as a whole is to blame."""
    field: str
    message: str
    excerpt: str = ""
    """Beginning of the offending value."""
    file: str = ""
    """Which file, where there are two."""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, f"line {self.line}" if self.line else "", self.field) if part)
        return (f"{where}: " if where else "") + self.message + (f" (got {self.excerpt})" if self.excerpt else "")


class DatasetInvalid(InvalidInput):
    """The upload has faulty lines; nothing was stored. ``errors`` holds the first ``MAX_ERRORS`` of ``total``."""

    code = "dataset_invalid"
    upload_id: uuid.UUID | None = None
    """The upload that is kept for another try."""

    def __init__(self, errors: list[LineError], total: int, *, rows: int = 0) -> None:
        super().__init__(
            f"The dataset was not stored: {total} error(s) in the file.",
            fields=[FieldError("file", str(error)) for error in errors],
            hint="Each row has 'prompt' or 'messages', and usually 'answer'; 'mapping' says where other names stand.",
        )
        self.errors = errors
        self.total = total
        self.rows = rows
        """How many rows are good; 0 where the file as a whole is to blame."""


class RowInvalid(Exception):
    """Faults of one row: (field, message, offending value)."""

    def __init__(self, *faults: tuple[str, str, Any]) -> None:
        super().__init__(faults)
        self.faults = faults


def iterate_lines(chunks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Split at newlines, line ends removed; None stands for a line above ``MAX_LINE_BYTES``."""
    held = bytearray()
    too_long = False
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            too_long = too_long or len(held) + end - start > MAX_LINE_BYTES
            if not too_long:
                held += chunk[start:end]
            yield None if too_long else bytes(held).removesuffix(b"\r")
            held.clear()
            too_long = False
            start = end + 1
        too_long = too_long or len(held) + len(chunk) - start > MAX_LINE_BYTES
        if too_long:
            held.clear()
        else:
            held += chunk[start:]
    if too_long or held:
        yield None if too_long else bytes(held).removesuffix(b"\r")


def parse_line(line: bytes) -> dict[str, Any]:
    """Return a row as JSON of ``DatasetRow``; ``split`` is left out where the line has none. Raises RowInvalid."""
    return normalise(load_json(line))


def load_json(line: bytes) -> dict[str, Any]:
    """The object a line holds. Raises RowInvalid."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = line[error.start]
        raise RowInvalid(("", f"is not UTF-8: byte 0x{bad:02x} at position {error.start + 1}", None)) from None
    try:
        data = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except json.JSONDecodeError as error:
        message = f"is not valid JSON: {error.msg} at position {error.pos + 1}"
        raise RowInvalid(("", message, text[max(0, error.pos - 20) :])) from None
    except RecursionError:
        raise RowInvalid(("", "is nested too deeply", text)) from None
    except ValueError as error:  # an integer of thousands of digits
        raise RowInvalid(("", f"is not valid JSON: {error}", text)) from None
    if not isinstance(data, dict):
        raise RowInvalid(("", 'must be a JSON object, such as {"prompt": "..."}', data))
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise RowInvalid((repeated, "appears twice in the same object", None))
    return result


def _refuse_constant(name: str) -> float:
    raise RowInvalid(("", f"{name} is not a JSON number; use a finite number, a string or null", None))


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RowInvalid(("", f"the number {text[:40]} is too large", None))
    return value


def normalise(data: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON of ``DatasetRow``; ``split`` is left out where the row has none. Raises RowInvalid."""
    known = {"prompt", "messages", "answer", "metadata", "split"}
    faults: list[tuple[str, str, Any]] = []
    metadata = data.get("metadata") if data.get("metadata") is not None else {}
    others = {key: value for key, value in data.items() if key not in known}
    if not isinstance(metadata, dict):
        faults.append(("metadata", "must be an object", metadata))
        metadata = {}
    faults += [(key, "appears both in 'metadata' and beside it", others[key]) for key in others if key in metadata]
    row: dict[str, Any] = {"metadata": {**metadata, **others}}
    if "split" in data:
        row["split"] = data["split"]
    converters: dict[str, Callable[[dict[str, Any]], Any]] = {"messages": _messages, "answer": _answer}
    for name, convert in converters.items():
        try:
            row[name] = convert(data)
        except RowInvalid as error:
            faults += error.faults
    if faults:
        raise RowInvalid(*faults[:MAX_FAULTS_PER_ROW])
    try:
        checked = DatasetRow.model_validate(row)
        result = checked.model_dump(mode="json")
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except ValidationError as invalid:
        found = field_errors(invalid, row)
        listed = found[:MAX_FAULTS_PER_ROW]
        raise RowInvalid(*((error.field, error.message, _value_at(row, error.field)) for error in listed)) from None
    except UnicodeEncodeError:
        raise RowInvalid(("", "holds half of a surrogate pair (\\ud800 to \\udfff)", None)) from None
    except ValueError:  # JSON inside text
        raise RowInvalid(("", "holds a number that is not finite", None)) from None
    if "split" not in data:
        del result["split"]
    return result


def _messages(data: dict[str, Any]) -> list[dict[str, str]]:
    if "prompt" in data and "messages" in data:
        raise RowInvalid(("prompt", "give either 'prompt' or 'messages', not both", None))
    if "messages" in data:
        return data["messages"]  # checked by DatasetRow
    if "prompt" not in data:
        raise RowInvalid(("prompt", "is required (or 'messages')", None))
    prompt = data["prompt"]
    if not isinstance(prompt, str):
        raise RowInvalid(("prompt", "must be text", prompt))
    if not prompt.strip():
        raise RowInvalid(("prompt", "is empty", None))
    return [{"role": "user", "content": prompt}]


def _answer(data: dict[str, Any]) -> str:
    answer = data.get("answer")
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    raise RowInvalid(("answer", "must be text or a number", answer))


def _value_at(row: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(row, dict):
            row = row.get(part)
        elif isinstance(row, list) and part.isdigit() and int(part) < len(row):
            row = row[int(part)]
        else:
            return None
    return row


def excerpt(value: Any) -> str:
    """The beginning of a value, on one line."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 3] + "..."
