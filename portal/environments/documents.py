"""From an upload to the lines the engine's search tool reads.

Invariants: memory stays bounded whatever is sent; every fault names its line; a line comes out exactly as
``engine.environments.files.Document`` accepts it.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Iterable, Iterator

from portal.errors import FieldError, InvalidInput

MAX_DOCUMENTS = 100_000
"""As in ``engine.environments.files``."""
MAX_LINE_BYTES = 1_000_000
MAX_FAULTS = 20
MAX_TITLE = 300


class DocumentsInvalid(InvalidInput):
    """Nothing was stored; ``fields`` names the faulty lines."""

    code = "documents_invalid"

    def __init__(self, *faults: str) -> None:
        super().__init__(
            "The documents were not stored.",
            fields=[FieldError("file", fault) for fault in faults],
            hint='Send plain text, a document a paragraph, or JSON lines such as {"text": "...", "title": "..."}.',
        )


def read_documents(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Documents of JSON lines, or of plain text: there each paragraph is one.

    What is sent counts as JSON lines where its first character that is no white space is ``{``.
    Raises DocumentsInvalid.
    """
    lines = _lines(chunks)
    first = next((pair for pair in lines if pair[1].strip()), None)
    if first is None:
        return
    parse: Callable[[Iterable[tuple[int, str]]], Iterator[dict[str, str]]]
    parse = _json_lines if first[1].lstrip().startswith("{") else _paragraphs
    for number, document in enumerate(parse(itertools.chain([first], lines)), start=1):
        if number > MAX_DOCUMENTS:
            raise DocumentsInvalid(f"There are more than {MAX_DOCUMENTS:,} documents; leave some out.")
        yield document


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, counted from 1, without line ends."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held, number = "", 1
    try:
        for chunk in chunks:
            held += decoder.decode(chunk)
            *whole, held = held.split("\n")
            for line in whole:
                yield number, line.removesuffix("\r")
                number += 1
            if len(held) > MAX_LINE_BYTES:
                raise DocumentsInvalid(f"Line {number} is longer than {MAX_LINE_BYTES:,} bytes.")
        held += decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise DocumentsInvalid(f"Line {number} or one soon after it is not UTF-8 text.") from None
    if held:
        yield number, held


def _json_lines(lines: Iterable[tuple[int, str]]) -> Iterator[dict[str, str]]:
    faults: list[str] = []
    for number, line in lines:
        if not line.strip():
            continue
        try:
            document = _document(line)
        except ValueError as fault:
            faults.append(f"Line {number}: {fault}.")
            if len(faults) == MAX_FAULTS:
                break
            continue
        if not faults:
            yield document
    if faults:
        raise DocumentsInvalid(*faults)


def _document(line: str) -> dict[str, str]:
    """A line as a document; raises ValueError in plain words."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error.msg} at position {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("must be a JSON object with 'text'")
    text, title = data.get("text"), data.get("title", "")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("'text' must be text that is not empty")
    if not isinstance(title, str) or len(title) > MAX_TITLE:
        raise ValueError(f"'title' must be text of at most {MAX_TITLE} characters")
    return _encodable({"text": text, "title": title} if title else {"text": text})


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[dict[str, str]]:
    held: list[str] = []
    length = 0
    for number, line in lines:
        if line.strip():
            held.append(line)
            length += len(line)
            if length > MAX_LINE_BYTES:
                raise DocumentsInvalid(f"The paragraph that reaches line {number} is longer than {MAX_LINE_BYTES:,}.")
        elif held:
            yield {"text": "\n".join(held)}
            held, length = [], 0
    if held:
        yield {"text": "\n".join(held)}


def _encodable(document: dict[str, str]) -> dict[str, str]:
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair (\\ud800 to \\udfff)") from None
    return document
