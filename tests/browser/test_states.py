"""States a page is in only at times, each looked at by axe: quotas, secrets shown once, a tenant to be deleted, an
admin acting as a member, open menus and dialogs; and the API reference, which is not the portal's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect

from portal.tenants.deletion import request_deletion
from portal.tenants.services import create_api_token
from portal.usage.models import QuotaKind, QuotaNotice, TenantQuotas
from portal.usage.periods import Period
from portal.webhooks.services import change_endpoint
from tests.browser.conftest import PASSWORD, PHONE, sign_in
from tests.browser.test_pages import violations
from tests.portal.factories import Owned

Aside = Callable[..., Any]


def fill_quotas(ours: Owned) -> None:
    """One quota nearly used up, one wholly, with the notices that gave."""
    TenantQuotas.objects.create(tenant=ours.tenant, max_queued_jobs=9, max_storage_bytes=1)
    kinds = (
        (QuotaKind.TRAINED_TOKENS, "warning"),
        (QuotaKind.STORAGE_BYTES, "warning"),
        (QuotaKind.STORAGE_BYTES, "reached"),
    )
    for kind, level in kinds:
        QuotaNotice.objects.create(
            tenant=ours.tenant, kind=kind, level=level, period=Period.of().first, used=9.0, limit=10.0
        )


def test_quotas(page: Page, ours: Owned, aside: Aside) -> None:
    aside(fill_quotas, ours)
    sign_in(page, "ours")
    page.goto("/usage/")
    expect(page.get_by_text("Used up", exact=True)).to_be_visible()
    alerts = page.locator("main .alert")
    expect(alerts).to_have_count(2)  # the warning that came before the stop says nothing more
    expect(alerts.filter(has_text="Storage")).to_contain_text("used up")
    assert violations(page) == []
    page.goto("/usage/?month=2020-01")
    assert violations(page) == []


def test_webhooks_and_tokens(page: Page, ours: Owned, aside: Aside) -> None:
    sign_in(page, "ours")
    page.goto("/webhooks/")
    page.get_by_label("Address").fill("http://10.0.0.1/hook")
    page.get_by_role("button", name="Add endpoint").click()
    expect(page.get_by_text("private or local")).to_be_visible()
    assert violations(page) == []
    page.get_by_label("Address").fill("https://example.org/another")
    page.get_by_role("button", name="Add endpoint").click()
    expect(page.get_by_role("heading", name="Copy the signing secret now")).to_be_visible()
    assert violations(page) == []
    aside(change_endpoint, tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, enabled=False)
    page.goto(f"/webhooks/{ours.endpoint.pk}/")
    expect(page.get_by_text("This endpoint is switched off.")).to_be_visible()
    assert violations(page) == []
    for name in ("New secret", "Delete"):
        page.get_by_role("button", name=name).click()
        assert violations(page) == []
        page.keyboard.press("Escape")
    token, _ = aside(create_api_token, tenant=ours.tenant, user=ours.user, name="old")
    token.expires_at = timezone.now()
    aside(token.save)
    page.goto("/tokens/")
    expect(page.get_by_role("row", name="old")).to_contain_text("Expired")
    page.get_by_label("Name").fill("new")
    page.get_by_role("button", name="Create token").click()
    expect(page.get_by_role("heading", name="copy the token now")).to_be_visible()
    assert violations(page) == []


def test_a_tenant_that_is_to_be_deleted(page: Page, ours: Owned, aside: Aside) -> None:
    aside(request_deletion, tenant=ours.tenant, user=ours.user, confirmation=ours.tenant.name)
    sign_in(page, "ours")
    assert violations(page) == []
    page.get_by_role("link", name="Keep it").click()
    expect(page.get_by_role("heading", name="This tenant will be deleted")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Keep the tenant").click()
    page.goto("/")
    expect(page.get_by_text("will be deleted")).to_have_count(0)


def test_menus_and_dialogs_of_the_frame(page: Page, ours: Owned, aside: Aside) -> None:
    ours.tenant.name = "A tenant with a name that is much too long for the menu of a phone"
    aside(ours.tenant.save)
    sign_in(page, "ours")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator(".sidebar .switcher").first.click()
    assert violations(page) == []
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/members/")
    page.get_by_label("Account and tenant").click()
    panel = page.locator(".topbar .menu__panel")
    box = panel.bounding_box()
    assert box is not None and box["x"] >= 0 and box["y"] + box["height"] <= PHONE["height"]
    expect(panel.get_by_role("link", name="Members")).to_have_attribute("aria-current", "page")
    assert violations(page) == []


def test_acting_as_a_member(page: Page, ours: Owned, aside: Aside) -> None:
    aside(User.objects.create_superuser, "root", "root@example.org", PASSWORD)
    member = aside(ours.tenant.memberships.get, user=ours.user)
    sign_in(page, "root")
    page.goto(f"/impersonation/{member.pk}/")
    assert violations(page) == []
    page.get_by_label("Reason").fill("Asked for help")
    page.locator("main form button").last.click()
    expect(page.get_by_role("complementary", name="Acting as a member")).to_be_visible()
    assert violations(page) == []
    account = page.locator(".sidebar__foot .switcher")  # the banner pushes nothing out of the window
    box = account.bounding_box()
    assert box is not None and box["y"] + box["height"] <= page.evaluate("innerHeight")


def test_the_api_reference_of_a_signed_in_member(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/api/v1/docs/")
    expect(page.get_by_role("button", name="Authorize")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Guides").click()
    expect(page.get_by_role("heading", name="API", exact=True)).to_be_visible()


def test_confirming_who_one_is(page: Page, ours: Owned) -> None:
    sign_in(page, "ours")
    page.goto("/accounts/2fa/totp/activate/")
    expect(page.get_by_role("heading", name="Confirm that it is you")).to_be_visible()
    assert violations(page) == []
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_url("**/totp/activate/")
    assert violations(page) == []


def test_a_security_key_that_is_not_used_is_told(page: Page, ours: Owned) -> None:
    page.add_init_script(
        "navigator.credentials.create = () => Promise.reject(new DOMException('cancelled', 'NotAllowedError'))"
    )
    sign_in(page, "ours")
    page.goto("/accounts/2fa/webauthn/add/")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_role("button", name="Add the key").click()
    expect(page.locator(".toast--error")).to_contain_text("No key was used")
    assert violations(page) == []
