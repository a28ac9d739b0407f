"""Five minutes without a network, in which more happens than fits into one message: nothing is missed.

The network really is cut; the browser's clock runs through the five minutes, and with it its tries to connect again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.jobs.models import JobEvent
from portal.jobs.services import create_job
from portal.live.consumers import PAGE_EVENTS
from tests.browser.conftest import WIDE, Complaints, Server, sign_in
from tests.browser.feeding import JobFeed
from tests.browser.wire import wire_to
from tests.portal.factories import Owned

Aside = Callable[..., Any]
QUESTIONS = [("What is 2 + 2?", "4"), ("What is 3 + 4?", "7")]
BEFORE, AFTER = 4, 150
LIVE = "main [data-live-state]"
WATCH_WORDS = """() => {
  window.notReloaded = true;
  const dot = document.querySelector("main [data-live-state]");
  window.said = [dot.textContent];
  new MutationObserver(() => window.said.push(dot.textContent)).observe(dot, {subtree: true, childList: true});
}"""
SHOWN = """() => {
  const main = document.querySelector("main").cloneNode(true);
  // What tells the time, and what the page has drawn on the way: the curves are compared by their descriptions.
  const changing = "time, [data-live-state], #summary .muted, .uplot, script, dialog";
  for (const part of main.querySelectorAll(changing)) part.remove();
  return {
    title: document.title,
    curves: [...document.querySelectorAll("[id^=chart-]")].map((chart) => `${chart.id}: ${chart.ariaLabel}`),
    groups: [...document.querySelectorAll("#rollouts > .group")].map((group) => group.dataset.seq),
    text: main.textContent.split(/\\s+/).join(" "),
  };
}"""


def start_long_job(ours: Owned) -> JobFeed:
    job = create_job(
        tenant=ours.tenant,
        user=ours.user,
        name="long job",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings={"training": {"steps": 200}},
    )
    feed = JobFeed(job)
    feed.status("running", "The job has its place in the pool.")
    feed.evaluate(0.1)
    for number in range(1, BEFORE + 1):
        feed.step(number, 0.1, QUESTIONS)
    return feed


def go_on(feed: JobFeed) -> None:
    """What happens while nobody looks."""
    for number in range(BEFORE + 1, AFTER + 1):
        feed.step(number, 0.1 + 0.8 * number / AFTER, QUESTIONS)
    feed.adapter(AFTER // 2)
    feed.evaluate(0.6, AFTER // 2)
    feed.notice("2 groups had no signal.", "Try easier prompts.")
    feed.adapter(AFTER)
    feed.evaluate(0.9, AFTER)


def shown(page: Page) -> dict[str, Any]:
    """All the page says, but for times told from now."""
    found: dict[str, Any] = page.evaluate(SHOWN)
    return found


@pytest.mark.parametrize("told", [True, False], ids=["the browser knows", "nobody is told"])
def test_nothing_is_missed_in_a_cut_of_five_minutes(
    chromium: Browser, portal: Server, ours: Owned, complaints: Complaints, aside: Aside, told: bool
) -> None:
    feed = aside(start_long_job, ours)
    with wire_to(portal.port) as wire:
        context = chromium.new_context(base_url=wire.url, viewport=WIDE)  # type: ignore[arg-type]
        complaints.watch(context)
        context.clock.install()
        page, jobs = context.new_page(), context.new_page()
        sign_in(page, "ours")
        page.goto(f"/jobs/{feed.job.pk}/")
        jobs.goto("/jobs/")
        state = page.locator(LIVE)
        expect(state).to_have_text("Live")
        expect(page.locator("#rollouts > .group")).to_have_count(2 * BEFORE)
        page.evaluate(WATCH_WORDS)
        wire.cut()
        if told:
            context.set_offline(True)
            expect(state).to_have_text(re.compile("^Offline"))
        aside(go_on, feed)
        assert aside(JobEvent.objects.filter(job=feed.job).count) > 2 * PAGE_EVENTS
        context.clock.run_for("05:00")
        expect(state).to_have_text(re.compile(r"^Offline"))
        expect(page.locator("#summary")).to_contain_text(f"Step {BEFORE} ")
        wire.mend()
        if told:
            context.set_offline(False)
        expect(state).to_have_text("Live", timeout=60_000)
        expect(page.locator("#chart-reward")).to_have_attribute("aria-label", re.compile(f"up to step {AFTER}. "))
        expect(page.locator("#summary")).to_contain_text(f"Step {AFTER} ")
        expect(page.locator("#rollouts > .group")).to_have_count(12)
        expect(jobs.get_by_role("row", name="long job")).to_contain_text(f"{AFTER} / 200")
        fresh = context.new_page()
        fresh.goto(f"/jobs/{feed.job.pk}/")
        expect(fresh.locator("#chart-reward")).to_have_attribute("aria-label", re.compile(f"up to step {AFTER}. "))
        expect(fresh).to_have_title(re.compile(f"^{AFTER}/200 "))  # from its first frame
        for _ in range(40):  # some of it is drawn on the next frame or second
            caught_up, loaded = shown(page), shown(fresh)
            if caught_up == loaded:
                break
            fresh.wait_for_timeout(250)
        assert caught_up["text"].split() == loaded["text"].split()  # a failure then says what differs
        assert caught_up == loaded
        assert page.evaluate("window.notReloaded") is True
        said = page.evaluate("window.said")
        words = [re.split(" · ", text)[0] for text in said]
        assert [word for before, word in zip(["", *words], words, strict=False) if word != before] == (
            ["Live", "Offline", "Live"] if told else ["Live", "Reconnecting", "Offline", "Live"]
        )
        assert any(re.search(r"trying again in \d+ s$", text) for text in said)
        # And it is live, not only caught up.
        aside(feed.step, AFTER + 1, 0.9, QUESTIONS)
        expect(page.locator("#summary")).to_contain_text(f"Step {AFTER + 1} ")
        context.close()
