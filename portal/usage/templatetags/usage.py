"""Filters for quotas and usage on pages."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.defaultfilters import filesizeformat

from portal.usage import wording
from portal.usage.meters import Meter
from portal.usage.models import QuotaChange, QuotaNotice
from portal.usage.wording import limit_in_words

register = template.Library()


@register.filter
def used_of_limit(meter: Meter) -> str:
    """``8,000 of 10,000``, or what is used where there is no limit."""
    return wording.amount(meter.kind, meter.used) if meter.limit is None else wording.describe_used(meter)


@register.filter
def reset_date(meter: Meter) -> str:
    return wording.reset_date(meter)


@register.filter
def described(change: QuotaChange) -> list[str]:
    """``active jobs: 4 → 8``, one for each limit."""
    return [
        f"{wording.LIMIT_NAMES.get(name, name)}: "
        f"{limit_in_words(name, change.before[name])} → {limit_in_words(name, after)}"
        for name, after in change.after.items()
    ]


@register.filter
def noticed(notice: QuotaNotice) -> str:
    """``80,000 of 100,000``, as it stood when the notice was given."""
    return f"{wording.amount(notice.kind, notice.used)} of {wording.amount(notice.kind, notice.limit)}"


@register.filter
def grouped(value: float) -> str:
    """``12345.6`` -> ``12,346``."""
    return f"{value:,.0f}"


@register.filter
def unlocalized(value: float) -> str:
    """A coordinate of an SVG."""
    return f"{value:.2f}"


@register.filter
def size(value: Any) -> str:
    return str(filesizeformat(value))
