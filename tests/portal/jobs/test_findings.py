"""Findings have a beginning and an end; failed rewards are shown in full."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse

from engine.events import Notice
from portal.jobs.findings import find_findings, first_reward_errors
from portal.jobs.models import JobEvent
from portal.jobs.services import ingest_events
from tests.portal.factories import START, Owned, make_batch, step
from tests.portal.rollouts.test_projection import group


def feed(owned: Owned, *payloads: Any) -> None:
    ingest_events(batch=make_batch(owned.job, *payloads, first=owned.job.last_seq + 1))
    owned.job.refresh_from_db()


def notice(code: str, message: str, *, level: str = "warning", over: bool = False) -> Notice:
    return Notice(level=level, code=code, message=message, hint=f"Try {code}.", over=over)  # type: ignore[arg-type]


def test_what_holds_is_current_and_what_is_over_is_past(ours: Owned) -> None:
    """Seqs 4 to 9: a said, b said, a said again (worse), b over, c (info) said."""
    feed(
        ours,
        notice("a", "Bad."),
        notice("b", "Odd."),
        notice("a", "Worse."),
        notice("b", "Fine again.", level="info", over=True),
        notice("c", "By the way.", level="info"),
    )
    found = find_findings(ours.job)
    assert [(each.code, each.message, each.times, each.since.timestamp()) for each in found.current] == [
        ("a", "Worse.", 2, START + 4),
        ("c", "By the way.", 1, START + 8),
    ]
    (past,) = found.past
    assert (past.message, past.over, past.since.timestamp()) == ("Odd.", "Fine again.", START + 5)
    assert past.until is not None and past.until.timestamp() == START + 7


def test_what_comes_back_is_current_again(ours: Owned) -> None:
    feed(ours, notice("a", "Bad."), notice("a", "Good.", over=True), notice("a", "Bad once more."))
    found = find_findings(ours.job)
    assert [each.message for each in found.current] == ["Bad once more."]
    assert [each.message for each in found.past] == ["Bad."]


def test_an_end_without_a_beginning_is_nothing(ours: Owned) -> None:
    feed(ours, notice("a", "Good.", over=True))
    assert find_findings(ours.job) == find_findings(ours.job).__class__([], [])


def test_a_dropped_batch_is_over_with_the_next_step(ours: Owned) -> None:
    feed(ours, notice("batch_dropped", "No signal."))
    assert [each.code for each in find_findings(ours.job).current] == ["batch_dropped"]
    feed(ours, step(2))
    found = find_findings(ours.job)
    assert (found.current, [each.message for each in found.past]) == ([], ["No signal."])


def test_the_page_puts_what_to_try_on_top(browser: Client, ours: Owned) -> None:
    feed(ours, notice("a", "All answers score alike."), notice("b", "Odd."), notice("b", "Fine.", over=True))
    page = browser.get(reverse("jobs:detail", args=[ours.job.pk])).content.decode()
    assert page.index("What stands out") < page.index("All answers score alike.") < page.index("Learning")
    assert "Try a." in page and "Earlier findings" in page


def test_reward_errors_are_shown_in_full(browser: Client, ours: Owned) -> None:
    payload = {
        "type": "reward_error",
        "step": 2,
        "row": 5,
        "completion": "<i>four</i>",
        "kind": "timed_out",
        "reason": "ValueError: could not convert",
        "details": 'Traceback\n  File "reward.py", line 3',
        "console": "looking at four",
    }
    event = {"job": ours.job, "type": "reward_error", "payload": payload}
    for seq in range(4, 12):
        JobEvent.objects.create(seq=seq, time=ours.job.started_at, **event)
    ours.job.last_seq = 11
    ours.job.save()
    errors = first_reward_errors(ours.job)
    assert (len(errors), errors[0].kind, errors[0].console) == (5, "timed out", "looking at four")
    page = browser.get(reverse("jobs:findings", args=[ours.job.pk])).content.decode()
    for text in ("Timed out: ValueError", "reward.py", "line 3", "looking at four", "&lt;i&gt;four&lt;/i&gt;", "row 5"):
        assert text in page


def test_without_reports_the_failed_episodes_stand_in(browser: Client, ours: Owned) -> None:
    feed(ours, group(2, 0.5), group(2, 0.0, 1.0, error=True), step(2, reward_errors=3))
    (error,) = first_reward_errors(ours.job)
    assert (error.reason, error.completion, error.step, error.group_seq) == ("ValueError", "says 0.0", 2, 5)
    page = browser.get(reverse("jobs:findings", args=[ours.job.pk])).content.decode()
    assert "3 so far" in page and reverse("rollouts:group", args=[ours.job.pk, 5]) in page
