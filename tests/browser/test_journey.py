"""A tenant's first hour in a browser, with a job's events fed in as the engine would send them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from portal.jobs.models import Job
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_tenant, create_user
from tests.browser.conftest import PASSWORD, Server, sign_in
from tests.browser.feeding import JobFeed

FAULTY = '{"prompt": "What is 2 + 2?", "answer": 4}\n{"prompt": "What is 3 + 4?", "answer": 7\n'
QUESTIONS = [("What is 2 + 2?", "4"), ("What is 3 + 4?", "7")]
Aside = Callable[..., Any]


def make_tenant() -> None:
    user = create_user(username="ada", email="ada@example.org", password=PASSWORD)
    add_member(tenant=create_tenant(name="Engines", slug="engines"), user=user, role=Role.OWNER)


def upload_with_a_mistake(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text(FAULTY)
    page.get_by_role("link", name="Upload a dataset").click()
    page.locator("#id_file").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("sums")
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("prompt")
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="1 fault found, nothing was stored")).to_be_visible()
    page.get_by_role("button", name="2", exact=True).click()
    text = page.get_by_role("textbox", name="Rows")
    selected = text.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)")
    assert selected == FAULTY.splitlines()[1]
    text.fill(FAULTY.replace('"answer": 7\n', '"answer": 7}\n'))
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_label("Share", exact=True).fill("50")
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="sums v1")).to_be_visible()
    expect(page.get_by_text("What is 3 + 4?")).to_be_visible()


def create_a_mixed_reward(page: Page) -> None:
    page.get_by_role("link", name="Create a reward").click()
    page.get_by_label("Name").first.fill("right and short")
    page.get_by_role("radio", name="Mix", exact=True).check()
    page.get_by_role("button", name="Add a part").click()
    last = page.get_by_role("group", name="Part of the mix").last
    last.get_by_label("Name", exact=True).fill("polite")
    last.get_by_label("Grader", exact=True).select_option("regex")
    last.get_by_label("Regular expression").fill("(unclosed")
    page.get_by_role("button", name="Save reward").click()
    last = page.get_by_role("group", name="Part of the mix").last
    expect(last.get_by_text("Not a valid regular expression")).to_be_visible()
    last.get_by_role("button", name="Remove this part").click()
    page.get_by_role("button", name="Save reward").click()
    expect(page.get_by_role("heading", name="right and short v1")).to_be_visible()
    expect(page.get_by_text("83.3\u202f% of the total")).to_be_visible()


def start_a_job(page: Page) -> None:
    page.get_by_role("link", name="Start a job").click()
    page.get_by_label("Name", exact=True).fill("first try")
    expect(page.get_by_role("radio", name="sums v1")).to_be_checked()  # the only one there is
    expect(page.get_by_role("radio", name="right and short v1")).to_be_checked()
    page.get_by_role("button", name="Next: episodes").click()
    page.get_by_role("button", name="Next: learning").click()
    page.get_by_role("button", name="Quick try").click()
    expect(page.locator("[data-part=estimate]")).to_contain_text("Episodes128")  # 8 steps x 4 prompts x 4 answers
    page.get_by_role("button", name="Next: review").click()
    expect(page.locator("[data-part=review]")).to_contain_text("sums v1")
    page.get_by_role("button", name="Start job").click()
    expect(page.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def watch_it_learn(page: Page, aside: Aside, name: str = "first try") -> None:
    page.evaluate("window.notReloaded = true")
    feed = JobFeed(aside(Job.objects.get, name=name))
    chart = page.locator("#chart-reward")
    summary = page.get_by_label("State", exact=True)
    aside(feed.status, "running", "The job has its place in the pool.")
    expect(summary.get_by_text("The job has its place in the pool.")).to_be_visible()
    aside(feed.evaluate, 0.1)
    aside(feed.step, 1, 0.2, QUESTIONS)
    expect(chart).to_have_attribute("aria-label", re.compile("up to step 1. "))
    group = page.locator("details.group").first
    group.click()
    expect(group.get_by_text(re.compile("advantage")).first).to_be_visible()
    aside(feed.step, 2, 0.8, QUESTIONS)
    expect(chart).to_have_attribute("aria-label", re.compile("up to step 2. "))
    expect(summary.get_by_text("Step 2")).to_be_visible()
    expect(page.locator("details.group")).to_have_count(4)
    expect(page.locator("details.group").nth(2)).to_have_attribute("open", "")  # what was opened stays open
    aside(feed.adapter, 2, final=True)
    aside(feed.evaluate, 0.9, 2)
    aside(feed.status, "succeeded", "All steps are done.")
    expect(summary.get_by_text("10.0\u202f% → 90.0\u202f%")).to_be_visible()
    expect(summary.get_by_role("button", name="Cancel job")).to_have_count(0)
    assert page.evaluate("window.notReloaded") is True


def download_the_adapter(page: Page) -> None:
    with page.expect_download() as download:
        page.get_by_role("link", name="Download version 2").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert {"adapter_model.safetensors", "adapter_config.json"} <= set(archive.namelist())


def test_from_the_first_sign_in_to_the_adapter(page: Page, portal: Server, aside: Aside, tmp_path: Path) -> None:
    aside(make_tenant)
    sign_in(page, "ada")
    expect(page.get_by_text("0 of 4 done")).to_be_visible()
    upload_with_a_mistake(page, tmp_path)
    page.goto("/")
    expect(page.get_by_text("1 of 4 done")).to_be_visible()
    create_a_mixed_reward(page)
    page.goto("/")
    start_a_job(page)
    watch_it_learn(page, aside)
    download_the_adapter(page)
    page.goto("/")
    expect(page.get_by_text("Get started")).to_have_count(0)
