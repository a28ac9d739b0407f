"""Public data sets that tests read where they are at hand: in ``MARLAAS_TEST_DATA``, else in ``shared/data`` beside the
project's folder. Tests that need one skip where it is absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("MARLAAS_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def find(name: str) -> Path:
    """A file such as ``gsm8k/test.jsonl``. Skips the test where there is none."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not at hand; set MARLAAS_TEST_DATA to the folder of data sets")
    return path


def read_json_lines(name: str) -> list[dict[str, Any]]:
    """The objects of a file; see ``find``."""
    return [json.loads(line) for line in find(name).read_text(encoding="utf-8").splitlines()]
