"""Invitations: one link, one address, one use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from smtplib import SMTPException
from threading import Barrier

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core import mail
from django.db import connections
from django.test import Client
from django.utils import timezone

from portal.base_models.services import ensure_bundled_base_model
from portal.errors import Conflict, InvalidInput, NotAllowed
from portal.tenants.invitations import (
    accept_as_new_user,
    accept_as_user,
    create_invitation,
    resend_invitation,
    revoke_invitation,
)
from portal.tenants.models import Invitation, Membership, Role
from portal.tenants.selectors import find_invitation
from portal.tenants.services import add_member, create_user
from tests.portal.factories import build_owned

PASSWORD = "a long enough phrase"


def invite(ours, email="ada@example.org", role=Role.DEVELOPER):
    sent = create_invitation(
        tenant=ours.tenant, user=ours.user, email=email, role=role, base_url="https://marlaas.example/"
    )
    return sent, sent.link.rstrip("/").rpartition("/")[2]


def test_the_mail_says_what_it_is_about(ours):
    sent, secret = invite(ours, " Ada@Example.org ")
    assert sent.mailed and sent.link == f"https://marlaas.example/invitations/{secret}/"
    (message,) = mail.outbox
    assert message.to == ["ada@example.org"]
    assert message.subject == "ours invites you to Ours on MARLaaS"
    assert sent.link in message.body and "developer" in message.body
    assert secret not in str(Invitation.objects.values().get())


def test_a_lost_mail_server_is_no_obstacle(ours, monkeypatch):
    def fail(**kwargs):
        raise SMTPException("no")

    monkeypatch.setattr("portal.tenants.invitations.send_mail", fail)
    sent, secret = invite(ours)
    assert not sent.mailed
    assert find_invitation(secret) == sent.invitation


@pytest.mark.parametrize("email", ["", "ada", "ada@", "a" * 250 + "@example.org", "ours@example.org"])
def test_addresses_that_cannot_be_invited(ours, email):
    with pytest.raises(InvalidInput) as caught:
        invite(ours, email)
    assert [error.field for error in caught.value.fields] == ["email"]


def test_only_owners_invite_and_each_address_once(ours):
    person = create_user(username="dev", email="dev@example.org", password="x")
    add_member(tenant=ours.tenant, user=person)
    with pytest.raises(NotAllowed):
        create_invitation(tenant=ours.tenant, user=person, email="x@example.org", role="viewer", base_url="http://x/")
    invite(ours)
    with pytest.raises(Conflict, match="invited already"):
        invite(ours, "ADA@example.org")


def test_a_new_person_makes_an_account(ours):
    _, secret = invite(ours, role=Role.VIEWER)
    membership = accept_as_new_user(secret=secret, username="ada", password=PASSWORD)
    assert (membership.tenant, membership.role, membership.user.email) == (ours.tenant, "viewer", "ada@example.org")
    assert membership.user.check_password(PASSWORD)
    assert EmailAddress.objects.get(user=membership.user).verified
    with pytest.raises(Conflict):
        accept_as_new_user(secret=secret, username="eve", password=PASSWORD)


@pytest.mark.parametrize(
    ("username", "password", "field"),
    [
        ("ours", PASSWORD, "username"),
        ("OURS", PASSWORD, "username"),
        ("", PASSWORD, "username"),
        ("ada", "123", "password"),
    ],
)
def test_faulty_accounts(ours, username, password, field):
    _, secret = invite(ours)
    with pytest.raises(InvalidInput) as caught:
        accept_as_new_user(secret=secret, username=username, password=password)
    assert {error.field for error in caught.value.fields} == {field}
    assert find_invitation(secret) is not None


def test_a_known_person_joins_with_their_account_only(ours, theirs):
    _, secret = invite(ours, "theirs@example.org")
    with pytest.raises(Conflict):
        accept_as_new_user(secret=secret, username="second", password=PASSWORD)
    eve = create_user(username="eve", email="eve@example.org", password="x")
    with pytest.raises(Conflict, match=r"for theirs@example\.org"):
        accept_as_user(secret=secret, user=eve)
    assert accept_as_user(secret=secret, user=theirs.user).tenant == ours.tenant
    assert Membership.objects.filter(user=theirs.user).count() == 2


def test_dead_links(ours):
    sent, secret = invite(ours)
    again = resend_invitation(
        tenant=ours.tenant, user=ours.user, invitation_id=sent.invitation.pk, base_url="http://x/"
    )
    assert find_invitation(secret) is None, "the old link"
    secret = again.link.rstrip("/").rpartition("/")[2]
    assert find_invitation(secret) is not None
    Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert find_invitation(secret) is None, "expired"
    Invitation.objects.update(expires_at=timezone.now() + timedelta(days=1))
    revoke_invitation(tenant=ours.tenant, user=ours.user, invitation_id=sent.invitation.pk)
    assert find_invitation(secret) is None, "revoked"
    assert Client().get(f"/invitations/{secret}/").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_two_visitors_with_one_link(settings):
    ensure_bundled_base_model()
    ours = build_owned("ours")
    _, secret = invite(ours)
    start = Barrier(2)

    def accept(name):
        start.wait()
        try:
            accept_as_new_user(secret=secret, username=name, password=PASSWORD)
        except Conflict:
            return False
        finally:
            connections.close_all()
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(accept, ["ada", "eve"])) == [False, True]
    assert User.objects.filter(email="ada@example.org").count() == 1


def test_the_pages_from_invitation_to_home(browser, ours):
    page = browser.post("/members/", {"email": "ada@example.org", "role": "developer"}).content.decode()
    link = mail.outbox[0].body.split("http://testserver", 1)[1].split()[0]
    assert f"http://testserver{link}" in page, "to copy, for installations without mail"
    assert link not in browser.get("/members/").content.decode()
    visitor = Client()
    assert "ada@example.org" in visitor.get(link).content.decode()
    assert visitor.post(link, {"username": "ada", "password": "short"}).status_code == 400
    answer = visitor.post(link, {"username": "ada", "password": PASSWORD}, follow=True)
    assert answer.redirect_chain == [("/", 302)]
    assert "Welcome to Ours" in answer.content.decode()


def test_the_pages_for_somebody_with_an_account(client, ours, theirs):
    _, secret = invite(ours, "theirs@example.org")
    path = f"/invitations/{secret}/"
    assert f"/accounts/login/?next={path}" in client.get(path).content.decode()
    assert client.post(path, {"username": "x", "password": PASSWORD}).status_code == 200
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    assert "which has another address" in client.get(path).content.decode()
    assert client.post(path).status_code == 400
    client.force_login(theirs.user, backend="django.contrib.auth.backends.ModelBackend")
    assert client.post(path).status_code == 302
    assert client.session["tenant_id"] == str(ours.tenant.pk)


def test_the_api_invites(api, ours):
    sent = api.post("/api/v1/invitations/", {"email": "ada@example.org", "role": "viewer"}, "application/json")
    assert sent.status_code == 201 and "/invitations/" in sent.json()["link"]
    path = f"/api/v1/invitations/{sent.json()['invitation']['id']}/"
    assert api.post(f"{path}resend/").json()["link"] != sent.json()["link"]
    assert len(api.get("/api/v1/invitations/").json()["results"]) == 1
    assert api.delete(path).status_code == 204
    assert len(api.get("/api/v1/invitations/").json()["results"]) == 0
