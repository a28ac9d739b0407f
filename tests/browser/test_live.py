"""The job page while things go wrong, and what the pages do under the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from engine.events import ControlApplied
from portal.jobs.models import Job
from tests.browser.conftest import Server, sign_in
from tests.browser.feeding import JobFeed
from tests.portal.factories import Owned

Aside = Callable[..., Any]
QUESTIONS = [("What is 2 + 2?", "4")]


@pytest.fixture
def feed(ours: Owned) -> JobFeed:
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    return feed


@pytest.fixture
def restarted(portal: Server) -> Iterator[Server]:
    """For tests that stop the web server: it runs again afterwards, whatever happened."""
    yield portal
    portal.stop()
    portal.start()


def test_nothing_is_missed_while_the_server_is_away(
    page: Page, restarted: Server, ours: Owned, feed: JobFeed, aside: Aside
) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    state = page.locator("main [data-live-state]")
    expect(state).to_have_text("Live")
    restarted.stop()
    expect(state).to_have_text(re.compile("Reconnecting|Offline"))
    for number in (2, 3):
        aside(feed.step, number, 0.5, QUESTIONS)
    restarted.start()
    expect(state).to_have_text("Live", timeout=30_000)
    expect(page.locator("#chart-reward")).to_have_attribute("aria-label", re.compile("up to step 3. "))
    expect(page.locator("#summary")).to_contain_text("Step 3")
    expect(page.locator("details.group")).to_have_count(4)


def test_repeated_events_change_nothing(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    """Delivery is at least once."""
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    expect(page.locator("main [data-live-state]")).to_have_text("Live")
    first = feed.seq
    aside(feed.step, 2, 0.5, QUESTIONS)
    expect(page.locator("details.group")).to_have_count(2)
    feed.seq = first
    aside(feed.step, 2, 0.5, QUESTIONS)
    aside(feed.step, 3, 0.5, QUESTIONS)
    expect(page.locator("#summary")).to_contain_text("Step 3")
    expect(page.locator("details.group")).to_have_count(4)


def test_an_idle_page_keeps_its_connection(page: Page, ours: Owned) -> None:
    """The channel layer's wait for news ends every 5 seconds and has to start again unnoticed."""
    sign_in(page, "ours")
    connections: list[str] = []
    page.on("websocket", lambda socket: connections.append(socket.url))
    page.goto(f"/jobs/{ours.job.pk}/")
    page.wait_for_timeout(11_000)
    expect(page.locator("main [data-live-state]")).to_have_text("Live")
    assert len([url for url in connections if ours.job.pk.hex in url.replace("-", "")]) == 1


