"""From uploaded bytes to dataset rows."""

from __future__ import annotations

from dataclasses import dataclass

from portal.errors import InvalidInput


@dataclass(frozen=True)
class LineError:
    """One fault of one line of an upload."""

    line: int
    """Counted from 1; 0 where the file as a whole is to blame."""
    field: str
    message: str
    excerpt: str = ""
    """Beginning of the offending value."""


class DatasetInvalid(InvalidInput):
    """The upload has faulty lines; nothing was stored.

    ``errors`` holds the first 100 of ``total``.
    """

    code = "dataset_invalid"

    def __init__(self, errors: list[LineError], total: int) -> None:
        super().__init__(f"The dataset was not stored: {total} error(s) in the file.")
        self.errors = errors
        self.total = total
