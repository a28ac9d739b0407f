"""Signing in, being locked out, and the tenant a session acts for."""

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal.auth import TOTP
from django.http import Http404
from django.test import Client

from portal.tenants.invitations import create_invitation
from portal.tenants.selectors import get_current_membership
from portal.tenants.services import add_member, create_tenant, switch_tenant
from tests.portal.factories import build_owned

PASSWORD = "correct horse battery"


def sign_in(client, login="ours", password=PASSWORD):
    return client.post("/accounts/login/", {"login": login, "password": password})


@pytest.mark.parametrize("login", ["ours", "ours@example.org"])
def test_by_name_or_mail(client, ours, login):
    assert sign_in(client, login).status_code == 302
    assert client.session["_auth_user_id"] == str(ours.user.pk)


def test_a_wrong_password(client, ours):
    assert sign_in(client, password="wrong").status_code == 200
    assert "_auth_user_id" not in client.session


@pytest.mark.parametrize("login", ["ours", "ours@example.org"])
def test_guessing_is_locked_out(client, ours, settings, login):
    settings.AXES_FAILURE_LIMIT = 3
    for _ in range(3):
        sign_in(client, login, "wrong")
    assert sign_in(client, login).status_code != 302
    assert "_auth_user_id" not in client.session


def test_nobody_signs_up(client, db):
    answer = client.post(
        "/accounts/signup/",
        {"username": "new", "email": "new@example.org", "password1": PASSWORD, "password2": PASSWORD},
    )
    assert answer.status_code in {200, 403}
    assert "_auth_user_id" not in client.session


def test_sign_in_is_the_default(client, db):
    """Django's middleware: whatever page is added needs sign-in unless it says otherwise."""
    answer = client.get("/accounts/email/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")


def test_the_first_tenant_until_another_is_chosen(ours):
    session = {}
    second = create_tenant(name="Second", slug="second")
    add_member(tenant=second, user=ours.user, role="viewer")
    assert get_current_membership(user=ours.user, session=session).tenant == ours.tenant
    switch_tenant(user=ours.user, session=session, tenant_id=second.pk)
    assert get_current_membership(user=ours.user, session=session).tenant == second
    second.memberships.all().delete()
    assert get_current_membership(user=ours.user, session=session).tenant == ours.tenant


def test_foreign_tenants_cannot_be_chosen(ours, theirs):
    session = {}
    with pytest.raises(Http404):
        switch_tenant(user=ours.user, session=session, tenant_id=theirs.tenant.pk)
    session["tenant_id"] = str(theirs.tenant.pk)  # forged
    assert get_current_membership(user=ours.user, session=session).tenant == ours.tenant


def test_who_is_member_of_nothing(db):
    owned = build_owned("leaver")
    owned.tenant.memberships.all().delete()
    assert get_current_membership(user=owned.user, session={}) is None


def test_the_password_is_confirmed_before_a_second_factor_is_set_up(client, ours):
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get("/accounts/2fa/totp/activate/", follow=True)
    assert "Confirm that it is you" in page.content.decode()
    answer = client.post(page.redirect_chain[-1][0], {"password": "wrong"})
    assert "aria-invalid" in answer.content.decode()
    answer = client.post(page.redirect_chain[-1][0], {"password": "correct horse battery"}, follow=True)
    assert "Set up an authenticator app" in answer.content.decode()


def test_a_newcomer_is_not_asked_again_for_the_password_just_chosen(ours):
    sent = create_invitation(tenant=ours.tenant, user=ours.user, email="new@example.org", role="viewer", base_url="/")
    newcomer = Client()
    newcomer.post(sent.link, {"username": "new", "password": "a long enough phrase"})
    assert "Set up an authenticator app" in newcomer.get("/accounts/2fa/totp/activate/").content.decode()


def test_a_wrong_second_factor_says_what_may_be_wrong(client, ours):
    TOTP.activate(ours.user, "JBSWY3DPEHPK3PXP")
    page = client.post("/accounts/login/", {"login": "ours", "password": PASSWORD}, follow=True)
    assert 'inputmode="numeric"' in page.content.decode()
    answer = client.post(page.redirect_chain[-1][0], {"code": "not it"}).content.decode()
    assert "An app shows a new one every 30 seconds" in answer
    assert "_auth_user_id" not in client.session


def test_a_second_factor_and_a_change_of_address_do_not_exclude_each_other(client, ours):
    sign_in(client)
    client.post("/accounts/email/", {"email": "elsewhere@example.org", "action_add": ""})
    assert EmailAddress.objects.filter(user=ours.user, verified=False).exists()
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    assert "Set up an authenticator app" in client.get("/accounts/2fa/totp/activate/").content.decode()
    TOTP.activate(ours.user, "JBSWY3DPEHPK3PXP")
    client.post("/accounts/email/", {"email": "further@example.org", "action_add": ""})
    assert EmailAddress.objects.filter(user=ours.user, email="further@example.org").exists()
