"""What the job page shows of the events, and how it gets what is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from engine.events import Episode, Notice, RolloutGroup
from portal.jobs import history
from portal.jobs.services import ingest_events
from portal.progress import selectors as progress
from tests.portal.factories import (
    START,
    Owned,
    control,
    evaluation,
    make_batch,
    published,
    rollout,
    span,
    status,
    step,
)


def feed(owned: Owned, *payloads: object) -> None:
    """Add events to the job, after the three it has from the start."""
    ingest_events(batch=make_batch(owned.job, *payloads, first=owned.job.last_seq + 1))  # type: ignore[arg-type]
    owned.job.refresh_from_db()


def page_of(browser: Client, owned: Owned, part: str = "detail") -> str:
    return browser.get(reverse(f"jobs:{part}", args=[owned.job.pk])).content.decode()


def test_the_curve_holds_every_step_and_evaluation(browser: Client, ours: Owned) -> None:
    feed(ours, evaluation(0.125), step(2, accuracy=0.5), evaluation(0.75, 2))
    curve = browser.get(reverse("jobs:detail", args=[ours.job.pk])).context["curve"]
    assert [(p["step"], p["metrics"]["reward_mean"]) for p in curve["steps"]] == [(1, 0.1), (2, 0.2)]
    assert [(p["step"], p["accuracy"]) for p in curve["evaluations"]] == [(0, 0.125), (2, 0.75)]


def test_long_curves_are_thinned_to_about_the_limit(ours: Owned) -> None:
    feed(ours, *(step(number) for number in range(2, 12)))
    assert [point["step"] for point in progress.step_points(ours.job, max_points=4)] == [2, 4, 6, 8, 10, 11]


def test_a_failed_job_says_why_and_what_to_do(browser: Client, ours: Owned) -> None:
    feed(ours, status("failed", "The rewards never varied.", "Choose a reward with part marks."))
    page = page_of(browser, ours)
    assert "The rewards never varied." in page and "Choose a reward with part marks." in page
    assert "cancel-dialog" not in page and 'data-finished="true"' in page
    assert "data-live-state" not in page.partition("<main")[2]


def test_completions_are_shown_as_text(browser: Client, ours: Owned) -> None:
    feed(ours, rollout(2, completion="<script>alert(1)</script> & more"))
    page = page_of(browser, ours)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page and "<script>alert" not in page


def test_an_episode_shows_parts_reason_tokens_and_version(browser: Client, ours: Owned) -> None:
    episode = Episode(
        completion="",
        reward=0.25,
        parts={"right": 0.0, "short": 1.0},
        reason="expected 2",
        error=True,
        advantage=-0.5,
        tokens=17,
        truncated=True,
        adapter_version=3,
    )
    feed(ours, RolloutGroup(step=2, row=0, prompt="1+1?", answer="2", episodes=[episode]))
    page = page_of(browser, ours, "rollouts")
    for text in ("right 0.00", "short 1.00", "expected 2", "17 tokens", "v3", "Cut off", "Grader error", "\u22120.50"):
        assert text in page
    assert "(nothing)" in page


def test_only_rollouts_after_the_marker_are_sent(browser: Client, ours: Owned) -> None:
    feed(ours, rollout(2, "early"), rollout(2, "late"))
    early, late = history.rollout_groups(ours.job)[0][::-1]
    answer = browser.get(reverse("jobs:rollouts", args=[ours.job.pk]), {"after": early.seq})
    assert [event.seq for event in answer.context["groups"]] == [late.seq]
    assert f'data-after="{late.seq}"' in answer.content.decode()
    nothing = browser.get(reverse("jobs:rollouts", args=[ours.job.pk]), {"after": late.seq}).content.decode()
    assert f'data-after="{late.seq}"' in nothing and "<details" not in nothing


def test_a_page_is_told_where_its_rollouts_would_have_a_gap(browser: Client, ours: Owned) -> None:
    feed(ours, *[rollout(2, f"number {n}") for n in range(14)])
    first = history.rollout_groups(ours.job, limit=99)[0][-1].seq
    marker = {
        after: browser.get(reverse("jobs:rollouts", args=[ours.job.pk]), {"after": after}).content.decode()
        for after in (first, first + 1)
    }
    assert 'data-whole="12"' in marker[first], "the second of fourteen is left out"
    assert "data-whole" not in marker[first + 1], "all twelve are there"
    assert "data-whole" not in page_of(browser, ours, "detail"), "nothing stands below"


def test_messages_are_in_plain_words_and_steps_are_none(browser: Client, ours: Owned) -> None:
    notice = Notice(level="warning", code="x", message="No signal in 3 groups.", hint="Try easier prompts.")
    feed(ours, notice, evaluation(0.5), published(ours.job, 2, final=True))
    events = history.messages(ours.job)
    assert [event.type for event in events] == ["adapter", "evaluation", "notice", "status"]
    page = page_of(browser, ours, "messages")
    for text in ("No signal in 3 groups.", "Try easier prompts.", "the base model", "is the job&#x27;s result"):
        assert text.replace("&#x27;", "'") in page.replace("&#x27;", "'")


def test_no_event_above_a_gap_is_shown(browser: Client, ours: Owned) -> None:
    """Its turn comes when the missing one arrives; else a live page would show things out of order."""
    ingest_events(batch=make_batch(ours.job, step(2), first=ours.job.last_seq + 2))
    ours.job.refresh_from_db()
    assert [point["step"] for point in progress.step_points(ours.job)] == [1]


def test_removed_adapters_are_not_offered(browser: Client, ours: Owned) -> None:
    ours.adapter.removed = True
    ours.adapter.save()
    assert reverse("adapters:download", args=[ours.adapter.pk]) not in page_of(browser, ours)
    assert (
        reverse("adapters:download", args=[ours.adapter.pk])
        not in browser.get(reverse("adapters:list")).content.decode()
    )
    gone = browser.get(reverse("adapters:detail", args=[ours.adapter.pk])).content.decode()
    assert "The files are gone" in gone


def test_time_left_is_a_range_of_the_measured_paces(ours: Owned) -> None:
    """Steps took 2, 2, 5, 1, 1 s (sorted 1 1 2 2 5: the 20th percentile is 1, the 80th 2). 4 of 10 to go, half a second
    after the last: 4 x 1 - 0.5 to 4 x 2 - 0.5 s."""
    ours.job.steps = 10
    ours.job.save()
    fillers = [span()] * 4
    feed(ours, step(2), span(), step(3), *fillers, step(4), step(5), step(6))
    last = START + ours.job.last_seq
    left = history.time_left(ours.job, datetime.fromtimestamp(last + 0.5, tz=UTC))
    assert left is not None and (left.low, left.high) == (pytest.approx(3.5), pytest.approx(7.5))


@pytest.mark.parametrize("wish", ["wants_paused", "wants_cancelled"])
def test_a_job_asked_to_stop_names_no_time_left(ours: Owned, wish: str) -> None:
    feed(ours, step(2), step(3))
    assert history.time_left(ours.job) is not None
    setattr(ours.job, wish, True)
    assert history.time_left(ours.job) is None


def test_a_pause_is_neither_pace_nor_running_time(ours: Owned) -> None:
    """The events are a second apart: running from 1, paused at 5, on again at 7. Step 3 came before the pause."""
    ours.job.steps = 10
    ours.job.save()
    feed(ours, step(3), status("paused", "Paused on request."))
    at_rest = datetime.fromtimestamp(START + 100, tz=UTC)
    assert history.time_left(ours.job, at_rest) is None
    assert history.elapsed(ours.job, at_rest) == timedelta(seconds=4)
    feed(ours, span(), status("running", "Training."), step(4))
    assert history.time_left(ours.job) is None  # one step says nothing of the pace
    feed(ours, step(5))
    left = history.time_left(ours.job, datetime.fromtimestamp(START + 9.5, tz=UTC))
    assert left is not None and left.low == left.high == pytest.approx(4.5)
    assert history.elapsed(ours.job, datetime.fromtimestamp(START + 9.5, tz=UTC)) == timedelta(seconds=6.5)
    feed(ours, status("succeeded", "Done."))
    assert history.elapsed(ours.job) == timedelta(seconds=7)


def test_changes_of_steps_and_priority_are_messages_and_pauses_are_not(browser: Client, ours: Owned) -> None:
    feed(ours, control(1), control(2, steps=9), control(3, steps=9), control(4, steps=9, priority=2))
    revisions = [event.payload["revision"] for event in history.messages(ours.job) if event.type == "control"]
    assert revisions == [4, 2]


def test_the_download_ends_at_the_signed_link(browser: Client, ours: Owned) -> None:
    answer = browser.get(reverse("adapters:download", args=[ours.adapter.pk]), follow=True)
    assert answer.redirect_chain[0][0].startswith("/download/")
    assert answer["Content-Type"] == "application/zip"
