"""Two-factor sign-in, lock-out, switching tenants, and admins who act as members."""

from __future__ import annotations

from datetime import timedelta

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP
from asgiref.sync import sync_to_async
from django.core import mail
from django.test import Client
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.base_models.services import ensure_bundled_base_model
from portal.errors import InvalidInput, NotAllowed
from portal.tenants.impersonation import start_impersonation
from portal.tenants.models import Impersonation, Role, Tenant
from portal.tenants.services import add_member, change_tenant, create_tenant, create_user
from tests.portal.factories import build_owned
from tests.portal.websocket import Socket

BACKEND = "django.contrib.auth.backends.ModelBackend"


def with_mfa(user):
    TOTP.activate(user, "JBSWY3DPEHPK3PXP")
    return user


# --- two-factor sign-in ----------------------------------------------------------------------------------------------


def test_owners_cannot_lock_themselves_out(ours):
    with pytest.raises(InvalidInput) as caught:
        change_tenant(tenant=ours.tenant, user=ours.user, require_mfa=True)
    assert caught.value.fields[0].field == "require_mfa"
    assert change_tenant(tenant=ours.tenant, user=with_mfa(ours.user), require_mfa=True).require_mfa
    person = create_user(username="dev", email="dev@example.org", password="x")
    add_member(tenant=ours.tenant, user=person)
    with pytest.raises(NotAllowed):
        change_tenant(tenant=ours.tenant, user=person, require_mfa=False)


def test_members_without_a_second_factor_set_it_up_first(browser, ours):
    Tenant.objects.filter(pk=ours.tenant.pk).update(require_mfa=True)
    for path in ("/", f"/jobs/{ours.job.pk}/", "/tokens/", "/members/"):
        answer = browser.get(path)
        assert (answer.status_code, answer["Location"]) == (302, "/accounts/2fa/"), path
    assert browser.post(f"/jobs/{ours.job.pk}/cancel/").status_code == 302
    ours.job.refresh_from_db()
    assert not ours.job.wants_cancelled
    assert browser.get("/home/jobs/", headers={"HX-Request": "true"}).status_code == 403
    assert "asks its members" in browser.get("/accounts/2fa/").content.decode()
    with_mfa(ours.user)
    assert browser.get("/").status_code == 200


def test_another_tenant_does_not_ask(browser, ours):
    Tenant.objects.filter(pk=ours.tenant.pk).update(require_mfa=True)
    other = create_tenant(name="Other", slug="other")
    add_member(tenant=other, user=ours.user)
    assert browser.post(f"/tenants/{other.pk}/switch/").status_code == 302
    assert browser.get("/").status_code == 200


def test_sign_in_asks_for_the_code(client, ours):
    with_mfa(ours.user)
    answer = client.post("/accounts/login/", {"login": "ours", "password": "correct horse battery"})
    assert answer["Location"].startswith("/accounts/2fa/authenticate/")
    assert client.get("/")["Location"].startswith("/accounts/login/")
    assert client.post("/accounts/2fa/authenticate/", {"code": "000000"}).status_code == 200


def test_the_admin_pages_ask_for_it_too(client, admin_user):
    """Django's own sign-in page would not."""
    assert client.get("/admin/login/?next=/admin/")["Location"].startswith("/accounts/login/")


@pytest.mark.django_db(transaction=True)
async def test_sockets_ask_for_it_too():
    def prepare():
        ensure_bundled_base_model()
        ours = build_owned("ours")
        Tenant.objects.update(require_mfa=True)
        client = Client()
        client.force_login(ours.user, backend=BACKEND)
        return ours, client

    ours, client = await sync_to_async(prepare)()
    socket = Socket("/ws/jobs/", client)
    assert await socket.connect()
    assert await socket.receive_close() == 4401
    await sync_to_async(with_mfa)(ours.user)
    socket = Socket("/ws/jobs/", client)
    assert await socket.connect()
    assert (await socket.receive())["jobs"]
    await socket.disconnect()


# --- signing in ------------------------------------------------------------------------------------------------------


def test_a_lock_out_says_when_to_try_again(client, ours, settings):
    settings.AXES_FAILURE_LIMIT = 2
    for _ in range(3):
        answer = client.post("/accounts/login/", {"login": "ours", "password": "wrong"})
    assert (answer.status_code, answer["Retry-After"]) == (429, "900")
    text = answer.content.decode()
    assert "in 15 minutes" in text and "<time" in text


def test_a_forgotten_password(client, ours):
    client.post("/accounts/password/reset/", {"email": "ours@example.org"})
    (message,) = mail.outbox
    link = next(line for line in message.body.splitlines() if line.startswith("http://testserver"))
    page = client.get(link.removeprefix("http://testserver"), follow=True)
    path = page.redirect_chain[-1][0]
    client.post(path, {"password1": "another long phrase", "password2": "another long phrase"})
    ours.user.refresh_from_db()
    assert ours.user.check_password("another long phrase")


def test_a_new_address_counts_once_it_is_confirmed(browser, ours):
    browser.post("/accounts/login/", {"login": "ours", "password": "correct horse battery"})
    browser.get("/accounts/email/")
    browser.post("/accounts/email/", {"email": "new@example.org", "action_add": ""})
    ours.user.refresh_from_db()
    assert ours.user.email == "ours@example.org"
    message = next(each for each in mail.outbox if each.to == ["new@example.org"])
    link = next(line for line in message.body.splitlines() if line.startswith("http://testserver"))
    browser.post(link.removeprefix("http://testserver"))
    ours.user.refresh_from_db()
    assert ours.user.email == "new@example.org"


