"""What many sockets show alike: read once, rendered once.

The hub asks only for jobs whose streams have been let in, so nothing here asks for the tenant again.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from portal.jobs.models import Job, JobEvent
from portal.jobs.selectors import summarize_job

PAGE_EVENTS = 200


@dataclass
class JobPage:
    """A job's events after ``after`` up to ``last_seq``, and its state."""

    after: int
    last_seq: int
    summary: dict[str, Any]
    events: list[tuple[int, str, str]]
    """(seq, type, as JSON)"""
    has_spans: bool
    more: bool
    """Events follow that may be shown already."""
    _whole: dict[bool, str] = field(default_factory=dict)

    def fits(self, after: int, *, wants_spans: bool) -> bool:
        """Whether whoever has seen everything up to ``after`` misses nothing between that and this page."""
        return after >= self.after and (self.has_spans or not wants_spans)

    def events_after(self, after: int, *, wants_spans: bool) -> list[str]:
        return [text for seq, type, text in self.events if seq > after and (wants_spans or type != "span")]

    def render(self, after: int, *, wants_spans: bool) -> str:
        """The message to whoever has seen everything up to ``after``; the same text for all of whom that is true."""
        if after != self.after:
            return self._join(self.events_after(after, wants_spans=wants_spans), max(after, self.last_seq))
        if wants_spans not in self._whole:
            found = self.events_after(after, wants_spans=wants_spans)
            self._whole[wants_spans] = self._join(found, self.last_seq)
        return self._whole[wants_spans]

    def _join(self, events: list[str], last_seq: int) -> str:
        return f'{{"events": [{", ".join(events)}], "job": {self._summary_text}, "last_seq": {last_seq}}}'

    @cached_property
    def _summary_text(self) -> str:
        return json.dumps(self.summary)


@dataclass(frozen=True)
class News:
    pages: dict[uuid.UUID, JobPage]
    """Of the jobs that are shown."""
    lists: dict[uuid.UUID, str]
    """Messages for the lists of jobs, by tenant."""


def read_pages(
    woken: Collection[uuid.UUID], shown: Mapping[uuid.UUID, int | None], with_spans: Collection[uuid.UUID]
) -> News:
    """The state of the jobs ``woken`` and, of those ``shown``, the events after the seq given there (None: none, the
    streams read for themselves what was before). A job that is gone is left out."""
    pages, by_tenant = {}, defaultdict(list)
    for job in Job.objects.filter(pk__in=woken).select_related("quota_hold").defer("spec").order_by("pk"):
        summary = summarize_job(job)
        by_tenant[job.tenant_id].append(summary)
        if job.pk in shown:
            after = shown[job.pk]
            pages[job.pk] = _read_page(job, summary, job.last_seq if after is None else after, job.pk in with_spans)
    return News(pages, {tenant_id: json.dumps({"jobs": jobs}) for tenant_id, jobs in by_tenant.items()})


def _read_page(job: Job, summary: dict[str, Any], after: int, with_spans: bool) -> JobPage:
    events: list[tuple[int, str, str]] = []
    if after < job.last_seq:
        rows = JobEvent.objects.filter(job=job.pk, seq__gt=after, seq__lte=job.last_seq).order_by("seq")
        rows = rows if with_spans else rows.exclude(type="span")
        # The payload as the database's own text: nobody here looks into it.
        found = rows.annotate(text=Cast("payload", TextField())).values_list("seq", "type", "time", "text")
        for seq, type, time, text in found[:PAGE_EVENTS]:
            head = f'"seq": {seq}, "type": {json.dumps(type)}, "time": {time.timestamp()!r}'
            events.append((seq, type, f'{{{head}, "payload": {text}}}'))
    more = len(events) == PAGE_EVENTS
    last_seq = events[-1][0] if more else max(after, job.last_seq)
    return JobPage(after, last_seq, summary, events, with_spans, more)
