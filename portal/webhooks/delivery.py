"""Sending what is due: webhooks and mails, from a worker of its own.

Deliveries have a queue and a worker of their own because the events worker is one and takes one thing at a time: an
endpoint that answers slowly would hold up every job's events. The outbox is the table; the queue only wakes. In the
worker one task sends a batch concurrently, each message within ``SECONDS_PER_ATTEMPT`` whatever the receiver does, and
no endpoint has more than ``PER_ENDPOINT`` places in a batch, so that a slow one costs the others nothing but that.

Invariants: an attempt is claimed (``next_attempt_at`` moved on by a conditional update) before it is made, so several
workers never make it at once; a worker that dies leaves the claim to run out, and the message goes out again with the
same id. The database is not held while something is sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from smtplib import SMTPException
from typing import TypeVar

import httpx
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, QuerySet, Window
from django.db.models.functions import RowNumber
from django.urls import reverse
from django.utils import timezone

from engine.spec.addresses import AddressRefused
from engine.spec.sealing import CannotOpen
from portal.audit.services import record_change
from portal.json_values import make_storable
from portal.tenants.models import Role
from portal.webhooks.addresses import make_client
from portal.webhooks.mails import MailText, is_member, mail_members
from portal.webhooks.models import Attempt, Delivery, Endpoint, Mail, Outgoing, State
from portal.webhooks.occurrences import absolute
from portal.webhooks.signing import make_headers

BACKOFF_SECONDS = (5, 30, 120, 900, 3600, 6 * 3600)
"""Between one try and the next, give or take ``JITTER``; after the last there is none."""
JITTER = 0.2
SECONDS_PER_ATTEMPT = 10.0
SECONDS_PER_MAIL = 20.0
BATCH, PER_ENDPOINT = 32, 4
CLAIM = timedelta(seconds=120)
BUSY_SECONDS = 25.0
"""A task that has found work for so long ends; the next look goes on."""
EXCERPT_BYTES = 1024
MAX_ERROR = 500
GONE = 410
KEPT_DAYS = 30
REMOVED_AT_ONCE = 500

OutgoingT = TypeVar("OutgoingT", bound=Outgoing)


@dataclass(frozen=True)
class Outcome:
    """What came of one attempt."""

    duration_ms: int
    status_code: int | None = None
    excerpt: str = ""
    error: str = ""
    """Empty where it arrived."""


def deliver_due(*, seconds: float = BUSY_SECONDS) -> int:
    """Send what is due until nothing is or the time is up; how many attempts were made."""
    made, until = 0, time.monotonic() + seconds
    while True:
        deliveries, mails = _claim_deliveries(), _claim_mails()
        if not deliveries and not mails:
            break
        now = timezone.now()
        posted, mailed = asyncio.run(_send_all(deliveries, mails, now))
        for delivery, outcome in zip(deliveries, posted, strict=True):
            _record_delivery(delivery, now, outcome)
        for mail, error in zip(mails, mailed, strict=True):
            _record_mail(mail, error)
        made += len(deliveries) + len(mails)
        if time.monotonic() >= until:
            break
    remove_old()
    return made


# --- claiming --------------------------------------------------------------------------------------------------------


def _claim_deliveries() -> list[Delivery]:
    place = Window(RowNumber(), partition_by=F("endpoint_id"), order_by=F("next_attempt_at").asc())
    due = _due(Delivery.objects.filter(endpoint__enabled=True)).annotate(place=place).filter(place__lte=PER_ENDPOINT)
    return _claim(due.select_related("endpoint"))


def _claim_mails() -> list[Mail]:
    claimed = _claim(_due(Mail.objects.all()).select_related("user"))
    left = [mail for mail in claimed if not is_member(mail.tenant_id, mail.user_id)]
    for mail in left:  # whoever left the tenant hears nothing of it any more
        _finish(mail, State.FAILED, error="No longer a member.")
    return [mail for mail in claimed if mail not in left]


def _due(rows: QuerySet[OutgoingT]) -> QuerySet[OutgoingT]:
    return rows.filter(state=State.PENDING, next_attempt_at__lte=timezone.now()).order_by("next_attempt_at")


def _claim(due: QuerySet[OutgoingT]) -> list[OutgoingT]:
    """The first of them that no other worker takes at the same moment."""
    claimed = []
    for row in due[:BATCH]:
        free = type(row)._default_manager.filter(pk=row.pk, state=State.PENDING, next_attempt_at=row.next_attempt_at)
        if free.update(next_attempt_at=timezone.now() + CLAIM):
            claimed.append(row)
    return claimed


# --- sending ---------------------------------------------------------------------------------------------------------


async def _send_all(deliveries: list[Delivery], mails: list[Mail], now: datetime) -> tuple[list[Outcome], list[str]]:
    """What came of each webhook, and of each mail the error, empty where it left."""
    async with make_client(allow_private=settings.WEBHOOKS_ALLOW_PRIVATE) as client:
        posted = asyncio.gather(*(_post(client, delivery, now) for delivery in deliveries))
        mailed = asyncio.gather(*(_mail(mail) for mail in mails))
        return await posted, await mailed


async def _post(client: httpx.AsyncClient, delivery: Delivery, now: datetime) -> Outcome:
    """One attempt; never raises."""
    started = time.monotonic()
    status_code, excerpt, error = None, b"", ""
    try:
        secrets = delivery.endpoint.signing_secrets(now)
    except CannotOpen:
        return Outcome(0, error="The endpoint's secret cannot be read any more; make a new one.")
    headers = make_headers(secrets, delivery.message_id, int(now.timestamp()), delivery.body)
    headers["Content-Type"] = "application/json"
    request = client.build_request("POST", delivery.endpoint.url, content=delivery.body.encode(), headers=headers)
    try:
        async with asyncio.timeout(SECONDS_PER_ATTEMPT):
            response = await client.send(request, stream=True)
            try:
                status_code = response.status_code
                excerpt = await _read_beginning(response)
            finally:
                await response.aclose()
        error = _fault_of_answer(response)
    except TimeoutError:
        error = f"No complete answer within {SECONDS_PER_ATTEMPT:g} seconds."
    except AddressRefused as refused:
        error = str(refused)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as fault:
        error = f"The connection failed: {fault or type(fault).__name__}"
    text = make_storable(excerpt.decode(errors="replace"))
    return Outcome(round(1000 * (time.monotonic() - started)), status_code, text, error[:MAX_ERROR])


async def _read_beginning(response: httpx.Response) -> bytes:
    read = b""
    async for chunk in response.aiter_raw(EXCERPT_BYTES):
        read += chunk
        if len(read) >= EXCERPT_BYTES:
            break
    return read[:EXCERPT_BYTES]


def _fault_of_answer(response: httpx.Response) -> str:
    if response.is_success:
        return ""
    if response.is_redirect:
        return f"Answered {response.status_code}, a redirect; redirects are not followed. Set the final address."
    return f"Answered {response.status_code}; only 2xx counts as received."


async def _mail(mail: Mail) -> str:
    """The error, empty where it left."""
    message = EmailMessage(mail.subject, mail.body, settings.DEFAULT_FROM_EMAIL, [mail.user.email])
    try:
        async with asyncio.timeout(SECONDS_PER_MAIL):
            await asyncio.to_thread(message.send)
    except TimeoutError:
        return f"The mail server took longer than {SECONDS_PER_MAIL:g} seconds."
    except (SMTPException, OSError, ValueError) as fault:
        return f"{type(fault).__name__}: {fault}"[:MAX_ERROR]
    return ""


# --- recording -------------------------------------------------------------------------------------------------------


def _record_delivery(delivery: Delivery, at: datetime, outcome: Outcome) -> None:
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().filter(pk=delivery.endpoint_id).first()
        if endpoint is None:  # deleted meanwhile
            return
        Attempt.objects.create(
            delivery=delivery,
            at=at,
            duration_ms=outcome.duration_ms,
            status_code=outcome.status_code,
            excerpt=outcome.excerpt,
            error=outcome.error,
        )
        _advance(delivery, outcome.error)
        _judge_endpoint(endpoint, at, outcome)


def _record_mail(mail: Mail, error: str) -> None:
    mail.error = error
    _advance(mail, error, error=error)


def _advance(row: Outgoing, fault: str, **changes: str) -> None:
    """Arrived, to be tried again after a while, or given up."""
    tries = row.tries + 1
    if not fault:
        _finish(row, State.DELIVERED, tries=tries, **changes)
    elif tries > len(BACKOFF_SECONDS):
        _finish(row, State.FAILED, tries=tries, **changes)
    else:
        wait = BACKOFF_SECONDS[tries - 1] * random.uniform(1 - JITTER, 1 + JITTER)
        pending = type(row)._default_manager.filter(pk=row.pk, state=State.PENDING)
        pending.update(tries=tries, next_attempt_at=timezone.now() + timedelta(seconds=wait), **changes)


def _finish(row: Outgoing, state: State, **changes: object) -> None:
    type(row)._default_manager.filter(pk=row.pk).update(state=state, finished_at=timezone.now(), **changes)


def _judge_endpoint(endpoint: Endpoint, at: datetime, outcome: Outcome) -> None:
    """Remember since when it fails; switch off one that says it is gone or has failed for days."""
    if not outcome.error:
        if endpoint.failing_since is not None:
            endpoint.failing_since = None
            endpoint.save(update_fields=["failing_since"])
        return
    if endpoint.failing_since is None:
        endpoint.failing_since = at
        endpoint.save(update_fields=["failing_since"])
    days = settings.WEBHOOKS_DISABLE_AFTER_DAYS
    if outcome.status_code == GONE:
        _disable(endpoint, "It answered 410 Gone.")
    elif endpoint.enabled and at - endpoint.failing_since >= timedelta(days=days):
        _disable(endpoint, f"Nothing sent there has arrived for {days} days. The last error: {outcome.error}")


def _disable(endpoint: Endpoint, reason: str) -> None:
    endpoint.enabled, endpoint.disabled_reason = False, reason
    endpoint.save(update_fields=["enabled", "disabled_reason"])
    record_change(
        tenant=endpoint.tenant,
        user=None,
        action="webhook.disabled",
        target=endpoint,
        before={"enabled": True},
        after={"enabled": False},
        reason=reason,
    )
    waiting = Delivery.objects.filter(endpoint=endpoint, state=State.PENDING)
    waiting.update(state=State.FAILED, finished_at=timezone.now())
    mail_members(
        tenant=endpoint.tenant,
        about="endpoint.disabled",
        key=f"disabled:{endpoint.pk.hex}:{timezone.now().timestamp():.0f}",
        roles=[Role.OWNER, Role.DEVELOPER],
        text=MailText(
            subject=f"A webhook endpoint of {endpoint.tenant.name} was switched off",
            lines=[endpoint.url, reason, "Repair it, switch it on again, and send again what it missed."],
            link=absolute(reverse("webhooks:detail", args=[endpoint.pk])),
        ),
    )


def remove_old() -> None:
    """Forget what is long over; a piece at a time, so that no look takes long."""
    before = timezone.now() - timedelta(days=KEPT_DAYS)
    models: tuple[type[Outgoing], ...] = (Delivery, Mail)
    for model in models:
        old = model._default_manager.filter(finished_at__lt=before).exclude(state=State.PENDING)
        model._default_manager.filter(pk__in=list(old.values_list("pk", flat=True)[:REMOVED_AT_ONCE])).delete()