def test_the_choice_of_a_tenant_is_remembered(client, ours):
    other = create_tenant(name="Other", slug="other")
    add_member(tenant=other, user=ours.user)
    client.force_login(ours.user, backend=BACKEND)
    client.post(f"/tenants/{other.pk}/switch/")
    later = Client()
    later.force_login(ours.user, backend=BACKEND)
    assert later.get("/").context["tenant"] == other


# --- acting as a member ----------------------------------------------------------------------------------------------


@pytest.fixture
def admin(db):
    user = create_user(username="root", email="root@example.org", password="x")
    user.is_staff = user.is_superuser = True
    user.save()
    return user


@pytest.fixture
def acting(admin):
    """An admin's browser; ``acting(owned, ...)`` makes it act as the tenant's owner."""
    client = Client()
    client.force_login(admin, backend=BACKEND)

    def start(owned, **changes):
        data = {"reason": "Ticket 17: cannot see their job", **changes}
        return client, client.post(f"/impersonation/{owned.tenant.memberships.get().pk}/", data)

    return start


def test_an_admin_looks_through_a_member(acting, ours, theirs):
    client, answer = acting(ours)
    assert answer["Location"] == "/"
    page = client.get(f"/jobs/{ours.job.pk}/").content.decode()
    assert "root, act as <strong>ours</strong>" in page and "only to look" in page
    assert client.get(f"/jobs/{theirs.job.pk}/").status_code == 404
    assert client.post(f"/jobs/{ours.job.pk}/cancel/").status_code == 403
    assert client.post("/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 403
    assert client.get("/accounts/password/change/").status_code == 403
    ours.job.refresh_from_db()
    assert not ours.job.wants_cancelled
    entry = AuditEntry.objects.get(action="impersonation.started")
    assert (entry.actor_kind, entry.actor_label, entry.on_behalf_of) == ("admin", "root", "ours")
    assert (entry.tenant_id, entry.reason) == (ours.tenant.pk, "Ticket 17: cannot see their job")
    client.post("/impersonation/end/")
    assert AuditEntry.objects.filter(action="impersonation.ended", on_behalf_of="ours").count() == 1
    assert client.get(f"/jobs/{ours.job.pk}/").status_code == 403, "the admin is a member of nothing"


PAGES = ("", "jobs/", "datasets/", "rewards/", "environments/", "webhooks/", "tokens/", "members/", "notifications/")


@pytest.mark.parametrize("page", [*PAGES, "settings/"])
def test_who_only_looks_is_offered_no_change(acting, ours, page):
    client, _ = acting(ours)
    content = client.get(f"/{page}").content.decode().partition("<main")[2]
    assert content and 'method="post"' not in content and "/new/" not in content


def test_downloads_are_the_admins(acting, ours):
    client, _ = acting(ours)
    client.get(f"/adapters/{ours.adapter.pk}/download/", follow=True)
    assert AuditEntry.objects.get(action="adapter.downloaded").actor_label == "root"


def test_a_superuser_may_change_things_under_both_names(acting, ours):
    client, _ = acting(ours, allow_changes="on")
    assert "changes count" in client.get("/").content.decode()
    assert client.post(f"/jobs/{ours.job.pk}/cancel/").status_code == 302
    entry = AuditEntry.objects.get(action="job.cancelled")
    assert (entry.actor_kind, entry.actor_label, entry.on_behalf_of) == ("admin", "root", "ours")
    assert client.post("/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 403, "it would outlive the hour"


def test_it_ends_after_an_hour(acting, ours):
    client, _ = acting(ours)
    assert client.get("/").status_code == 200
    Impersonation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get("/").status_code == 403


def test_without_a_reason_nothing_starts(acting, ours):
    _, answer = acting(ours, reason=" ")
    assert answer.status_code == 400
    assert not Impersonation.objects.exists()


def test_who_may_act_as_whom(ours, theirs, admin):
    staff = create_user(username="staff", email="staff@example.org", password="x")
    staff.is_staff = True
    staff.save()
    membership_id = ours.tenant.memberships.get().pk
    with pytest.raises(InvalidInput):
        start_impersonation(admin=staff, session={}, membership_id=membership_id, reason="to see", read_only=False)
    theirs.user.is_staff = True
    theirs.user.save()
    theirs_id = theirs.tenant.memberships.get().pk
    with pytest.raises(NotAllowed):
        start_impersonation(admin=staff, session={}, membership_id=theirs_id, reason="to see")
    start_impersonation(admin=admin, session={}, membership_id=theirs_id, reason="to see")
    add_member(tenant=ours.tenant, user=admin, role=Role.VIEWER)
    membership = ours.tenant.memberships.get(user=admin)
    with pytest.raises(NotAllowed):
        start_impersonation(admin=staff, session={}, membership_id=membership.pk, reason="to see")


def test_no_session_takes_over_what_another_admin_began(acting, ours, theirs):
    client, _ = acting(ours)
    key = client.session["impersonation"]
    thief = Client()
    thief.force_login(theirs.user, backend=BACKEND)
    session = thief.session
    session["impersonation"] = key
    session.save()
    assert thief.get(f"/jobs/{ours.job.pk}/").status_code == 404


def test_recovery_codes_alone_are_no_second_factor(browser, ours):
    Tenant.objects.filter(pk=ours.tenant.pk).update(require_mfa=True)
    Authenticator.objects.create(user=ours.user, type="recovery_codes", data={"seed": "x", "used_mask": 0})
    assert browser.get("/").status_code == 302
