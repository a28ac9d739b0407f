"""Template filters of the job, rollout and adapter pages."""

from __future__ import annotations

from typing import Any

from django import template

from portal.pages.templatetags.ui import FULL_SCORE, duration
from portal.progress.selectors import TimeLeft

register = template.Library()


@register.filter
def time_range(left: TimeLeft) -> str:
    """``TimeLeft(480, 720)`` -> ``8 min 0 s to 12 min``; both ends alike are said once."""
    low, high = duration(left.low), duration(left.high)
    return f"about {low}" if low == high else f"{low} to {high}"


@register.filter
def episode_score(episode: Any) -> str:
    """Colour of a stored episode's score, as ``score_class`` for an event's."""
    if episode.error:
        return "score--error"
    if episode.reward >= FULL_SCORE:
        return "score--full"
    return "score--some" if episode.reward > 0 else "score--none"


@register.filter
def share(value: float) -> str:
    """``0.4231`` -> ``42 %``, and what is above nothing but rounds to it ``< 1 %``."""
    return "< 1\u202f%" if 0 < value < 0.005 else f"{100 * value:.0f}\u202f%"


@register.filter
def coordinate(value: float) -> str:
    """A per cent for SVG, whatever the language."""
    return f"{value:.3f}%"


@register.filter
def clock(seconds: float) -> str:
    """``95`` -> ``1:35``, ``5400`` -> ``1:30:00``, as on the charts' axes; fractions below ten seconds stay."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
