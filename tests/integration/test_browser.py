"""A tenant in a browser, on the whole real installation: starts a job, sees the curve move, downloads the adapter."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.conftest import CHROMIUM, CHROMIUM_ARGUMENTS, WIDE, Complaints
from tests.integration.conftest import PASSWORD, ROWS, SHORT, Installation, Tenant

pytestmark = [pytest.mark.browser, pytest.mark.engine]


@pytest.fixture
def page(installation: Installation) -> Iterator[Page]:
    complaints = Complaints()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        context = browser.new_context(base_url=installation.url, viewport=WIDE, accept_downloads=True)
        context.set_default_timeout(60_000)
        complaints.watch(context)
        yield context.new_page()
        browser.close()
    assert complaints == []


def test_a_job_from_the_form_to_the_adapter(page: Page, ours: Tenant) -> None:
    ours.upload(ROWS, "browsed rows")
    ours.reward(SHORT, "browsed reward")
    page.goto("/accounts/login/")
    page.get_by_label("Username or e-mail address").fill(ours.slug)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")

    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("in the browser")
    page.get_by_role("radio", name="browsed rows").check()
    page.get_by_role("radio", name="browsed reward").check()
    page.locator("input[name=base_model][value=tiny]").check()
    page.get_by_role("button", name="Next: episodes").click()
    page.get_by_role("button", name="Next: learning").click()
    page.get_by_role("button", name="Quick try").click()
    page.locator("[name=lora__rank]").fill("4")
    page.get_by_role("button", name="Next: review").click()
    page.get_by_role("button", name="Start job").click()

    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}/"))
    page.evaluate("window.notReloaded = true")
    summary = page.get_by_label("State", exact=True)
    chart = page.locator("#chart-reward")
    expect(chart).to_have_attribute("aria-label", re.compile("up to step [1-9]"), timeout=240_000)
    first = chart.get_attribute("aria-label")
    expect(chart).not_to_have_attribute("aria-label", first or "", timeout=120_000)
    expect(page.locator("details.group").first).to_be_visible()
    expect(summary.get_by_text("Succeeded")).to_be_visible(timeout=240_000)
    assert page.evaluate("window.notReloaded") is True

    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download version")).first.click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert {"adapter_model.safetensors", "adapter_config.json"} <= {
            name.rsplit("/", 1)[-1] for name in archive.namelist()
        }
