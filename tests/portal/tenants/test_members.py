"""Owners change members; the last owner stays, whatever happens at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections
from django.http import Http404

from portal.audit.models import AuditEntry
from portal.base_models.services import ensure_bundled_base_model
from portal.errors import Conflict, InvalidInput, NotAllowed
from portal.tenants.members import change_member_role, leave_tenant, remove_member
from portal.tenants.models import Membership, Role
from portal.tenants.selectors import find_api_token
from portal.tenants.services import add_member, create_api_token, create_user
from tests.portal.factories import build_owned


def join(owned, name, role=Role.DEVELOPER):
    user = create_user(username=name, email=f"{name}@example.org", password="x")
    return add_member(tenant=owned.tenant, user=user, role=role)


def test_a_role_is_changed_and_audited(ours):
    member = join(ours, "ada")
    change_member_role(tenant=ours.tenant, user=ours.user, membership_id=member.pk, role=Role.VIEWER)
    member.refresh_from_db()
    assert member.role == Role.VIEWER
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.actor_label, entry.object_label) == ("member.changed", "ours", "ada")
    assert (entry.before, entry.after) == ({"role": "developer"}, {"role": "viewer"})
    with pytest.raises(InvalidInput):
        change_member_role(tenant=ours.tenant, user=ours.user, membership_id=member.pk, role="king")


@pytest.mark.parametrize("role", [Role.DEVELOPER, Role.VIEWER])
def test_only_owners_manage(ours, role):
    member, other = join(ours, "ada", role), join(ours, "bob")
    with pytest.raises(NotAllowed):
        change_member_role(tenant=ours.tenant, user=member.user, membership_id=other.pk, role=Role.OWNER)
    with pytest.raises(NotAllowed):
        remove_member(tenant=ours.tenant, user=member.user, membership_id=other.pk)


def test_foreign_members_are_not_found(ours, theirs):
    foreign = theirs.tenant.memberships.get()
    with pytest.raises(Http404):
        remove_member(tenant=ours.tenant, user=ours.user, membership_id=foreign.pk)
    with pytest.raises(Http404):
        change_member_role(tenant=theirs.tenant, user=ours.user, membership_id=foreign.pk, role=Role.VIEWER)
    foreign.refresh_from_db()
    assert foreign.role == Role.OWNER


def test_the_last_owner_stays(ours):
    mine = ours.tenant.memberships.get(user=ours.user)
    join(ours, "ada")
    for attempt in (
        lambda: change_member_role(tenant=ours.tenant, user=ours.user, membership_id=mine.pk, role=Role.VIEWER),
        lambda: remove_member(tenant=ours.tenant, user=ours.user, membership_id=mine.pk),
        lambda: leave_tenant(tenant=ours.tenant, user=ours.user),
    ):
        with pytest.raises(Conflict, match="last owner"):
            attempt()
    join(ours, "bob", Role.OWNER)
    leave_tenant(tenant=ours.tenant, user=ours.user)
    assert not Membership.objects.filter(user=ours.user).exists()


def test_who_is_removed_loses_their_tokens_for_good(ours):
    member = join(ours, "ada")
    _, secret = create_api_token(tenant=ours.tenant, user=member.user, name="script")
    remove_member(tenant=ours.tenant, user=ours.user, membership_id=member.pk)
    assert find_api_token(secret) is None
    add_member(tenant=ours.tenant, user=member.user)
    assert find_api_token(secret) is None


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_leave_at_once_leave_one(settings):
    ensure_bundled_base_model()
    ours = build_owned("ours")
    join(ours, "ada", Role.OWNER)
    users = [each.user for each in ours.tenant.memberships.all()]
    start = Barrier(2)

    def leave(user):
        start.wait()
        try:
            leave_tenant(tenant=ours.tenant, user=user)
        except Conflict:
            return False
        finally:
            connections.close_all()
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(leave, users)) == [False, True]
    assert ours.tenant.memberships.filter(role=Role.OWNER).count() == 1


def test_pages_manage_members(browser, ours):
    member = join(ours, "ada")
    browser.post(f"/members/{member.pk}/role/", {"role": "viewer"})
    member.refresh_from_db()
    assert member.role == Role.VIEWER
    page = browser.post("/members/leave/", follow=True).content.decode()
    assert "last owner" in page
    browser.post(f"/members/{member.pk}/remove/")
    assert not Membership.objects.filter(pk=member.pk).exists()


def test_the_api_manages_members(api, ours):
    member = join(ours, "ada")
    path = f"/api/v1/members/{member.pk}/"
    assert api.patch(path, {"role": "viewer"}, "application/json").json()["role"] == "viewer"
    assert {each["username"] for each in api.get("/api/v1/members/").json()["results"]} == {"ours", "ada"}
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
    assert api.post("/api/v1/members/leave/").json()["error"]["code"] == "conflict"
