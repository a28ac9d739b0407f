"""Spans as bars: where they lie, how much of the time a stage was at work."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from engine.events import Span
from portal.jobs import timeline
from portal.jobs.services import ingest_events
from portal.jobs.timeline import build_timeline
from tests.portal.factories import START, Owned, make_batch


def span(stage: str, start: float, end: float, tokens: int = 0) -> Span:
    return Span(stage=stage, worker="w0", start=START + start, end=START + end, tokens=tokens)  # type: ignore[arg-type]


def feed(owned: Owned, *payloads: Any) -> None:
    ingest_events(batch=make_batch(owned.job, *payloads, first=owned.job.last_seq + 1))
    owned.job.refresh_from_db()


def test_bars_and_shares(ours: Owned) -> None:
    """20 s in all. Rollout at 0-8 and, overlapping, 6-10: 10 s of work. Train at 10-20."""
    feed(ours, span("train", 10, 20, tokens=64), span("rollout", 0, 8), span("rollout", 6, 10))
    built = build_timeline(ours.job)
    assert built is not None
    assert [lane.stage for lane in built.lanes] == ["rollout", "train"]
    rollout, train = built.lanes
    assert [(bar.left, bar.width) for bar in rollout.bars] == [(0, 40), (pytest.approx(30), pytest.approx(20))]
    assert [(bar.left, bar.width) for bar in train.bars] == [(50, 50)]
    assert (rollout.seconds, rollout.share, train.share) == (pytest.approx(10), pytest.approx(0.5), pytest.approx(0.5))
    assert train.bars[0].title == "train on w0: 10.00 s, 64 tokens"
    assert built.ticks[:2] == [(0, 0), (25, 5)] and built.length == 20


def test_no_spans(browser: Client, ours: Owned) -> None:
    assert build_timeline(ours.job) is None
    page = browser.get(reverse("jobs:timeline", args=[ours.job.pk])).content.decode()
    assert "once it has run" in page


def test_older_spans_are_pages_of_their_own(browser: Client, ours: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_SPANS", 2)
    feed(ours, *(span("train", number, number + 1) for number in range(5)))
    latest = build_timeline(ours.job)
    assert latest is not None and (latest.start, latest.is_latest, latest.earlier) == (START + 3, True, 7)
    before = build_timeline(ours.job, before=latest.earlier)
    assert before is not None and (before.start, before.is_latest, before.earlier) == (START + 1, False, 5)
    page = browser.get(reverse("jobs:timeline", args=[ours.job.pk]), {"before": 7}).content.decode()
    assert "Latest" in page and "live:timeline" not in page  # news do not take the older page away
    for nonsense in ("x", "-1", "9" * 30):
        assert browser.get(reverse("jobs:timeline", args=[ours.job.pk]), {"before": nonsense}).status_code == 200
