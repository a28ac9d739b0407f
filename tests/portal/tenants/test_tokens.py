"""API tokens: made, found, and dead when they should be."""

from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.http import Http404
from django.utils import timezone

from portal.errors import InvalidInput, NotAllowed
from portal.tenants.models import ApiToken, Membership, Role, Scope
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
        ({"scopes": ["read", "write"]}, "scopes"),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "expires_at"),
    ],
)
def test_faulty_requests(ours, changes, field):
    with pytest.raises(InvalidInput) as caught:
        create(ours, **changes)
    assert [error.field for error in caught.value.fields] == [field]


@pytest.mark.parametrize(
    ("role", "may"),
    [
        (Role.VIEWER, {"read", "adapters:read"}),
        (Role.DEVELOPER, {"read", "adapters:read", "jobs:write", "datasets:write", "rewards:write"}),
        (Role.OWNER, set(Scope.values)),
    ],
)
def test_tokens_by_role(ours, role, may):
    person = create_user(username="person", email="person@example.org", password="x")
    add_member(tenant=ours.tenant, user=person, role=role)
    for scope in Scope.values:
        if scope in may:
            assert create(ours, user=person, scopes=[scope])[0].scopes == [scope]
        else:
            with pytest.raises(NotAllowed):
                create(ours, user=person, scopes=[scope])


def test_a_token_makes_none_that_may_more(ours):
    weaker, _ = create(ours, scopes=["jobs:write"])
    assert create(ours, scopes=["read"], made_with=weaker)[0].scopes == ["read"]
    with pytest.raises(InvalidInput):
        create(ours, scopes=["datasets:write"], made_with=weaker)


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


def test_older_tokens_keep_what_they_may(ours):
    """``write`` and ``read`` of before become the finer scopes they stood for."""
    refine = import_module("portal.tenants.migrations.0004_finer_scopes").refine
    writing, reading = create(ours)[0], create(ours, name="other")[0]
    ApiToken.objects.filter(pk=writing.pk).update(scopes=["read", "write"])
    refine(apps, None)
    writing.refresh_from_db()
    reading.refresh_from_db()
    assert set(writing.scopes) == {"read", "adapters:read", "jobs:write", "datasets:write", "rewards:write"}
    assert reading.scopes == ["read", "adapters:read"]
