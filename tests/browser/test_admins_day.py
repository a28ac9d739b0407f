"""An admin's day, as one journey: a tenant made, the engine looked after, a member helped, all of it found in the log.

What the engine would report is handed in; the admin's wishes are read where the engine would get them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from engine.events import Event, EventBatch, Payload, Span
from engine.spec import DrainControl, NodeState, TenantShare
from portal.audit.models import AuditEntry
from portal.base_models.services import BUNDLED_ID
from portal.engine_room.models import DrainWish, PoolWish
from portal.engine_room.services import note_heartbeat, store_report
from portal.jobs.tasks import ingest_events
from portal.tenants.models import Invitation
from portal.webhooks.delivery import deliver_due
from portal.webhooks.services import create_endpoint, send_ping
from tests.browser.conftest import PASSWORD, WIDE, Complaints, Server
from tests.portal.engine_room.conftest import make_report
from tests.portal.factories import Owned
from tests.portal.webhooks.receiver import Receiver, answer_with, start

Aside = Callable[..., Any]


@pytest.fixture
def broken_server() -> Iterator[Receiver]:
    """A tenant's server that cannot take what it is told."""
    receiver = Receiver(answer=answer_with(500, b"out of order"))
    server = start(receiver)
    yield receiver
    server.shutdown()
    server.server_close()


@pytest.fixture
def ada(chromium: Browser, portal: Server, complaints: Complaints) -> Iterator[Page]:
    """The new tenant's owner, with a browser of her own."""
    context = chromium.new_context(base_url=portal.url, viewport=WIDE)  # type: ignore[arg-type]
    complaints.watch(context)
    yield context.new_page()
    context.close()


def save(page: Page) -> None:
    page.get_by_role("button", name="Save", exact=True).click()


def tenant_row(page: Page) -> Any:
    page.goto("/admin/tenants/tenant/")
    return page.get_by_role("row", name="Engines")


# --- tenants and base models -----------------------------------------------------------------------------------------


def sign_in_as_admin(page: Page) -> None:
    page.goto("/admin/")
    page.get_by_label("Username or e-mail address").fill("root")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/admin/")


def make_a_tenant(page: Page) -> str:
    """With an owner to come: the link of the invitation."""
    page.goto("/admin/tenants/tenant/")
    page.get_by_role("link", name="Add tenant").click()
    page.get_by_label("Name:").press_sequentially("Engines")
    expect(page.get_by_label("Slug:")).to_have_value("engines")
    save(page)
    expect(page.get_by_text("Engines has no owner yet")).to_be_visible()
    expect(page.get_by_label("Role")).to_have_value("owner")
    page.get_by_label("E-mail address").fill("ada@example.org")
    page.get_by_role("button", name="Invite").click()
    expect(page.get_by_text("ada@example.org is invited as owner.")).to_be_visible()
    return page.locator("#invitation-link").inner_text()


