"""What the frame gives every page: the command palette, the connection in words, the focus kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Server, sign_in
from tests.browser.feeding import JobFeed
from tests.browser.test_pages import violations
from tests.portal.factories import Owned

Aside = Callable[..., Any]
QUESTIONS = [("What is 2 + 2?", "4")]


@pytest.fixture
def restarted(portal: Server) -> Iterator[Server]:
    """For tests that stop the web server: it runs again afterwards, whatever happened."""
    yield portal
    portal.stop()
    portal.start()


def test_the_palette_goes_anywhere_by_keyboard(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    field = palette.get_by_role("combobox")
    expect(field).to_be_focused()
    expect(palette.get_by_role("option", name="Datasets")).to_be_visible()  # pages, before anything is typed
    field.fill("first")
    found = palette.get_by_role("option", name=re.compile("Job.*first job"))
    expect(found).to_have_attribute("aria-selected", "true")
    expect(field).to_have_attribute("aria-activedescendant", "palette-0")
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{ours.job.pk}/")
    page.keyboard.press("Control+k")
    field.fill("data")
    expect(palette.get_by_role("option")).to_have_count(2)  # the page and the action
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/datasets/**")


def test_the_palette_finds_nothing_foreign_and_says_so(page: Page, ours: Owned, theirs: Owned) -> None:
    sign_in(page, "ours")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    palette.get_by_role("combobox").fill(str(theirs.job.pk))
    expect(palette.get_by_role("status")).to_contain_text("Nothing found.")
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    page.get_by_role("button", name="Go to").first.click()
    expect(palette.get_by_role("combobox")).to_be_focused()


@pytest.fixture
def theirs(portal: Server, aside: Aside) -> Owned:
    from tests.portal.factories import build_owned

    return aside(build_owned, "theirs")


def test_the_palette_after_signing_out_elsewhere(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.context.clear_cookies()
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    palette.get_by_role("combobox").fill("first")
    expect(palette.get_by_role("status")).to_contain_text("You are signed out. Reload the page.")


def test_the_palette_on_a_phone(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.get_by_role("button", name="Go to").click()
    expect(page.get_by_role("combobox")).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert violations(page) == []


def test_lists_miss_nothing_while_the_server_is_away(page: Page, restarted: Server, ours: Owned, aside: Aside) -> None:
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    sign_in(page, "ours")
    page.goto("/jobs/")
    state = page.locator(".sidebar [data-live-state]")
    expect(state).to_have_text("Live")
    restarted.stop()
    expect(state).to_have_text(re.compile(r"(Reconnecting|Offline) · trying again in \d+ s"))
    aside(feed.step, 2, 0.5, QUESTIONS)
    aside(feed.status, "succeeded", "All steps are done.")
    restarted.start()
    expect(state).to_have_text("Live", timeout=30_000)
    expect(page.get_by_role("row", name="first job")).to_contain_text("Succeeded")


def test_the_network_comes_back_under_a_dead_socket(page: Page, ours: Owned, aside: Aside) -> None:
    """The browser tells of the network; the socket of before may never tell that it is dead."""
    sign_in(page, "ours")
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.goto(f"/jobs/{ours.job.pk}/")
    state = page.locator("main [data-live-state]")
    expect(state).to_have_text("Live")
    page.evaluate("dispatchEvent(new Event('offline'))")
    expect(state).to_have_text("Offline")
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(state).to_have_text("Live")
    of_job = [url for url in sockets if str(ours.job.pk) in url]
    assert len(of_job) == 2 and of_job[1].endswith(f"after={ours.job.last_seq}")
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    aside(feed.step, 2, 0.5, QUESTIONS)
    expect(page.locator("#summary")).to_contain_text("Step 2")


def test_times_tell_the_viewers_zone_and_utc(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto(f"/datasets/{ours.dataset_version.dataset_id}/")
    title = page.locator("time").first.get_attribute("title") or ""
    assert re.search(r"\(.+\)\n\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", title)
