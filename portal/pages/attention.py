"""What of a tenant needs someone to look at it, each with what to do: failed jobs, warnings of jobs under way, limits
that are near, uploads and API tokens about to expire.

Invariant: a fixed number of queries, whatever the tenant owns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from portal.datasets.selectors import list_uploads
from portal.jobs.findings import OVER_WITH_THE_NEXT_STEP
from portal.jobs.models import OPEN_STATUSES, Job, JobEvent, Status
from portal.jobs.selectors import list_jobs
from portal.tenants.models import Tenant
from portal.tenants.selectors import list_api_tokens
from portal.usage.meters import Meter
from portal.usage.wording import reset_date

FAILED_SHOWN_FOR = timedelta(days=7)
TOKEN_WARNING = timedelta(days=7)
MAX_OF_A_KIND = 5
MAX_NOTICES = 200


@dataclass(frozen=True)
class Attention:
    """One thing to look at."""

    urgent: bool
    title: str
    text: str
    action: str
    """What the link does."""
    href: str
    when: datetime | None = None
    then: str = ""
    """What happens, or happened, at that time, where the title does not say so."""


def list_attention(tenant: Tenant, user: User, meters: Iterable[Meter]) -> list[Attention]:
    """Urgent ones first; ``meters`` are the tenant's limited ones."""
    found = [
        *_failed_jobs(tenant),
        *_job_warnings(tenant),
        *_limits(meters),
        *_uploads(tenant),
        *_tokens(tenant, user),
    ]
    return sorted(found, key=lambda item: not item.urgent)


def _failed_jobs(tenant: Tenant) -> Iterator[Attention]:
    """Of the last week."""
    since = timezone.now() - FAILED_SHOWN_FOR
    jobs = list_jobs(tenant).filter(status=Status.FAILED, finished_at__gte=since).order_by("-finished_at")
    for job in jobs[:MAX_OF_A_KIND]:
        yield Attention(
            urgent=True,
            title=f"{job.name} failed",
            text=f"{job.state_reason} {job.state_next}".strip(),
            action="See what happened",
            href=reverse("jobs:detail", args=[job.pk]),
            when=job.finished_at,
        )


def _job_warnings(tenant: Tenant) -> Iterator[Attention]:
    """The last word of each warning of the jobs under way; those about a single batch pass by themselves."""
    active = Job.objects.filter(tenant=tenant, status__in=OPEN_STATUSES)
    events = (
        JobEvent.objects.filter(job__in=active, type="notice", seq__lte=F("job__last_seq"))
        .exclude(payload__code__in=list(OVER_WITH_THE_NEXT_STEP))
        .select_related("job")
        .order_by("-seq")[:MAX_NOTICES]
    )
    seen: set[tuple[object, str]] = set()
    shown = 0
    for event in events:
        key = (event.job_id, event.payload["code"])
        if key in seen:
            continue
        seen.add(key)
        if event.payload["level"] != "warning" or event.payload.get("over") or shown == MAX_OF_A_KIND:
            continue
        shown += 1
        yield Attention(
            urgent=False,
            title=event.job.name,
            text=f"{event.payload['message']} {event.payload.get('hint', '')}".strip(),
            action="Look at the job",
            href=reverse("jobs:detail", args=[event.job_id]),
        )


def _limits(meters: Iterable[Meter]) -> Iterator[Attention]:
    for meter in meters:
        if meter.level in ("warning", "reached"):
            reached = "has been reached" if meter.is_reached else f"is used up to {meter.percent} %"
            resets = f"It starts anew on {reset_date(meter)}. " if meter.resets_at else ""
            yield Attention(
                urgent=meter.is_reached and meter.resets_at is not None,
                title=f"The limit on {meter.label[:1].lower()}{meter.label[1:]} {reached}",
                text=f"{resets}Ask the operator for more, or wait for jobs to end.",
                action="See usage and limits",
                href=reverse("usage:overview"),
            )


def _uploads(tenant: Tenant) -> Iterator[Attention]:
    for upload in list_uploads(tenant).filter(complete=True)[:MAX_OF_A_KIND]:
        faults = upload.report.get("total", 0)
        found = f"{faults:,} fault{'' if faults == 1 else 's'} found in it."
        yield Attention(
            urgent=False,
            title=f"The dataset {upload.name} is not stored yet",
            text=found if faults else "Choose its columns and have it checked.",
            action="Go on with it",
            href=reverse("datasets:upload", args=[upload.pk]),
            when=upload.expires_at,
            then="deleted",
        )


def _tokens(tenant: Tenant, user: User) -> Iterator[Attention]:
    """The user's own; an expired one is shown as long as it would have been announced."""
    now = timezone.now()
    tokens = list_api_tokens(tenant, user).filter(
        expires_at__lt=now + TOKEN_WARNING, expires_at__gt=now - TOKEN_WARNING
    )
    for token in tokens.order_by("expires_at")[:MAX_OF_A_KIND]:
        expired = token.expires_at is not None and token.expires_at <= now
        yield Attention(
            urgent=expired,
            title=f"The API token {token.name} {'expired' if expired else 'expires'}",
            text="What uses it stops working; make another and put it in its place.",
            action="API tokens",
            href=reverse("tenants:tokens"),
            when=token.expires_at,
        )
