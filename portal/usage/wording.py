"""Quotas in words, alike on pages, in the API, in webhooks and mails."""

from __future__ import annotations

from django.template.defaultfilters import filesizeformat

from portal.usage.meters import WARNING_FRACTION, Meter
from portal.usage.models import QuotaHold, QuotaKind

LIMIT_NAMES = {
    "max_active_jobs": "active jobs",
    "max_dataset_bytes": "size of one upload",
    "max_dataset_rows": "rows of one dataset version",
    "max_reward_trials_per_day": "reward tests a day",
    "max_queued_jobs": "queued jobs",
    "max_steps_per_job": "steps of one job",
    "max_sampled_tokens": "sampled tokens a month",
    "max_trained_tokens": "trained tokens a month",
    "max_accelerator_seconds": "accelerator-seconds a month",
    "max_storage_bytes": "storage",
    "max_api_requests_per_minute": "API requests a minute",
}


def amount(kind: str, value: float) -> str:
    """``12,345``, bytes as ``1.5 MB``."""
    if kind == QuotaKind.STORAGE_BYTES:
        return str(filesizeformat(value)).replace("\xa0", " ")
    return f"{value:,.0f}"


def limit_in_words(name: str, value: int | None) -> str:
    """Of the limit ``name``: ``12,345``, bytes as ``1.5 MB``, ``no limit``."""
    if value is None:
        return "no limit"
    return amount(QuotaKind.STORAGE_BYTES if name.endswith("_bytes") else "", value)


def describe_used(meter: Meter) -> str:
    """``8,000 of 10,000``. Only for a quota with a limit."""
    assert meter.limit is not None
    return f"{amount(meter.kind, meter.used)} of {amount(meter.kind, meter.limit)}"


def describe_reached(meter: Meter) -> str:
    """Why jobs cannot go on."""
    return f"The quota of {meter.label.lower()} is used up: {describe_used(meter)}."


def describe_warning(meter: Meter) -> str:
    return f"{meter.percent} % of the quota of {meter.label.lower()} is used: {describe_used(meter)}."


def reset_date(meter: Meter) -> str:
    """``1 Dec 2026, 0:00 UTC``; empty for what does not start anew."""
    if meter.resets_at is None:
        return ""
    return f"{meter.resets_at.day} {meter.resets_at:%b %Y}, 0:00 UTC"


def hint_of(meter: Meter) -> str:
    """What to do about a quota that is used up."""
    if meter.resets_at is not None:
        return f"It starts anew on {reset_date(meter)}. The operator can raise it before."
    return "Remove what is no longer needed, or ask the operator for a higher limit."


def describe_next(meter: Meter) -> str:
    """What happens to a job that was paused for it."""
    when = (
        f"on {reset_date(meter)}, or once the operator raises it."
        if meter.resets_at
        else f"once less than {WARNING_FRACTION:.0%} of it is used or the operator raises it; you can resume it as "
        "soon as there is room."
    )
    return f"Every committed step and adapter is kept. It goes on by itself {when}"


NEXT_WHEN_FREE = "It goes on by itself as soon as a place is free."


def describe_release(hold: QuotaHold, meter: Meter) -> str:
    """Why a job that was paused for a quota may go on: a sentence."""
    name = f"The quota of {meter.label.lower()}"
    if meter.limit is None:
        return f"{name} is no longer limited."
    if hold.limit is not None and meter.limit > hold.limit:
        return f"{name} was raised from {amount(meter.kind, hold.limit)} to {amount(meter.kind, meter.limit)}."
    if meter.resets_at is not None:
        return f"{name} has started anew: {describe_used(meter)}."
    return f"{name} has room again: {describe_used(meter)}."


def describe_waiting(release: str, active: Meter) -> str:
    """Why it does not yet."""
    return f"{release} All {active.limit:g} places for active jobs are taken."
