"""The charts, the rollouts and the comparison under mouse and keyboard."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from engine.events import Notice, Span
from portal.jobs.services import create_job
from tests.browser.conftest import sign_in
from tests.browser.feeding import JobFeed
from tests.portal.factories import Owned

Aside = Callable[..., Any]
QUESTIONS = [("What is 2 + 2?", "4")]


@pytest.fixture
def feed(ours: Owned) -> JobFeed:
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    return feed


def test_charts_smooth_change_their_axis_and_are_saved(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    for number in (2, 3, 4):
        aside(feed.step, number, 0.2 * number, QUESTIONS)
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    chart = page.locator("#chart-reward")
    expect(chart.locator(".u-legend")).to_contain_text("Step")
    page.get_by_role("button", name="Time", exact=True).click()
    expect(chart.locator(".u-legend")).to_contain_text("Time")
    page.get_by_role("slider", name="Smoothing").press("ArrowRight")
    expect(chart.locator(".u-raw").first).to_be_attached()
    with page.expect_download() as download:
        page.get_by_role("button", name="Reward as CSV", exact=True).click()
    assert download.value.suggested_filename == "first-job-reward.csv"
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[0]["Mean reward"] == "0.1"  # as measured, not as smoothed
    with page.expect_download() as download:
        page.get_by_role("button", name="Reward as PNG", exact=True).click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    page.reload()
    expect(chart.locator(".u-legend")).to_contain_text("Time")  # it stays chosen
    aside(feed.step, 5, 0.9, QUESTIONS)
    expect(chart).to_have_attribute("aria-label", re.compile("up to step 5. "))


def test_findings_and_stages_come_by_themselves(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    expect(page.locator("#timeline")).to_contain_text("once it has run")
    span = Span(stage="train", worker="trainer", start=feed.time, end=feed.time + 3)
    aside(feed.send, Notice(level="warning", code="c", message="Lengths fall.", hint="Look at them."), span)
    expect(page.locator("#findings")).to_contain_text("Try: Look at them.")
    aside(feed.step, 2, 0.5, QUESTIONS)
    expect(page.locator("#timeline").get_by_role("img", name=re.compile("^Train: 1 span"))).to_be_visible()
    aside(feed.send, Notice(level="info", code="c", message="Steady again.", over=True))
    expect(page.locator("#findings")).not_to_contain_text("What stands out")
    page.get_by_text("Earlier findings").click()
    expect(page.locator("#findings")).to_contain_text("Steady again.")


def test_rollouts_by_keyboard(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    for number in (2, 3):
        aside(feed.step, number, 0.5, QUESTIONS)
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/rollouts/")
    links = page.locator(".rollout__link")
    expect(links).to_have_count(4)
    page.keyboard.press("j")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    newest = links.nth(0)
    page.wait_for_url(re.compile(r"/rollouts/\d+/$"))
    first = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != first)
    page.keyboard.press("k")
    page.wait_for_url(first)
    page.get_by_role("link", name="Early against late").click()
    expect(page.get_by_role("heading", name=re.compile("^Early: step 2"))).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("^Late: step 3"))).to_be_visible()
    page.goto(f"/jobs/{ours.job.pk}/rollouts/")
    page.get_by_label("Text").fill("j")  # typing is no key
    expect(newest).not_to_be_focused()
    page.get_by_label("Reward from").fill("5")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Nothing found")).to_be_visible()


def test_jobs_are_chosen_by_keyboard_and_stay_chosen(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    aside(
        create_job,
        tenant=ours.tenant,
        user=ours.user,
        name="second job",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings={"lora": {"rank": 8}},
    )
    sign_in(page, "ours")
    page.goto("/jobs/")
    first, second = (page.get_by_role("checkbox", name=f"Compare {name} job") for name in ("first", "second"))
    first.focus()
    page.keyboard.press("Space")
    expect(page.locator("#compare-bar")).to_contain_text("1 job chosen")
    aside(feed.step, 2, 0.5, QUESTIONS)  # the list is replaced
    expect(page.get_by_role("row", name="first job")).to_contain_text("2 / 2")
    expect(first).to_be_checked()
    page.goto("/jobs/?status=queued")
    second.focus()
    page.keyboard.press("Space")
    page.get_by_role("link", name="Compare", exact=True).press("Enter")
    page.wait_for_url("**/jobs/compare/?job=*&job=*")
    expect(page.get_by_role("row", name="lora · rank")).to_contain_text("16")
    expect(page.locator("#chart-reward_mean canvas")).to_be_visible()
    page.get_by_role("link", name="Leave second job out").click()
    expect(page.get_by_text("Add another job")).to_be_visible()