def come_in(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Make the account and join").click()
    expect(page.get_by_text("Welcome to Engines.")).to_be_visible()


def change_a_quota(page: Page, member: Page) -> None:
    """Not without a reason, which the tenant can read."""
    tenant_row(page).get_by_role("link", name="Quotas").click()
    expect(page.get_by_label("Max active jobs:")).to_have_value("4")
    page.get_by_label("Max active jobs:").fill("9")
    save(page)
    expect(page.get_by_text("This field is required.")).to_be_visible()
    page.get_by_label("Reason:").fill("They pay for more.")
    save(page)
    expect(page.get_by_text(re.compile("was changed successfully"))).to_be_visible()
    member.goto("/usage/")
    member.get_by_text("Changes of the quotas").click()
    expect(member.get_by_text("They pay for more.")).to_be_visible()


def offer_a_base_model(page: Page, member: Page) -> None:
    page.goto("/admin/base_models/basemodel/add/")
    page.get_by_label("Id:").fill("small-model")
    page.get_by_label("Source:").select_option("local")
    page.get_by_label("Location:").fill("models/small")
    page.get_by_label("Context length:").fill("2048")
    save(page)
    expect(page.locator(".field-location .errorlist")).to_contain_text("Must be an absolute folder on the engine")
    page.get_by_label("Location:").fill("/models/small")
    save(page)
    expect(page.get_by_role("row", name="small-model")).to_be_visible()
    member.goto("/jobs/new/")
    expect(member.get_by_text("small-model").first).to_be_visible()


# --- the engine ------------------------------------------------------------------------------------------------------


def run_stages(ours: Owned) -> None:
    """A minute of a job: half of it rollout, a quarter training; by the task the engine's batches come to."""
    now = time.time()
    stages: list[Payload] = [
        Span(stage="rollout", worker="rollout", start=now - 60, end=now - 30, tokens=640),
        Span(stage="train", worker="trainer", start=now - 30, end=now - 15, tokens=640),
    ]
    events = [
        Event(job_id=ours.job.pk.hex, seq=ours.job.last_seq + place, time=now, payload=span)
        for place, span in enumerate(stages, start=1)
    ]
    ingest_events(EventBatch(events=events).model_dump(mode="json"))


def report_engine(ours: Owned, **changes: Any) -> None:
    """Two machines, one of them lost; the tenant has all of the rollout."""
    share = TenantShare(tenant_id=ours.tenant.pk.hex, weight=1, used=300, waiting=2)
    pool = make_report().pools[0].model_copy(update={"rollout_shares": [share]})
    nodes = [NodeState(name="host-a", alive=True, cpus=2), NodeState(name="host-b", alive=False, cpus=2)]
    assert store_report(report=make_report(pools=[pool], nodes=nodes, **changes))
    note_heartbeat()


def look_at_the_engine(page: Page, ours: Owned, aside: Aside) -> None:
    page.goto("/admin/")
    page.get_by_role("link", name="Engine", exact=True).click()
    expect(page.get_by_text("The engine has never been heard from.")).to_be_visible()
    expect(page.get_by_text("The events worker shows no sign of life")).to_be_visible()
    aside(run_stages, ours)
    aside(report_engine, ours)
    expect(page.get_by_text("The engine has never been heard from.")).to_be_hidden()  # by itself
    expect(page.get_by_text("The events worker shows no sign of life")).to_be_hidden()
    for queue in ("engine", "events"):
        expect(page.get_by_text(f"Celery queue “{queue}”")).to_be_visible()
    pool = page.get_by_role("region", name=f"Pool of {BUNDLED_ID}")
    expect(pool.get_by_label("Share of Ours")).to_be_visible()
    expect(pool.get_by_role("row", name="rollout-0")).to_contain_text("Serving")
    expect(page.get_by_role("img", name=re.compile("^Rollout: in use"))).to_have_attribute(
        "aria-label",
        re.compile(r"in use (9\.\d|10\.\d)\u202f%"),  # 30 s of 5 minutes
    )
    expect(page.get_by_role("img", name=re.compile("^Training: in use"))).to_be_visible()
    expect(page.get_by_role("row", name="host-a")).to_contain_text("Alive")
    expect(page.get_by_role("row", name="host-b")).to_contain_text("Lost")
    expect(page.get_by_role("row", name="first job")).to_contain_text("Ours")


def drain_and_resume(page: Page, ours: Owned, aside: Aside) -> None:
    page.get_by_role("button", name="Drain the engine").click()
    expect(page.get_by_text(re.compile("This field is required|Say why|is needed")).first).to_be_visible()
    page.get_by_label("Reason").fill("new GPUs")
    page.get_by_role("button", name="Drain the engine").click()
    expect(page.get_by_text("The engine is asked to take no work.")).to_be_visible()
    wish = aside(DrainWish.objects.get)
    drained = DrainControl(revision=wish.revision, draining=True, reason="new GPUs")
    aside(report_engine, ours, drain=drained)
    expect(page.get_by_text("The engine is drained.")).to_be_visible()
    page.get_by_role("button", name="Take work again").click()
    expect(page.get_by_text("The engine is asked to take work again.")).to_be_visible()
    aside(report_engine, ours, drain=DrainControl(revision=wish.revision + 1, draining=False, reason=""))
    expect(page.get_by_text("The engine is asked to take work again.")).to_be_hidden()
    expect(page.get_by_role("button", name="Drain the engine")).to_be_visible()


def scale_a_pool(page: Page, aside: Aside) -> None:
    page.get_by_role("region", name=f"Pool of {BUNDLED_ID}").get_by_role("link", name="Scale").click()
    page.get_by_label("Rollout workers").fill("0")
    page.get_by_role("button", name="Scale").click()
    expect(page.get_by_text(re.compile("greater than or equal to 1|at least 1"))).to_be_visible()
    page.get_by_label("Rollout workers").fill("2")
    page.get_by_role("button", name="Scale").click()
    expect(page.get_by_text("2 rollout workers asked for")).to_be_visible()
    assert aside(PoolWish.objects.get).rollout_workers == 2


# --- members and their troubles --------------------------------------------------------------------------------------


def act_as_a_member(page: Page, aside: Aside) -> None:
    """With a reason; to look, and nothing more."""
    page.goto("/admin/tenants/membership/")
    page.get_by_role("link", name="See what ada sees").click()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("Say why: it goes into the tenant's audit log.")).to_be_visible()
    page.get_by_label("Reason").fill("She asks why her job waits.")
    page.get_by_role("button", name="Start").click()
    banner = page.get_by_role("complementary", name="Acting as a member")
    expect(banner).to_contain_text("You, root, act as ada in Engines, only to look")
    page.goto("/members/")
    expect(page.get_by_label("E-mail address")).to_have_count(
        0
    )  # nothing is offered, and what is sent anyway is refused
    sent = {"csrfmiddlewaretoken": banner.locator("[name=csrfmiddlewaretoken]").input_value()}
    sent |= {"email": "eve@example.org", "role": "viewer"}
    answer = page.request.post(page.url, form=sent, headers={"Referer": page.url})
    assert answer.status == 403
    assert "You act as ada to look, not to change anything." in answer.text()
    assert not aside(Invitation.objects.filter(email="eve@example.org").exists)
    expect(banner).to_be_visible()
    banner.get_by_role("button", name="End").click()
    expect(page.get_by_text("You are yourself again.")).to_be_visible()
    expect(banner).to_be_hidden()


