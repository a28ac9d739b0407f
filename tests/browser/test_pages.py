"""Every page, light and dark, wide and phone: accessible, nothing in the console, no sideways scrolling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from engine.events import Episode, Notice, RolloutGroup, Span
from engine.spec.trial import TrialReport, TrialScore
from portal.api.guides import GUIDES
from portal.jobs.services import create_job, pause_job
from portal.rewards.services import create_reward_version
from portal.rewards.trial_services import take_in_report
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_tenant, create_user
from tests.browser.conftest import PASSWORD, PHONE, WIDE, Complaints, Server, sign_in
from tests.browser.feeding import JobFeed
from tests.portal.factories import Owned

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RUN_AXE = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map(
    ({id, nodes}) => `${id}: ${nodes.map((node) => node.target.join(" ")).join(", ")}`))"""
FAILED = RolloutGroup(
    step=4,
    row=3,
    prompt="What is 2 + 2?",
    answer="4",
    episodes=[
        Episode(
            completion="four",
            reward=0.0,
            parts={},
            reason="ValueError: no number",
            error=True,
            tokens=1,
            adapter_version=3,
        )
    ],
)
QUESTIONS = [("What is 2 + 2?", "4"), ("What is 3 + 4?", "7")]


def violations(page: Page) -> list[str]:
    """Through the debugger's door, which the security policy does not govern."""
    page.evaluate(AXE)
    return page.evaluate(RUN_AXE)


def grow(ours: Owned) -> None:
    """A job with a few steps, so that every part of the job page has something to show."""
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    feed.evaluate(0.1)
    for number in (2, 3, 4):
        feed.step(number, 0.3 * (number - 1), QUESTIONS)
    feed.notice("2 groups had no signal.", "Try easier prompts.")
    feed.send(
        Notice(level="warning", code="over", message="Lengths fell.", hint="Look at the rollouts."),
        Notice(level="info", code="over", message="Lengths are steady.", over=True),
        Span(stage="rollout", worker="rollout", start=feed.time - 9, end=feed.time - 5, tokens=640),
        Span(stage="train", worker="trainer", start=feed.time - 5, end=feed.time, tokens=640),
        FAILED,
    )
    feed.adapter(4, final=True)
    other = create_job(
        tenant=ours.tenant,
        user=ours.user,
        name="second job",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings={"lora": {"rank": 8}},
    )
    other_feed = JobFeed(other)
    other_feed.status("running", "Training.")
    other_feed.step(1, 0.5, QUESTIONS)


def second_job(ours: Owned) -> str:
    return str(ours.tenant.jobs.exclude(pk=ours.job.pk).values_list("pk", flat=True).get())


def grow_rewards(ours: Owned) -> None:
    """A second version to compare with, and a finished trial."""
    spec = {"grader": {"type": "regex", "pattern": "4"}}
    create_reward_version(tenant=ours.tenant, user=ours.user, name="numeric", spec=spec)
    failed = {"error": True, "error_kind": "timed_out", "details": "line 2", "console": "hm"}
    scores = [TrialScore(completion="4", total=1.0, parts={"right": 1.0}), TrialScore(completion="", total=0, **failed)]
    trial_id = ours.reward_trial.pk.hex
    take_in_report(report=TrialReport(trial_id=trial_id, sequence=1, state="done", done=2, scores=[scores]))


