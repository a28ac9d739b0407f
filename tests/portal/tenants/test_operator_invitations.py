"""Invitations by an operator, who is a member of no tenant: the way to a tenant's first owner."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from portal.audit.models import AuditEntry
from portal.errors import NotAllowed
from portal.tenants.invitations import invite_as_operator
from portal.tenants.models import Invitation, Membership, Role, Tenant
from portal.tenants.selectors import find_invitation
from portal.tenants.services import create_tenant, create_user


@pytest.fixture
def tenant(db: None) -> Tenant:
    return create_tenant(name="Engines", slug="engines")


@pytest.fixture
def operator(client: Client, admin_user: User) -> Client:
    client.force_login(admin_user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def address(tenant: Tenant) -> str:
    return reverse("admin:tenants_tenant_invite", args=[tenant.pk])


def secret_of(sent) -> str:
    return sent.link.rstrip("/").rpartition("/")[2]


def test_a_new_tenant_leads_to_the_invitation_of_its_owner(operator):
    management = {"memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}
    limits = {"max_active_jobs": 4, "max_dataset_bytes": 1000, "max_dataset_rows": 10, "max_reward_trials_per_day": 50}
    values = {"name": "Engines", "slug": "engines", "weight": 1, **limits, **management, "_save": "Save"}
    page = operator.post("/admin/tenants/tenant/add/", values, follow=True)
    tenant = Tenant.objects.get()
    assert page.redirect_chain[-1][0] == address(tenant)
    assert "has no owner yet" in page.content.decode()
    assert page.context["form"]["role"].value() == Role.OWNER


def test_the_invited_owner_comes_in(operator, admin_user, tenant):
    page = operator.post(address(tenant), {"email": "Ada@example.org", "role": "owner"})
    link = page.context["sent"].link
    assert page.status_code == 200 and link in page.content.decode()
    entry = AuditEntry.objects.get(action="invitation.created")
    assert (entry.actor_kind, entry.actor_label, entry.tenant_id) == ("admin", admin_user.username, tenant.pk)
    visitor = Client()
    path = "/invitations/" + link.partition("/invitations/")[2]
    visitor.post(path, {"username": "ada", "password": "a long enough phrase"})
    assert Membership.objects.get(tenant=tenant).role == Role.OWNER
    assert operator.get(address(tenant)).context["form"]["role"].value() == Role.DEVELOPER


def test_inviting_again_ends_the_first_link(tenant, admin_user):
    def invite():
        return invite_as_operator(
            tenant=tenant, user=admin_user, email="ada@example.org", role=Role.OWNER, base_url="http://x/"
        )

    first, second = invite(), invite()
    assert find_invitation(secret_of(first)) is None
    assert find_invitation(secret_of(second)) == second.invitation
    assert Invitation.objects.exclude(revoked_at=None).get() == first.invitation
    assert AuditEntry.objects.filter(action="invitation.revoked").count() == 1


@pytest.mark.parametrize(("email", "role"), [("", "owner"), ("ada", "owner"), ("a@b.org", "king")])
def test_what_is_wrong_stands_at_the_field(operator, tenant, email, role):
    answer = operator.post(address(tenant), {"email": email, "role": role})
    assert answer.status_code == 400 and answer.context["form"].errors
    assert not Invitation.objects.exists()


def test_only_operators_with_the_permission_invite(client, tenant):
    staff = create_user(username="staff", email="staff@example.org", password="x")
    staff.is_staff = True
    staff.save()
    for user in (staff, create_user(username="other", email="other@example.org", password="x")):
        with pytest.raises(NotAllowed):
            invite_as_operator(tenant=tenant, user=user, email="a@b.org", role=Role.OWNER, base_url="http://x/")
    client.force_login(staff, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get(address(tenant)).status_code == 404, "whoever may not see tenants"
    staff.user_permissions.add(Permission.objects.get(codename="view_tenant"))
    assert client.post(address(tenant), {"email": "a@b.org", "role": "owner"}).status_code == 400
    staff.user_permissions.add(Permission.objects.get(codename="add_invitation"))
    assert client.post(address(tenant), {"email": "a@b.org", "role": "owner"}).status_code == 200
    client.force_login(
        create_user(username="no", email="no@example.org", password="x"),
        backend="django.contrib.auth.backends.ModelBackend",
    )
    assert client.get(address(tenant)).status_code == 302, "to sign in as an admin"
