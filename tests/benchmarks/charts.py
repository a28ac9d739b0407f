"""Charts as inline SVG: no script, no library, colours from the page's style sheet. Pure Python."""

from __future__ import annotations

import math
from html import escape

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 12, 44
STAGE_CLASSES = {"rollout": "c0", "environment": "c1", "train": "c2", "publish": "c3", "wait": "c4"}


def lines(series: dict[str, list[list[float]]], *, x: str, y: str, log_x: bool = False, log_y: bool = False) -> str:
    """One line a series through its [x, y] points."""
    points = [point for of in series.values() for point in of]
    if not points:
        return ""
    across = _Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, log_x, from_zero=False)
    up = _Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, log_y, from_zero=True)
    body = _frame(across, up, x, y)
    for index, of in enumerate(series.values()):
        path = " ".join(f"{across.at(px):.1f},{up.at(py):.1f}" for px, py in sorted(of))
        body += f'<polyline class="line c{index % 8}" points="{path}"/>'
        body += "".join(
            f'<circle class="dot c{index % 8}" cx="{across.at(px):.1f}" cy="{up.at(py):.1f}" r="3">'
            f"<title>{_number(px)}: {_number(py)}</title></circle>"
            for px, py in of
        )
    return _legend(list(series)) + _svg(body, HEIGHT)


def areas(series: dict[str, list[float]], *, seconds: float, y: str = "at work, %") -> str:
    """Shares (0 to 1) in equal parts of ``seconds``, one strip a series."""
    strip, gap = 62, 12
    height = TOP + len(series) * (strip + gap) + BOTTOM
    across = _Axis([0.0, seconds], LEFT, WIDTH - RIGHT, False, from_zero=True)
    body = ""
    for index, values in enumerate(series.values()):
        base = TOP + index * (strip + gap) + strip
        width = (WIDTH - RIGHT - LEFT) / max(1, len(values))
        bars = "".join(
            f'<rect class="fill c{index % 8}" x="{LEFT + place * width:.2f}" y="{base - value * strip:.2f}" '
            f'width="{width:.2f}" height="{value * strip:.2f}"/>'
            for place, value in enumerate(values)
            if value > 0
        )
        body += bars + f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>'
        body += f'<text class="tick" x="{LEFT - 6}" y="{base - strip + 9}" text-anchor="end">100 %</text>'
    body += _ticks_across(across, height - BOTTOM + 4)
    body += _label(f"seconds ({y})", WIDTH / 2, height - 6)
    return _legend(list(series)) + _svg(body, height)


def gantt(rows: list[list], *, seconds: float) -> str:
    """``rows``: [label, [[stage, start, end], ...]], in seconds from 0 to ``seconds``."""
    row = max(5, min(20, 640 // max(1, len(rows))))
    height = TOP + len(rows) * row + BOTTOM
    across = _Axis([0.0, seconds], LEFT + 30, WIDTH - RIGHT, False, from_zero=True)
    body = ""
    for index, (label, spans) in enumerate(rows):
        top = TOP + index * row
        if row >= 9 or index % 4 == 0:
            body += f'<text class="tick" x="{LEFT + 24}" y="{top + row - 1}" text-anchor="end">{escape(label)}</text>'
        for stage, start, end in spans:
            width = max(0.4, across.at(end) - across.at(start))
            body += (
                f'<rect class="fill {STAGE_CLASSES.get(stage, "c5")}" x="{across.at(start):.1f}" y="{top}" '
                f'width="{width:.1f}" height="{row - 1}"><title>{escape(stage)}: {end - start:.2f} s</title></rect>'
            )
    body += _ticks_across(across, height - BOTTOM + 4) + _label("seconds", WIDTH / 2, height - 6)
    shown = [stage for stage in STAGE_CLASSES if any(span[0] == stage for _, spans in rows for span in spans)]
    legend = "".join(f'<span><i class="{STAGE_CLASSES[stage]}"></i>{stage}</span>' for stage in shown)
    return f'<p class="legend">{legend}</p>' + _svg(body, height)


def bars(values: dict[str, float], *, unit: str) -> str:
    """One horizontal bar a value."""
    if not values:
        return ""
    row, start = 24, 230
    most = max(values.values()) or 1
    body = ""
    for index, (label, value) in enumerate(values.items()):
        top = TOP + index * row
        width = max(0.5, (WIDTH - RIGHT - start - 80) * value / most)
        body += f'<text class="tick" x="{start - 8}" y="{top + 14}" text-anchor="end">{escape(label)}</text>'
        body += f'<rect class="fill c0" x="{start}" y="{top + 2}" width="{width:.1f}" height="{row - 8}"/>'
        body += f'<text class="tick" x="{start + width + 6:.1f}" y="{top + 14}">{_number(value)} {escape(unit)}</text>'
    return _svg(body, TOP + len(values) * row + 8)


KINDS = {"lines": lines, "areas": areas, "gantt": gantt, "bars": bars}


class _Axis:
    """From values to pixels."""

    def __init__(self, values: list[float], start: float, end: float, log: bool, *, from_zero: bool) -> None:
        self.log = log and min(values) > 0
        low, high = min(values), max(values)
        if self.log:
            low, high = math.log10(low), math.log10(high)
        elif from_zero:
            low = min(0.0, low)
        if high == low:
            high = low + 1
        self.low, self.high, self._start, self._end = low, high, start, end

    def at(self, value: float) -> float:
        place = (math.log10(value) if self.log else value) - self.low
        return self._start + (self._end - self._start) * place / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            low, high = math.floor(self.low), math.ceil(self.high)
            steps = (1, 2, 5) if high - low <= 3 else (1,)
            values = [step * 10.0**power for power in range(low, high + 1) for step in steps]
            return [v for v in values if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
        first = math.ceil(self.low / step)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _frame(across: _Axis, up: _Axis, x: str, y: str) -> str:
    body = _ticks_across(across, HEIGHT - BOTTOM)
    for value in up.ticks():
        at = up.at(value)
        body += f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
        body += f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    body += _label(x, WIDTH / 2, HEIGHT - 6)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    body += f'<text class="name" transform="rotate(-90 14 {middle})" x="14" y="{middle}">{escape(y)}</text>'
    return body


def _ticks_across(across: _Axis, y: float) -> str:
    return "".join(
        f'<line class="axis" x1="{across.at(value):.1f}" y1="{y}" x2="{across.at(value):.1f}" y2="{y + 4}"/>'
        f'<text class="tick" x="{across.at(value):.1f}" y="{y + 17}" text-anchor="middle">{_number(value)}</text>'
        for value in across.ticks()
    )


def _label(text: str, x: float, y: float) -> str:
    return f'<text class="name" x="{x}" y="{y}">{escape(text)}</text>'


def _legend(names: list[str]) -> str:
    items = "".join(f'<span><i class="c{index % 8}"></i>{escape(name)}</span>' for index, name in enumerate(names))
    return f'<p class="legend">{items}</p>'


def _svg(body: str, height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{body}</svg>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