def addresses(ours: Owned) -> list[str]:
    return [
        "/",
        "/datasets/",
        "/datasets/?archived",
        "/datasets/new/",
        f"/datasets/uploads/{ours.upload.pk}/",
        f"/datasets/{ours.dataset_version.dataset_id}/",
        "/rewards/",
        "/rewards/new/",
        *[f"/rewards/new/?example={slug}" for slug in ("formula", "python", "judge")],
        f"/rewards/{ours.reward_version.reward_function_id}/",
        f"/rewards/{ours.reward_version.reward_function_id}/changes/",
        f"/rewards/trials/{ours.reward_trial.pk}/",
        "/jobs/",
        "/jobs/?status=failed",
        "/jobs/new/",
        f"/jobs/new/?start_from={ours.adapter.pk}",
        f"/jobs/{ours.job.pk}/",
        f"/jobs/{ours.job.pk}/rollouts/",
        f"/jobs/{ours.job.pk}/rollouts/?failed=on",
        f"/jobs/{ours.job.pk}/rollouts/?step=0",
        f"/jobs/{ours.job.pk}/rollouts/5/2/",
        f"/jobs/{ours.job.pk}/rollouts/5/over-time/",
        f"/jobs/new/?from={ours.job.pk}",
        "/jobs/compare/",
        f"/jobs/compare/?job={ours.job.pk}",
        f"/jobs/compare/?job={ours.job.pk}&job={second_job(ours)}",
        "/adapters/",
        "/environments/",
        f"/adapters/{ours.adapter.pk}/",
        "/usage/",
        "/webhooks/",
        f"/webhooks/{ours.endpoint.pk}/",
        f"/webhooks/{ours.endpoint.pk}/deliveries/{ours.delivery.pk}/",
        "/notifications/",
        "/tokens/",
        "/guides/",
        *[f"/guides/{guide.slug}/" for guide in GUIDES],
        "/members/",
        "/settings/",
        "/audit/",
        "/audit/?actor=nobody",
        "/accounts/email/",
        "/accounts/reauthenticate/",
        "/accounts/2fa/webauthn/",
        "/accounts/2fa/webauthn/add/",
        "/accounts/2fa/totp/activate/",
        "/accounts/password/change/",
        "/accounts/2fa/",
        "/accounts/logout/",
        "/no-such-page/",
    ]


