"""API tokens: made, found, and dead when they should be."""

from datetime import timedelta

import pytest
from django.http import Http404
from django.utils import timezone

from portal.errors import InvalidInput, NotAllowed
from portal.tenants.models import ApiToken, Membership, Role
from portal.tenants.selectors import find_api_token, list_api_tokens
from portal.tenants.services import add_member, create_api_token, create_user, record_token_use, revoke_api_token


def create(owned, **changes):
    return create_api_token(**{"tenant": owned.tenant, "user": owned.user, "name": "laptop", **changes})


def test_the_secret_is_not_stored(ours):
    token, secret = create(ours)
    assert secret.startswith("mrl_") and len(secret) >= 47  # 256 bits
    assert secret.startswith(token.prefix) and len(token.prefix) == 10
    stored = ApiToken.objects.filter(pk=token.pk).values().get()
    assert secret not in str(stored)
    assert find_api_token(secret) == (token, Membership.objects.get(user=ours.user))
    assert find_api_token(secret + "x") is None


def expire(token):
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def deactivate(token):
    token.user.is_active = False
    token.user.save()


@pytest.mark.parametrize(
    "kill",
    [
        expire,
        deactivate,
        lambda token: revoke_api_token(tenant=token.tenant, user=token.user, token_id=token.pk),
        lambda token: Membership.objects.filter(user=token.user).delete(),
    ],
    ids=["expired", "user inactive", "revoked", "membership gone"],
)
def test_dead_tokens_are_not_found(ours, kill):
    token, secret = create(ours, expires_at=timezone.now() + timedelta(days=1))
    assert find_api_token(secret)
    kill(token)
    assert find_api_token(secret) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["read", "admin"]}, "scopes"),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "expires_at"),
    ],
)
def test_faulty_requests(ours, changes, field):
    with pytest.raises(InvalidInput) as caught:
        create(ours, **changes)
    assert [error.field for error in caught.value.fields] == [field]


def test_viewers_get_reading_tokens_only(ours):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    token, _ = create(ours, user=viewer, scopes=["read"])
    assert token.scopes == ["read"]
    with pytest.raises(NotAllowed):
        create(ours, user=viewer, scopes=["write"])


def test_tokens_of_others(ours, theirs):
    token, _ = create(theirs)
    with pytest.raises(Http404):
        create(ours, user=theirs.user)
    with pytest.raises(Http404):
        revoke_api_token(tenant=ours.tenant, user=ours.user, token_id=token.pk)
    colleague = create_user(username="colleague", email="colleague@example.org", password="x")
    add_member(tenant=theirs.tenant, user=colleague)
    assert not list_api_tokens(theirs.tenant, colleague).exists()


def test_uses_are_recorded_by_the_minute(ours):
    token, _ = create(ours)
    record_token_use(token=token)
    token.refresh_from_db()
    first = token.last_used_at
    record_token_use(token=token)
    token.refresh_from_db()
    assert token.last_used_at == first
    token.last_used_at = first - timedelta(minutes=2)
    record_token_use(token=token)
    token.refresh_from_db()
    assert token.last_used_at > first