def test_a_visitor_who_is_signed_out_is_told_so(page: Page, restarted: Server, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    state = page.locator("main [data-live-state]")
    expect(state).to_have_text("Live")
    page.context.clear_cookies()
    restarted.stop()
    restarted.start()
    expect(state).to_have_text("Not connected: reload the page", timeout=30_000)
    expect(page.locator("#summary")).to_contain_text("Step 1")  # and what was shown stays


def test_one_page_too_many_says_so_and_does_not_hurry(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    tries: list[str] = []

    def refuse(socket: WebSocketRoute) -> None:
        tries.append(socket.url)
        socket.close(code=4429, reason="streams_per_user: 50 are open, the limit.")

    page.route_web_socket(re.compile("/ws/jobs/"), refuse)
    page.goto(f"/jobs/{ours.job.pk}/")
    state = page.locator("main [data-live-state]")
    expect(state).to_contain_text(re.compile(r"Too many pages are open: close some · trying again in (30|2\d|1\d) s"))
    page.wait_for_timeout(5_000)
    assert len(tries) == 1


def test_lists_follow_the_jobs(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    sign_in(page, "ours")
    card = page.locator(".job-card")
    expect(card).to_contain_text("Step 1 of 2")
    aside(feed.step, 2, 0.5, QUESTIONS)
    expect(card).to_contain_text("Step 2 of 2")
    page.goto("/jobs/")
    expect(page.get_by_role("row", name="first job")).to_contain_text("Running")
    aside(feed.status, "succeeded", "All steps are done.")
    expect(page.get_by_role("row", name="first job")).to_contain_text("Succeeded")


def test_cancelling_asks_first(page: Page, ours: Owned, aside: Aside) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Keep the job").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("Cancelling", exact=True)).to_be_visible()
    assert aside(Job.objects.get, pk=ours.job.pk).wants_cancelled


def test_pausing_and_resuming_follow_the_engine_on_the_page(
    page: Page, ours: Owned, feed: JobFeed, aside: Aside
) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    summary = page.locator("#summary")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Pause the job").click()
    expect(summary.get_by_text("Pausing", exact=True)).to_be_visible()
    page.evaluate("window.notReloaded = true")
    aside(feed.send, ControlApplied(revision=1, priority=0, steps=2))
    aside(feed.status, "paused", "Paused on request after step 1 of 2.", "Resume it to go on from there.")
    expect(summary.get_by_text("Paused", exact=True)).to_be_visible()
    expect(summary).to_contain_text("Resume it to go on from there.")
    assert page.evaluate("window.notReloaded") is True
    page.get_by_role("button", name="Resume").click()
    expect(summary.get_by_text("Resuming", exact=True)).to_be_visible()
    aside(feed.send, ControlApplied(revision=2, priority=0, steps=2))
    aside(feed.status, "running", "Training: step 1 of 2 is committed.")
    expect(summary.get_by_text("Running", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_steps_and_priority_change_on_the_page(page: Page, ours: Owned, feed: JobFeed, aside: Aside) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    summary = page.locator("#summary")
    page.get_by_role("button", name="Steps", exact=True).click()
    page.get_by_role("spinbutton", name="Steps").fill("9")
    page.get_by_role("button", name="Set steps").click()
    expect(summary).to_contain_text("9 steps asked for")
    page.get_by_role("button", name="Priority", exact=True).click()
    page.get_by_role("spinbutton", name="Priority").fill("4")
    page.get_by_role("button", name="Set priority").click()
    expect(summary).to_contain_text("9 steps, priority +4 asked for")
    aside(feed.send, ControlApplied(revision=2, priority=4, steps=9))
    expect(summary).to_contain_text("Step 1 of 9")
    expect(summary).not_to_contain_text("asked for")
    expect(page.locator("#messages")).to_contain_text("The job now ends after step 9, with priority +4.")


def test_a_job_continues_from_an_adapter(page: Page, ours: Owned, aside: Aside) -> None:
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    page.get_by_role("link", name="Continue from version 1").click()
    expect(page.get_by_text("Continues from")).to_be_visible()
    expect(page.locator("[data-part=estimate]")).to_contain_text("Episodes128")  # 2 steps x 8 prompts x 8 answers
    page.get_by_role("button", name="Review").click()
    expect(page.locator("[data-part=review]")).to_contain_text("first job v1")
    page.get_by_role("button", name="Start job").click()
    expect(page.get_by_text("continues from")).to_contain_text("first job v1")
    job = aside(Job.objects.exclude(pk=ours.job.pk).get)
    assert (job.start_from_id, job.name) == (ours.adapter.pk, "first job (continued)")


def test_the_keyboard_reaches_pages_and_help(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/datasets/")
    page.keyboard.press("n")
    page.wait_for_url("**/datasets/new/")
    page.get_by_label("Name").fill("g d")
    expect(page.get_by_label("Name")).to_have_value("g d")
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_theme_is_remembered(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    page.wait_for_function(f"light => {background} !== light", arg=light)
    dark = page.evaluate(background)
    page.goto("/jobs/")
    assert page.evaluate(background) == dark


def test_times_are_in_the_viewers_zone_and_copying_works(page: Page, ours: Owned) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sign_in(page, "ours")
    page.goto(f"/datasets/{ours.dataset_version.dataset_id}/")
    expect(page.get_by_text("just now").first).to_be_visible()
    page.get_by_role("button", name="Copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == ours.dataset_version.sha256


def test_the_job_page_works_without_scripts(
    page: Page, portal: Server, ours: Owned, feed: JobFeed, aside: Aside
) -> None:
    aside(feed.step, 2, 0.5, QUESTIONS)
    sign_in(page, "ours")
    state = page.context.storage_state()
    plain = page.context.browser.new_context(base_url=portal.url, java_script_enabled=False, storage_state=state)  # type: ignore[union-attr]
    visitor = plain.new_page()
    visitor.goto(f"/jobs/{ours.job.pk}/")
    expect(visitor.get_by_text("Step 2", exact=True).first).to_be_visible()
    expect(visitor.get_by_text("What is 2 + 2?").first).to_be_visible()
    plain.close()
