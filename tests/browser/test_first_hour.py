"""A tenant's first hour from the invitation on: an owner invites, the invited trains, compares and downloads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from portal.jobs.models import Job
from tests.browser.conftest import WIDE, Complaints, Server, sign_in
from tests.browser.feeding import JobFeed
from tests.browser.test_journey import (
    QUESTIONS,
    create_a_mixed_reward,
    download_the_adapter,
    make_tenant,
    start_a_job,
    upload_with_a_mistake,
    watch_it_learn,
)

Aside = Callable[..., Any]


def invite(owner: Page) -> str:
    """Ada's invitation, as the link she copies."""
    sign_in(owner, "ada")
    owner.goto("/members/")
    owner.get_by_label("E-mail address").fill("grace@example.org")
    owner.get_by_role("button", name="Invite").click()
    return owner.locator("#invitation-link").inner_text()


def accept(page: Page, link: str) -> None:
    page.goto(link)
    expect(page.get_by_role("heading", name="Join Engines")).to_be_visible()
    page.get_by_label("Username").fill("grace")
    page.get_by_label("Password").fill("compilers and nanoseconds")
    page.get_by_role("button", name="Make the account and join").click()
    page.wait_for_url(re.compile(r"127\.0\.0\.1:\d+/$"))
    page.goto("/")
    expect(page.get_by_text("0 of 4 done")).to_be_visible()


def train_another(page: Page, aside: Aside) -> None:
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("second try")
    page.get_by_role("button", name="Next: episodes").click()
    page.get_by_role("button", name="Next: learning").click()
    page.get_by_role("button", name="Quick try").click()
    page.get_by_role("button", name="Next: review").click()
    page.get_by_role("button", name="Start job").click()
    expect(page.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    feed = JobFeed(aside(Job.objects.get, name="second try"))
    aside(feed.status, "running", "The job has its place in the pool.")
    for number in (1, 2):
        aside(feed.step, number, 0.4, QUESTIONS)
    expect(page.get_by_label("State", exact=True).get_by_text("Step 2")).to_be_visible()


def compare_both(page: Page) -> None:
    page.goto("/jobs/")
    for name in ("first try", "second try"):
        page.get_by_role("row", name=name).get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name="Compare jobs")).to_be_visible()
    for name in ("first try", "second try"):
        expect(page.get_by_role("row", name=name).first).to_be_visible()


def test_from_the_invitation_to_the_adapter(
    page: Page, chromium: Browser, portal: Server, complaints: Complaints, aside: Aside, tmp_path: Path
) -> None:
    aside(make_tenant)
    link = invite(page)
    context = chromium.new_context(base_url=portal.url, viewport=WIDE, accept_downloads=True)  # type: ignore[arg-type]
    complaints.watch(context)
    grace = context.new_page()
    accept(grace, link)
    upload_with_a_mistake(grace, tmp_path)
    grace.goto("/")
    create_a_mixed_reward(grace)
    grace.goto("/")
    start_a_job(grace)
    watch_it_learn(grace, aside)
    download_the_adapter(grace)
    train_another(grace, aside)
    compare_both(grace)
    context.close()
    page.goto("/members/")
    expect(page.get_by_role("row", name="grace")).to_contain_text("Developer")
    page.goto("/audit/")
    expect(page.get_by_role("main")).to_contain_text("grace")
