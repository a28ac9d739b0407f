"""The operator's pages in a browser: accessible, fitting, following the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from portal.engine_room.services import note_heartbeat, store_report
from tests.browser.conftest import PASSWORD, PHONE, WIDE, Complaints, Server, sign_in
from tests.browser.test_pages import grow, violations
from tests.portal.engine_room.conftest import make_report
from tests.portal.factories import Owned


def report_engine() -> None:
    """The engine is up: a pool with one worker of two, and shares."""
    store_report(report=make_report())
    note_heartbeat()


# Each width and each theme once: what a theme breaks it breaks at any width.
@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide-light", "phone-dark"])
def test_the_operators_pages_are_accessible_and_fit(
    chromium: Browser,
    portal: Server,
    ours: Owned,
    aside: Callable[..., Any],
    complaints: Complaints,
    viewport: dict[str, int],
    scheme: str,
) -> None:
    aside(grow, ours)
    aside(User.objects.create_superuser, "root", "root@example.org", PASSWORD)
    context = chromium.new_context(base_url=portal.url, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    complaints.watch(context)
    page = context.new_page()
    sign_in(page, "root")
    found = {}
    for state in ("silent", "up", "drained"):
        if state == "up":
            aside(report_engine)
        if state == "drained":
            page.goto("/engine/")
            page.get_by_label("Reason").fill("new GPUs")
            page.get_by_role("button", name="Drain the engine").click()
        for address in ("/engine/", f"/engine/pools/{ours.job.base_model_id}/"):
            page.goto(address)
            found[f"{address} {state}"] = violations(page)
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > viewport["width"]:
                found[f"{address} {state}"].append(f"{width} pixels wide")
    context.close()
    assert {address: faults for address, faults in found.items() if faults} == {}


def test_the_engine_page_follows_the_engine(page: Page, ours: Owned, aside: Callable[..., Any]) -> None:
    aside(User.objects.create_superuser, "root", "root@example.org", PASSWORD)
    sign_in(page, "root")
    page.goto("/engine/")
    expect(page.get_by_text("The engine has never been heard from.")).to_be_visible()
    aside(report_engine)
    expect(page.get_by_text("rollout-0")).to_be_visible(timeout=15_000)
    expect(page.get_by_text("The engine has never been heard from.")).to_be_hidden()
