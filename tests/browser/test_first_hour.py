"""A tenant's first hour, as one journey: a link in a mail at its beginning, a model that learnt at its end.

The engine's part is fed in, event by event; the webhook goes to a server of the test.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import hmac
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from engine.spec.trial import TrialScore
from portal.jobs.models import Job
from portal.webhooks.delivery import deliver_due
from tests.browser.conftest import PASSWORD, WIDE, Complaints, Server, sign_in
from tests.browser.feeding import JobFeed
from tests.browser.second_factor import set_up_second_factor
from tests.browser.test_journey import QUESTIONS, make_tenant, watch_it_learn
from tests.browser.test_rewards import report
from tests.portal.factories import WEIGHTS
from tests.portal.webhooks.receiver import Receiver, start

Aside = Callable[..., Any]
NEW_PASSWORD = "compilers and nanoseconds"
FAULTY = """{"prompt": "What is 2 + 2?", "answer": 4}
{"prompt": "", "answer": 7}
{"prompt": "What is 5 + 1?", "answer": 6
{"answer": 9}
"""
FIXED = "".join(
    json.dumps({"prompt": f"What is {a} + {b}?", "answer": a + b}) + "\n" for a in range(4) for b in range(4)
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """The tenant's own server, which is told of jobs."""
    receiver = Receiver()
    server = start(receiver)
    yield receiver
    server.shutdown()
    server.server_close()


@pytest.fixture
def grace(chromium: Browser, portal: Server, complaints: Complaints) -> Iterator[Page]:
    """Whoever is invited, with a browser of her own."""
    context = chromium.new_context(base_url=portal.url, viewport=WIDE, accept_downloads=True)  # type: ignore[arg-type]
    complaints.watch(context)
    yield context.new_page()
    context.close()


def visit(page: Page, name: str) -> None:
    """By the menu at the side."""
    page.locator(".sidebar").get_by_role("link", name=name, exact=True).click()
    expect(page.locator(".sidebar").get_by_role("link", name=name, exact=True)).to_have_attribute(
        "aria-current", "page"
    )


# --- coming in -------------------------------------------------------------------------------------------------------


def require_two_factors(owner: Page) -> None:
    """Who asks others for a second factor needs one first, and is told so."""
    visit(owner, "Settings")
    owner.get_by_label("Require two-factor sign-in").check()
    owner.get_by_role("button", name="Save", exact=True).click()
    expect(owner.get_by_role("main")).to_contain_text("for yourself first")
    owner.get_by_role("main").get_by_role("link", name="Set up two-factor sign-in").click()
    set_up_second_factor(owner, PASSWORD)
    visit(owner, "Settings")
    owner.get_by_label("Require two-factor sign-in").check()
    owner.get_by_role("button", name="Save", exact=True).click()
    expect(owner.get_by_text("The settings are saved.")).to_be_visible()


def invite(owner: Page) -> str:
    """Grace's invitation, as the link that is shown once."""
    visit(owner, "Members")
    owner.get_by_label("E-mail address").fill("grace@example.org")
    owner.get_by_role("button", name="Invite").click()
    return owner.locator("#invitation-link").inner_text()


def come_in(page: Page, link: str) -> None:
    page.goto(link)
    expect(page.get_by_role("heading", name="Join Engines")).to_be_visible()
    page.get_by_label("Username").fill("grace")
    page.get_by_label("Password").fill("short")
    page.get_by_role("button", name="Make the account and join").click()
    expect(page.get_by_text("This password is too short")).to_be_visible()
    page.get_by_label("Password").fill(NEW_PASSWORD)
    page.get_by_role("button", name="Make the account and join").click()
    expect(page.get_by_text("Engines asks its members for two-factor sign-in.")).to_be_visible()
    set_up_second_factor(page, NEW_PASSWORD)
    expect(page.get_by_text("0 of 4 done")).to_be_visible()


def start_the_sample(page: Page, aside: Aside) -> None:
    """One click, and what it made is there to look into."""
    page.get_by_role("button", name="Start the sample project").click()
    expect(page.get_by_text("The sample project is under way")).to_be_visible()
    expect(page.get_by_role("heading", name="Sample: learn to add")).to_be_visible()
    feed = JobFeed(aside(Job.objects.get))
    aside(feed.status, "running", "The job has its place in the pool.")
    aside(feed.step, 1, 0.4, QUESTIONS)
    expect(page.get_by_label("State", exact=True).get_by_text("Step 1")).to_be_visible()
    aside(feed.status, "succeeded", "All steps are done.")
    expect(page.get_by_label("State", exact=True).get_by_text("All steps are done.")).to_be_visible()


# --- rows and rewards ------------------------------------------------------------------------------------------------


def upload_with_mistakes(page: Page, tmp_path: Path) -> None:
    """The faults are told by line and field, all of them can be had as a file, and the mended file goes through."""
    file = tmp_path / "sums.jsonl"
    file.write_text(FAULTY)
    visit(page, "Datasets")
    page.get_by_role("link", name="New dataset").click()
    page.locator("#id_file").set_input_files(file)
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="3 faults found, nothing was stored")).to_be_visible()
    faults = page.get_by_role("region", name="Faulty lines").get_by_role("row")
    told = [(row.get_by_role("cell").nth(0).inner_text(), row.get_by_role("cell").nth(1).inner_text()) for row in
            faults.all()[1:]]  # fmt: skip
    assert told == [("2", "prompt"), ("3", "–"), ("4", "prompt")]
    with page.expect_download() as download:
        page.get_by_role("link", name="All as CSV").click()
    with open(download.value.path(), newline="") as kept:
        rows = list(csv.DictReader(kept))
    assert [(row["line"], row["field"]) for row in rows] == [("2", "prompt"), ("3", ""), ("4", "prompt")]
    assert all(row["problem"] for row in rows)
    file.write_text(FIXED)
    page.get_by_role("link", name="send another file").click()
    page.locator("#id_file").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("sums")
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_label("Share", exact=True).fill("25")
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="sums v1")).to_be_visible()


