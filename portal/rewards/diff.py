"""What changed between two versions of a reward, line by line.

A reward is shown as JSON, but for texts of several lines (tenant Python, prompts): those stand as they are, indented.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CONTEXT = 3


@dataclass(frozen=True)
class Line:
    """One line of a comparison."""

    kind: str
    """``same``, ``added``, ``removed``, or ``gap`` where lines that are the same are left out."""
    text: str
    old: int | None = None
    """Its number in the earlier version, counted from 1."""
    new: int | None = None


def compare(earlier: dict[str, Any], later: dict[str, Any]) -> list[Line]:
    """Changed lines with ``CONTEXT`` lines around; none where the two are the same."""
    a, b = list(_readable(earlier)), list(_readable(later))
    matcher = difflib.SequenceMatcher(a=a, b=b, autojunk=False)
    lines: list[Line] = []
    if a == b:
        return lines
    for index, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if index or group[0][1]:
            lines.append(Line("gap", ""))
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                lines += [Line("same", a[a1 + n], a1 + n + 1, b1 + n + 1) for n in range(a2 - a1)]
                continue
            lines += [Line("removed", a[n], old=n + 1) for n in range(a1, a2)]
            lines += [Line("added", b[n], new=n + 1) for n in range(b1, b2)]
    return lines


def _readable(value: Any, indent: str = "", lead: str = "", end: str = "") -> Iterator[str]:
    """JSON with an indent of two, but texts of several lines as they are."""
    inner = f"{indent}  "
    if isinstance(value, str) and "\n" in value:
        yield f'{indent}{lead}"""'
        yield from (f"{inner}{line}" for line in value.rstrip("\n").split("\n"))
        yield f'{indent}"""{end}'
    elif isinstance(value, dict) and value:
        yield f"{indent}{lead}{{"
        for place, (key, item) in enumerate(value.items(), start=1):
            yield from _readable(item, inner, f"{json.dumps(key, ensure_ascii=False)}: ", _comma(place, value))
        yield f"{indent}}}{end}"
    elif isinstance(value, list) and value:
        yield f"{indent}{lead}["
        for place, item in enumerate(value, start=1):
            yield from _readable(item, inner, "", _comma(place, value))
        yield f"{indent}]{end}"
    else:
        yield f"{indent}{lead}{json.dumps(value, ensure_ascii=False)}{end}"


def _comma(place: int, within: Any) -> str:
    return "" if place == len(within) else ","