# Each width and each theme once: what a theme breaks it breaks at any width.
@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide-light", "phone-dark"])
def test_every_page_is_accessible_and_fits(
    chromium: Browser,
    portal: Server,
    ours: Owned,
    aside: Callable[..., Any],
    complaints: Complaints,
    viewport: dict[str, int],
    scheme: str,
) -> None:
    aside(grow, ours)
    aside(grow_rewards, ours)
    context = chromium.new_context(base_url=portal.url, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    complaints.watch(context)
    page = context.new_page()
    page.goto("/accounts/login/")
    found = {"/accounts/login/": violations(page)}
    for address in (
        "/accounts/password/reset/",
        "/accounts/password/reset/done/",
        "/accounts/password/reset/key/1-none/",
        "/accounts/password/reset/key/done/",
        "/accounts/inactive/",
        "/accounts/signup/",
        "/invitations/none/",
    ):
        page.goto(address)
        found[address] = violations(page)
    page.goto("/accounts/login/")
    sign_in(page, "ours")
    for address in aside(addresses, ours):
        page.goto(address)
        found[address] = violations(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > viewport["width"]:
            found[address].append(f"{width} pixels wide")
    context.close()
    assert {address: faults for address, faults in found.items() if faults} == {}


def test_dialogs_and_every_state_of_a_job_are_accessible(page: Page, ours: Owned, aside: Callable[..., Any]) -> None:
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    sign_in(page, "ours")
    page.goto(f"/jobs/{ours.job.pk}/")
    for name in ("Pause", "Steps", "Priority", "Cancel job"):
        page.get_by_role("button", name=name, exact=True).click()
        assert violations(page) == []
        page.keyboard.press("Escape")
    aside(pause_job, tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    expect(page.get_by_text("Pausing", exact=True)).to_be_visible()
    assert violations(page) == []
    aside(feed.status, "paused", "Paused on request after step 1 of 2.", "Resume it to go on from there.")
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    page.keyboard.press("t")
    assert violations(page) == []


def test_a_new_tenant_is_told_what_to_do_on_every_page(portal: Server, page: Page, aside: Callable[..., Any]) -> None:
    user = aside(create_user, username="fresh", email="fresh@example.org", password=PASSWORD)
    tenant = aside(create_tenant, name="Fresh", slug="fresh")
    aside(add_member, tenant=tenant, user=user, role=Role.OWNER)
    sign_in(page, "fresh")
    ways = {"/": "Upload a dataset", "/datasets/": "New dataset", "/rewards/": "New reward", "/jobs/": "New job"}
    for address, action in ways.items():
        page.goto(address)
        expect(page.locator("main .btn--primary")).to_have_text(action)
        assert violations(page) == []
    page.goto("/jobs/new/")
    expect(page.get_by_text("You have no datasets yet.")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_count(0)  # in nothing there is nothing to find
    assert violations(page) == []


def test_every_step_of_a_new_job_is_accessible(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/jobs/new/")
    page.get_by_role("button", name="Next: episodes").click()
    expect(page.get_by_text("Give the job a name.")).to_be_visible()
    assert violations(page) == []
    page.goto(f"/jobs/new/?from={ours.job.pk}")
    for name in ("episodes", "learning", "review"):
        page.get_by_role("button", name=f"Next: {name}").click()
        expect(page.locator("[data-go][aria-current]")).to_contain_text(name.capitalize())
        assert violations(page) == []


def test_jobs_without_a_step_and_failed_ones_are_accessible(page: Page, ours: Owned, aside: Callable[..., Any]) -> None:
    job = aside(
        create_job,
        tenant=ours.tenant,
        user=ours.user,
        name="waiting",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings={},
    )
    sign_in(page, "ours")
    page.goto(f"/jobs/{job.pk}/")
    expect(page.get_by_text("The curve starts with the first step.").first).to_be_visible()
    expect(page.locator("#chart-entropy")).to_be_hidden()
    assert violations(page) == []
    feed = JobFeed(job)
    aside(feed.status, "running", "Training.")
    aside(feed.step, 1, 0.5, QUESTIONS)
    expect(page.locator("#chart-entropy canvas")).to_be_visible()
    expect(page.locator("#chart-kl")).to_be_hidden()
    aside(feed.status, "failed", "The reward failed in every episode.", "Correct it, and start the job again.")
    expect(page.get_by_text("Failed", exact=True)).to_be_visible()
    assert violations(page) == []


def test_forms_with_errors_and_open_folds_are_accessible(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/rewards/new/")
    page.get_by_role("radio", name="Mix", exact=True).check()
    page.get_by_role("button", name="Save reward").click()
    page.wait_for_load_state()
    assert violations(page) == []
    page.goto("/datasets/new/")
    page.get_by_role("radio", name="Paste rows").check()
    page.get_by_role("textbox", name="Rows").fill("nonsense")
    page.get_by_label("Name").fill("x")
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.get_by_role("heading", name="Columns and split")).to_be_visible()
    assert violations(page) == []


def store(page: Page, tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    page.goto("/datasets/new/")
    page.locator("#id_file").set_input_files(file)
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_role("button", name="Check and store").click()


def test_what_is_wrong_with_a_dataset_is_accessible(page: Page, ours: Owned, tmp_path: Path) -> None:
    sign_in(page, "ours")
    store(page, tmp_path, "faulty.csv", "question,answer\nWhat is 1+1?,2\nonly one\n")
    expect(page.get_by_role("heading", name="1 fault found, nothing was stored")).to_be_visible()
    page.get_by_text("Metadata: every other column").click()
    assert violations(page) == []
    page.get_by_label("Leave the bad rows out").check()
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="faulty v1")).to_be_visible()
    expect(page.get_by_text("All fit into the context")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Delete").click()
    assert violations(page) == []
    store(page, tmp_path, "repeating.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n' * 2)
    expect(page.get_by_role("heading", name="Some rows repeat others")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("radio", name="Drop them").first.check()
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="repeating v1")).to_be_visible()
    page.goto("/")
    assert violations(page) == []


def test_the_preview_follows_the_columns(page: Page, ours: Owned, tmp_path: Path) -> None:
    sign_in(page, "ours")
    file = tmp_path / "gsm.jsonl"
    file.write_text('{"question": "What is 1+1?", "answer": "One and one.\\n#### 2"}\n')
    page.goto("/datasets/new/")
    page.locator("#id_file").set_input_files(file)
    page.get_by_role("button", name="Upload", exact=True).click()
    answer = page.locator("#preview .chat__message--answer")
    expect(answer).to_contain_text("2")
    expect(answer).not_to_contain_text("One and one.")
    page.get_by_label("Only what follows").fill("")
    expect(answer).to_contain_text("One and one.")
    page.get_by_label("Answer", exact=False).first.select_option("")
    expect(answer).to_have_count(0)
