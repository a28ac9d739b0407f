"""Template tags and filters of the portal's pages: icons, badges, form fields, numbers and times for people."""

from __future__ import annotations

from datetime import datetime
from statistics import fmean
from typing import Any

from django import template
from django.forms import BoundField, CheckboxInput
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

NOTHING = "–"
"""Where there is no figure. A template gives a missing key as an empty text."""

FULL_SCORE = 0.999
"""From here an episode counts as correct, as in the engine."""

STATUS_ICONS = {
    "queued": "clock",
    "preparing": "loader-circle",
    "running": "loader-circle",
    "paused": "pause",
    "succeeded": "check",
    "failed": "circle-alert",
    "cancelled": "ban",
}


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    """A decorative icon of the vendored sprite; the words beside it carry the meaning."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"></use></svg>',
        css,
        static("vendor/lucide/icons.svg"),
        name,
    )


@register.simple_tag
def status_badge(status: str, label: str = "") -> SafeString:
    """The state of a job: icon and word, so that colour never stands alone."""
    return format_html(
        '<span class="badge badge--{}">{}{}</span>',
        status,
        icon(STATUS_ICONS.get(status, "circle")),
        label or status.capitalize(),
    )


@register.simple_tag
def copy_button(text: str) -> SafeString:
    return format_html(
        '<button type="button" class="copy" data-copy="{}" aria-label="Copy" title="Copy">{}{}</button>',
        text,
        icon("copy"),
        icon("check"),
    )


@register.simple_tag
def digest(sha256: str) -> SafeString:
    """A sha256: its first characters, the whole of it to copy and on hover."""
    return format_html(
        '<span class="digest"><span title="{}">{}</span>{}</span>', sha256, sha256[:12], copy_button(sha256)
    )


@register.simple_tag
def when(moment: datetime | None, style: str = "relative") -> SafeString | str:
    """A moment; the browser shows it in the viewer's zone, relative to now, as a time of day (``clock``) or with
    its day (``full``)."""
    if moment is None:
        return NOTHING
    utc = timezone.localtime(moment, timezone.get_fixed_timezone(0))
    text = utc.strftime("%H:%M:%S" if style == "clock" else "%d %b %Y %H:%M UTC")
    return format_html('<time datetime="{}" data-format="{}">{}</time>', utc.isoformat(), style, text)


@register.inclusion_tag("includes/field.html")
def field(
    bound: BoundField, css: str = "", label: str = "", suffix: str = "", optional: bool = False
) -> dict[str, Any]:
    """One form field: label, control, help, errors at the field and announced with it."""
    return {
        "field": bound,
        "css": css,
        "label": label or bound.label,
        "suffix": suffix,
        "optional": optional,
        "is_checkbox": isinstance(bound.field.widget, CheckboxInput),
    }


@register.filter
def duration(seconds: float | None) -> str:
    """``3725`` -> ``1 h 2 min``: the two largest units, for reading, not for measuring."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    minutes, seconds_left = divmod(rest, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {seconds_left} s" if minutes < 10 else f"{minutes} min"
    return f"{seconds_left} s"


@register.filter
def milliseconds(value: int) -> str:
    """``380`` -> ``380 ms``, ``10000`` -> ``10.0 s``."""
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


@register.filter
def percent(value: Any) -> str:
    """``0.4231`` -> ``42.3 %``."""
    return NOTHING if value in (None, "") else f"{100 * value:.1f}\u202f%"


@register.filter
def decimal(value: Any, digits: int = 3) -> str:
    return NOTHING if value in (None, "") else f"{value:.{digits}f}"


@register.filter
def compact(value: float | None) -> str:
    """``25600`` -> ``25.6k``: counts that only need their size."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}"


@register.filter
def points(values: list[float]) -> str:
    """Values in [0, 1] as the points of an SVG polyline in a 100 x 24 box; the whole width whatever their number."""
    if len(values) < 2:
        return ""
    return " ".join(
        f"{100 * index / (len(values) - 1):.1f},{23 - 22 * min(1.0, max(0.0, value)):.1f}"
        for index, value in enumerate(values)
    )


@register.filter
def signed(value: float, digits: int = 2) -> str:
    """``0.5`` -> ``+0.50``; a minus sign as wide as the plus."""
    return f"{value:+.{digits}f}".replace("-", "\u2212")


@register.filter
def mean_reward(episodes: list[dict[str, Any]]) -> float | None:
    return fmean(episode["reward"] for episode in episodes) if episodes else None


@register.filter
def score_class(episode: dict[str, Any]) -> str:
    """Colour of an episode's score: an error, nothing, something, full marks."""
    if episode["error"]:
        return "score--error"
    if episode["reward"] >= FULL_SCORE:
        return "score--full"
    return "score--some" if episode["reward"] > 0 else "score--none"