def break_a_webhook(ours: Owned, url: str) -> None:
    endpoint, _ = create_endpoint(tenant=ours.tenant, user=ours.user, url=url, events=["job.failed"])
    send_ping(tenant=ours.tenant, user=ours.user, endpoint_id=endpoint.pk)
    assert deliver_due() == 1


def find_the_failing_webhook(page: Page, url: str) -> None:
    page.goto("/admin/webhooks/endpoint/")
    page.get_by_role("link", name="Not empty").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(page.get_by_role("row", name=url)).to_contain_text("Ours")
    page.get_by_role("row", name=url).get_by_role("link", name="Messages").click()
    page.locator("#result_list tbody tr").get_by_role("link").first.click()
    expect(page.get_by_text("Answered 500; only 2xx counts as received.")).to_be_visible()


def read_the_log(page: Page, aside: Aside) -> None:
    """Everything of the day: who, what, from what to what, in which request."""
    tenant_row(page).get_by_role("link", name="Audit log").click()
    for action in ("tenant.created", "invitation.created", "quotas.changed", "impersonation.started"):
        expect(page.get_by_role("row", name=action)).to_contain_text("root")
    page.get_by_role("row", name="impersonation.started").get_by_role("link").first.click()
    expect(page.locator(".field-on_behalf_of")).to_contain_text("ada")
    expect(page.locator(".field-reason")).to_contain_text("She asks why her job waits.")
    tenant_row(page).get_by_role("link", name="Audit log").click()
    page.get_by_role("row", name="quotas.changed").get_by_role("link").first.click()
    expect(page.locator(".field-changes_in_words")).to_contain_text("active jobs: 4 → active jobs: 9")
    expect(page.locator(".field-reason")).to_contain_text("They pay for more.")
    request_id = aside(AuditEntry.objects.get, action="quotas.changed").request_id
    assert request_id
    expect(page.locator(".field-request_id")).to_contain_text(request_id)
    page.goto("/admin/audit/auditentry/?q=root")
    for action in ("basemodel.created", "engine.drained", "engine.resumed", "pool.scaled", "impersonation.ended"):
        expect(page.get_by_role("row", name=action)).to_be_visible()


def test_an_admins_day(
    page: Page, ada: Page, ours: Owned, broken_server: Receiver, aside: Aside, settings: Any
) -> None:
    aside(User.objects.create_superuser, "root", "root@example.org", PASSWORD)
    sign_in_as_admin(page)
    come_in(ada, make_a_tenant(page))
    change_a_quota(page, ada)
    offer_a_base_model(page, ada)
    look_at_the_engine(page, ours, aside)
    drain_and_resume(page, ours, aside)
    scale_a_pool(page, aside)
    act_as_a_member(page, aside)
    ada.goto("/audit/")
    expect(ada.get_by_role("main")).to_contain_text("She asks why her job waits.")
    settings.WEBHOOKS_ALLOW_PRIVATE = True  # for the deliveries, which this process makes
    aside(break_a_webhook, ours, broken_server.url)
    find_the_failing_webhook(page, broken_server.url)
    read_the_log(page, aside)
