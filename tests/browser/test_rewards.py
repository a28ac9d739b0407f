"""Writing a reward and testing it, as a person does; the engine's part is reported by the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from engine.spec.trial import TrialReport, TrialScore
from portal.rewards.models import RewardTrial
from portal.rewards.trial_services import take_in_report
from tests.browser.conftest import PHONE, sign_in
from tests.browser.test_pages import violations
from tests.portal.factories import Owned


def report(state: str, **more: Any) -> None:
    """What the engine says of the newest trial."""
    trial = RewardTrial.objects.order_by("-created_at")[0]
    sequence = int(time.time() * 1000)
    take_in_report(report=TrialReport(trial_id=trial.pk.hex, sequence=sequence, state=state, **more))  # type: ignore[arg-type]


def test_a_reward_is_tested_where_it_is_written(page: Page, ours: Owned, aside: Callable[..., Any]) -> None:
    sign_in(page, "ours")
    page.goto("/rewards/new/")
    page.get_by_role("link", name="JSON output").click()
    editor = page.get_by_role("textbox", name="JSON schema")
    expect(editor).to_contain_text('"additionalProperties"')
    page.get_by_role("textbox", name="Completion to score").first.fill('{"answer": "4"}')
    editor.click()
    page.keyboard.press("Control+Enter")
    result = page.get_by_role("region", name="Result of the test")
    expect(result.get_by_text("Waits for the engine.")).to_be_visible()
    aside(report, "running", reason="Scoring: 0 of 1 completions.")
    expect(result.get_by_text("Scoring: 0 of 1 completions.")).to_be_visible()
    assert violations(page) == []
    failed = TrialScore(
        completion="4", total=0, error=True, error_kind="exception", reason="KeyError: 'x'",
        details='  File "reward.py", line 2, in reward', console="seen",
    )  # fmt: skip
    aside(report, "done", done=1, scores=[[failed]])
    for text in ("Exception", "KeyError: 'x'", 'File "reward.py", line 2', "seen"):
        expect(result.get_by_text(text).first).to_be_visible()
    assert violations(page) == []


def test_what_is_wrong_is_named_and_marked(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/rewards/new/")
    page.get_by_role("radio", name="Pattern").check()
    pattern = page.locator("#id_regex-pattern")
    pattern.fill("(x")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Not a valid regular expression")
    expect(pattern).to_have_attribute("aria-invalid", "true")
    pattern.fill("x")
    page.get_by_role("radio", name="Many rows").check()
    page.get_by_label("Rows", exact=True).fill("99")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("Rows must be between 1 and 50.")
    expect(pattern).not_to_have_attribute("aria-invalid", "true")


def test_a_saved_version_on_many_rows_shows_the_spread(page: Page, ours: Owned, aside: Callable[..., Any]) -> None:
    sign_in(page, "ours")
    page.goto(f"/rewards/{ours.reward_version.reward_function_id}/")
    page.get_by_role("radio", name="Many rows").check()
    page.get_by_label("Rows", exact=True).fill("3")
    page.get_by_label("Samples of each").fill("2")
    page.get_by_role("button", name="Test", exact=True).click()
    result = page.get_by_role("region", name="Result of the test")
    expect(result.get_by_text("Queued")).to_be_visible()
    zero = TrialScore(completion="?", total=0.0)
    aside(report, "done", done=6, scores=[[zero, zero]] * 3, sampled_tokens=60)
    expect(result.get_by_text("No learning signal: all 6 completions score 0.")).to_be_visible()
    expect(result.get_by_role("img")).to_have_attribute("aria-label", "Completions by score: 6 from 0 to 0.1. ")
    page.get_by_role("link", name="Link to this result").click()
    expect(page.get_by_role("heading", name="Test of numeric v1")).to_be_visible()


def test_a_test_is_cancelled(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/rewards/new/")
    page.get_by_role("button", name="Test", exact=True).click()
    page.get_by_role("region", name="Result of the test").get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled on request.")).to_be_visible()


def test_a_phone_goes_to_the_options_of_the_grader_that_was_tapped(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/rewards/new/")
    page.locator("label.choice", has_text="Number").click()
    expect(page.locator("#id_numeric-tolerance")).to_be_in_viewport()