def write_and_test_a_reward(page: Page, aside: Aside) -> None:
    """Edited, tested, saved; a second version after another look."""
    visit(page, "Rewards")
    page.get_by_role("link", name="New reward").click()
    page.get_by_role("link", name="Numeric answer").click()
    page.get_by_label("Name").first.fill("the number")
    page.get_by_role("textbox", name="Completion to score").first.fill("It is 4.")
    page.get_by_role("button", name="Test", exact=True).click()
    result = page.get_by_role("region", name="Result of the test")
    expect(result.get_by_text("Waits for the engine.")).to_be_visible()
    aside(report, "done", done=1, scores=[[TrialScore(completion="It is 4.", total=1.0, reason="read 4")]])
    expect(result.get_by_text("read 4").first).to_be_visible()
    page.get_by_role("button", name="Save reward").click()
    expect(page.get_by_role("heading", name="the number v1")).to_be_visible()
    page.get_by_role("link", name="New version").click()
    page.get_by_label("Time limit").fill("3")
    page.get_by_role("button", name="Save reward").click()
    expect(page.get_by_role("heading", name="the number v2")).to_be_visible()


# --- jobs ------------------------------------------------------------------------------------------------------------


def start_a_job(page: Page) -> None:
    """Four steps, what it takes beside them."""
    page.get_by_role("link", name="Use in a job").click()
    page.get_by_label("Name", exact=True).fill("first try")
    expect(page.get_by_role("radio", name="the number v2")).to_be_checked()
    page.get_by_role("radio", name=re.compile("^sums v1")).check()
    page.get_by_role("button", name="Next: episodes").click()
    page.get_by_role("button", name="Next: learning").click()
    page.get_by_role("button", name="Quick try").click()
    expect(page.locator("[data-part=estimate]")).to_contain_text("Episodes128")  # 8 steps x 4 prompts x 4 answers
    page.get_by_role("button", name="Next: review").click()
    expect(page.locator("[data-part=review]")).to_contain_text("the number v2")
    page.get_by_role("button", name="Start job").click()
    expect(page.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def train_another(page: Page, aside: Aside) -> JobFeed:
    page.get_by_role("link", name="Same again").first.click()
    page.get_by_label("Name", exact=True).fill("second try")
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Start job").click()
    expect(page.get_by_text("Waiting for the engine to take the job.")).to_be_visible()
    feed = JobFeed(aside(Job.objects.get, name="second try"))
    aside(feed.status, "running", "The job has its place in the pool.")
    for number in (1, 2):
        aside(feed.step, number, 0.4, QUESTIONS)
    expect(page.get_by_label("State", exact=True).get_by_text("Step 2")).to_be_visible()
    return feed


def compare_both(page: Page) -> None:
    visit(page, "Jobs")
    for name in ("first try", "second try"):
        page.get_by_role("row", name=name).get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name="Compare jobs")).to_be_visible()
    for name in ("first try", "second try"):
        expect(page.get_by_role("row", name=name).first).to_be_visible()


