"""Length and form."""

from __future__ import annotations

import re
from itertools import pairwise

from engine.rewards.graders.source import Source
from engine.spec import Brevity, Format, LengthWindow
from engine.types import Score

SHOWN_PROBLEMS = 3


def brevity(grader: Brevity, source: Source) -> Score:
    room = (grader.limit - len(source.text(grader.input))) / (grader.limit - grader.target)
    return Score(min(max(room, 0.0), 1.0))


def length_window(grader: LengthWindow, source: Source) -> Score:
    text = source.text(grader.input)
    length = len(text.split()) if grader.unit == "words" else len(text)
    beyond = max(grader.minimum - length, length - grader.maximum, 0)
    if not beyond:
        return Score(1.0)
    total = max(1 - beyond / grader.slack, 0.0) if grader.slack else 0.0
    bound = f"fewer than {grader.minimum}" if length < grader.minimum else f"more than {grader.maximum}"
    return Score(total, reason=f"{length} {grader.unit}, {bound}")


def format(grader: Format, source: Source) -> Score:
    text = source.text(grader.input)
    spans = {tag: _tag_span(text, tag) for tag in grader.tags}
    lines = {name: _section_line(text, name) for name in grader.sections}
    checks = [
        *((span is not None, f"<{tag}>...</{tag}> does not stand exactly once") for tag, span in spans.items()),
        *((line is not None, f"there is no section {name!r}") for name, line in lines.items()),
    ]
    if len(spans) > 1:
        found = [span for span in spans.values() if span]
        whole = len(found) == len(spans)
        checks.append((whole and all(a[1] <= b[0] for a, b in pairwise(found)), "the tags are not in order"))
    if len(lines) > 1:
        places = [line for line in lines.values() if line is not None]
        whole = len(places) == len(lines)
        checks.append((whole and all(a < b for a, b in pairwise(places)), "the sections are not in order"))
    if grader.nothing_outside:
        checks.append((not _outside(text, [span for span in spans.values() if span]), "text stands outside the tags"))
    problems = [problem for passed, problem in checks if not passed]
    share = 1 - len(problems) / len(checks)
    total = share if grader.partial_credit else float(not problems)
    return Score(total, reason="; ".join(problems[:SHOWN_PROBLEMS]))


def _tag_span(text: str, tag: str) -> tuple[int, int] | None:
    """Where the tag begins and ends; None where it does not stand exactly once."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    begin, end = text.index(opening), text.index(closing)
    return (begin, end + len(closing)) if begin < end else None


def _section_line(text: str, name: str) -> int | None:
    """Number of the first line that is the section's heading."""
    wanted = _bare(name)
    for number, line in enumerate(text.splitlines()):
        heading = line.strip().lstrip("#").strip().lstrip("*_")
        if _bare(heading) == wanted or _bare(heading.partition(":")[0]) == wanted:
            return number
    return None


def _bare(heading: str) -> str:
    return re.sub(r"[*_:\s]+$", "", heading.strip()).casefold()


def _outside(text: str, spans: list[tuple[int, int]]) -> str:
    place, outside = 0, []
    for begin, end in sorted(spans):
        outside.append(text[place:begin])
        place = max(place, end)
    return "".join([*outside, text[place:]]).strip()
