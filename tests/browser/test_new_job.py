"""The new-job form in a browser: four steps, nothing lost, errors at their fields, what it would take, live."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.datasets.services import create_dataset_version
from portal.jobs.models import Job
from tests.browser.conftest import PHONE, WIDE, Complaints, Server, sign_in
from tests.browser.test_pages import violations
from tests.portal.factories import Owned, jsonl

Aside = Callable[..., Any]


def add_datasets(ours: Owned) -> None:
    rows = [{"prompt": f"{number}?", "answer": number} for number in range(4)]
    for name in ("capitals", "emails", "sorting", "spelling", "verbs", "words"):
        create_dataset_version(tenant=ours.tenant, user=ours.user, name=name, file=jsonl(*rows))


@pytest.fixture
def form(page: Page, ours: Owned, aside: Aside) -> Page:
    """The empty form, with more datasets than it lists."""
    aside(add_datasets, ours)
    sign_in(page, "ours")
    page.goto("/jobs/new/")
    return page


def fill_first_step(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("in steps")
    page.get_by_role("radio", name="words v1").check()


def go_on(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"Next: {name}").click()
    expect(page.get_by_role("button", name=re.compile(name, re.IGNORECASE)).first).to_have_attribute(
        "aria-current", "step"
    )


def test_a_job_in_four_steps(form: Page, ours: Owned, aside: Aside) -> None:
    form.get_by_role("button", name="Next: episodes").click()
    expect(form.get_by_text("Give the job a name.")).to_be_visible()
    expect(form.get_by_text("Choose a dataset.")).to_be_visible()
    expect(form.get_by_label("Name", exact=True)).to_be_focused()
    form.get_by_label("Name", exact=True).fill("in steps")
    search = form.get_by_role("searchbox", name="Search your datasets")
    expect(form.get_by_role("radio", name="capitals v1")).to_have_count(0)
    search.fill("capi")
    form.get_by_role("radio", name="capitals v1").check()
    search.fill("words")
    expect(form.get_by_role("radio", name="words v1")).to_be_visible()
    expect(form.get_by_role("radio", name="capitals v1")).to_be_checked()
    expect(form.get_by_text("Give the job a name.")).to_have_count(0)
    go_on(form, "episodes")
    form.get_by_role("radio", name=re.compile("^Tools")).check()
    form.get_by_label("Turns at most").fill("0")
    form.get_by_role("button", name="Next: learning").click()
    expect(form.get_by_text("Turns at most must be at least 1.")).to_be_visible()
    form.get_by_label("Turns at most").fill("3")
    go_on(form, "learning")
    form.get_by_text("How far the model may move").click()
    expect(form.get_by_label("Clip below", exact=True)).to_be_visible()
    form.get_by_role("radio", name=re.compile("^GSPO")).check()
    expect(form.get_by_label("Clip below", exact=True)).to_be_hidden()
    expect(form.get_by_label("Clip below, whole answers")).to_be_visible()
    form.get_by_label("Steps", exact=True).fill("5")
    go_on(form, "review")
    review = form.locator("[data-part=review]")
    for words in ("capitals v1", "numeric v1", "Tools", "GSPO", "Turns at most3 changed"):
        expect(review).to_contain_text(words)
    form.get_by_text("The same with Python").click()
    expect(form.locator("#as-python")).to_contain_text("'max_turns': 3")
    form.get_by_role("button", name="Start job").click()
    expect(form.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    spec = aside(Job.objects.get, name="in steps").to_spec()
    assert (spec.training.algorithm, spec.training.steps, spec.environment.max_turns) == ("gspo", 5, 3)


def test_nothing_typed_is_lost(form: Page) -> None:
    fill_first_step(form)
    go_on(form, "episodes")
    form.get_by_label("System prompt").fill("Be brief.")
    form.go_back()
    expect(form.get_by_label("Name", exact=True)).to_have_value("in steps")
    form.go_forward()
    expect(form.get_by_label("System prompt")).to_have_value("Be brief.")
    form.get_by_role("button", name="Back").first.click()
    form.get_by_role("searchbox", name="Search your datasets").fill("capi")
    form.get_by_role("radio", name="capitals v1").check()  # not among those the page lists at first
    form.goto("/datasets/")
    form.goto("/jobs/new/")
    expect(form.get_by_text("What you had typed here is back.")).to_be_visible()
    expect(form.get_by_label("Name", exact=True)).to_have_value("in steps")
    expect(form.get_by_role("radio", name="capitals v1")).to_be_checked()
    expect(form.get_by_label("System prompt")).to_have_value("Be brief.")
    form.get_by_role("button", name="Start afresh").click()
    expect(form.get_by_label("Name", exact=True)).to_have_value("")


def test_the_keyboard_alone_gets_there(form: Page, ours: Owned, aside: Aside) -> None:
    form.get_by_label("Name", exact=True).focus()
    form.keyboard.type("by keys")
    form.get_by_role("radio", name="words v1").focus()
    form.keyboard.press("Space")
    form.keyboard.press("Enter")  # goes on, and does not send
    expect(form.get_by_role("heading", name="How episodes unfold")).to_be_focused()
    form.get_by_label("Longest completion").press("Enter")
    expect(form.get_by_role("heading", name="How it learns")).to_be_focused()
    form.get_by_label("Learning rate", exact=True).press("Enter")
    expect(form.get_by_role("heading", name="Review and start")).to_be_focused()
    form.get_by_role("button", name="Start job").focus()
    form.keyboard.press("Enter")
    expect(form.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    assert aside(Job.objects.filter(name="by keys").count) == 1


def test_generated_tasks_show_their_own_settings(form: Page) -> None:
    form.get_by_role("radio", name=re.compile("^Generated rows")).check()
    expect(form.get_by_role("group", name="Dataset")).to_be_hidden()
    form.get_by_label("Generator", exact=True).fill("countdwn")
    form.get_by_label("Name", exact=True).fill("tasks")
    expect(form.locator("[data-part=checks]")).to_contain_text("Did you mean countdown")
    expect(form.locator("[data-part=review] .checks")).to_contain_text("Did you mean countdown")  # for phones
    form.get_by_label("Generator", exact=True).fill("countdown")
    expect(form.locator("[data-part=checks]")).not_to_contain_text("countdown")
    body = form.locator("#as-curl").text_content() or ""
    sent = json.loads(body.split("<<'END'\n")[1].split("\nEND")[0])
    assert sent["settings"]["environment"] == {"type": "reasoning_gym", "dataset": "countdown"}
    assert "dataset_version" not in sent


# Each width and each theme once: what a theme breaks it breaks at any width.
@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide-light", "phone-dark"])
def test_every_step_is_accessible_and_fits(
    chromium: Browser,
    portal: Server,
    ours: Owned,
    complaints: Complaints,
    viewport: dict[str, int],
    scheme: str,
) -> None:
    context = chromium.new_context(base_url=portal.url, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    complaints.watch(context)
    page = context.new_page()
    sign_in(page, "ours")
    page.goto("/jobs/new/")
    page.get_by_role("button", name="Next: episodes").click()
    expect(page.get_by_text("Give the job a name.")).to_be_visible()
    found = {}
    for step in ("What", "Episodes", "Learning", "Review"):
        page.get_by_role("button", name=step, exact=False).first.click()
        if step == "Episodes":
            page.get_by_role("radio", name=re.compile("^OpenEnv")).check()
        page.evaluate("document.querySelectorAll('#job-form details').forEach((fold) => (fold.open = true))")
        found[step] = violations(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > viewport["width"]:
            found[step].append(f"{width} pixels wide")
    context.close()
    assert {step: faults for step, faults in found.items() if faults} == {}