def download_the_result(page: Page, tmp_path: Path) -> None:
    """Byte for byte what the engine stored, by the digest the page shows."""
    visit(page, "Adapters")
    page.get_by_role("link", name="first try v2").click()
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    expect(page.locator("#snippet-curl")).to_contain_text(digest)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        name = next(name for name in archive.namelist() if name.endswith("adapter_model.safetensors"))
        assert hashlib.sha256(archive.read(name)).hexdigest() == digest


# --- being told ------------------------------------------------------------------------------------------------------


def is_signed(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """As a receiver checks it, by the Standard Webhooks scheme."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    text = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    return headers["webhook-signature"] == f"v1,{base64.b64encode(hmac.digest(key, text, 'sha256')).decode()}"


def add_endpoint(page: Page, url: str) -> None:
    page.get_by_label("Address").fill(url)
    page.get_by_role("button", name="Add endpoint").click()


def be_told(page: Page, receiver: Receiver, feed: JobFeed, aside: Aside) -> None:
    """An endpoint, a test message, the message of a job that ends, and that one again."""
    add_endpoint(page, receiver.url)
    expect(page.get_by_role("heading", name="Copy the signing secret now")).to_be_visible()
    secret = page.locator("#secret").inner_text().strip()
    page.get_by_role("link", name=receiver.url).click()
    expect(page.get_by_text("Nothing sent yet")).to_be_visible()
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("row", name="ping")).to_contain_text("Waiting")
    aside(deliver_due)
    expect(page.get_by_role("row", name="ping")).to_contain_text("Delivered")  # without a reload
    aside(feed.status, "succeeded", "All steps are done.")
    aside(deliver_due)
    page.reload()
    page.get_by_role("link", name="job.succeeded").click()
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("Received")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("The message is on its way again.")).to_be_visible()
    aside(deliver_due)
    page.reload()
    expect(page.get_by_role("region", name="Attempts").get_by_text("Received")).to_have_count(2)
    ping, ended, again = receiver.received
    for path, headers, body in receiver.received:
        assert path == "/hook" and is_signed(headers, body, secret)
        assert not is_signed(headers, body + b" ", secret)
    assert json.loads(ping[2])["type"] == "ping"
    assert json.loads(ended[2])["data"]["job"]["name"] == "second try"
    assert again[2] == ended[2] and again[1]["webhook-id"] == ended[1]["webhook-id"] != ping[1]["webhook-id"]


def test_from_the_invitation_to_the_webhook(
    page: Page, grace: Page, portal: Server, receiver: Receiver, aside: Aside, tmp_path: Path, settings: Any
) -> None:
    aside(make_tenant)
    sign_in(page, "ada")
    require_two_factors(page)
    come_in(grace, invite(page))
    start_the_sample(grace, aside)
    upload_with_mistakes(grace, tmp_path)
    write_and_test_a_reward(grace, aside)
    start_a_job(grace)
    watch_it_learn(grace, aside, "first try")
    feed = train_another(grace, aside)
    compare_both(grace)
    download_the_result(grace, tmp_path)
    visit(grace, "Webhooks")
    add_endpoint(grace, receiver.url)
    expect(grace.get_by_text("this is a private or local address")).to_be_visible()
    expect(grace.get_by_label("Address")).to_have_attribute("aria-invalid", "true")
    with portal.set_to(WEBHOOKS_ALLOW_PRIVATE="true"):
        settings.WEBHOOKS_ALLOW_PRIVATE = True  # for the deliveries, which this process makes
        be_told(grace, receiver, feed, aside)
    page.goto("/members/")
    expect(page.get_by_role("row", name="grace")).to_contain_text("Developer")
    page.goto("/audit/")
    for action in ("invitation.accepted", "dataset.uploaded", "reward.saved", "job.created", "webhook.created"):
        expect(page.get_by_role("main")).to_contain_text(action)
