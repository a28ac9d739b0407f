"""Who sees which page: nobody signed out, nothing of another tenant, everything of one's own."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import Owned
from tests.portal.isolation import Route, assert_foreign, routes_with_ids

NOT_PAGES = ("admin/", "engine/", "accounts/", "api/", "download/", "invitations/", "impersonation/")
PLAIN = [
    "home",
    "home-live",
    "datasets:list",
    "datasets:new",
    "rewards:list",
    "rewards:new",
    "jobs:list",
    "jobs:new",
    "jobs:compare",
    "adapters:list",
    "environments:overview",
    "jobs:new-datasets",
    "jobs:new-rewards",
    "usage:overview",
    "usage:export",
    "webhooks:list",
    "webhooks:notifications",
    "tenants:tokens",
    "tenants:members",
    "tenants:settings",
    "audit:list",
    "audit:csv",
]
WITH_ID = routes_with_ids(without=NOT_PAGES)
ACTIONS = (
    "pause/", "resume/", "cancel/", "steps/", "priority/", "revoke/", "switch/", "delete/", "replace/", "role/",
    "remove/", "resend/", "archive/", "restore/", "text/", "rotate/", "ping/", "redeliver/",
)  # fmt: skip
GETTABLE = [route for route in WITH_ID if not route.pattern.endswith(ACTIONS)]


def names(routes: list[Route]) -> list[str]:
    return [route.pattern for route in routes]


def test_the_routes_are_found() -> None:
    assert {"datasets/<uuid:dataset_id>/", "jobs/<uuid:job_id>/cancel/", "adapters/<uuid:adapter_id>/"} <= set(
        names(WITH_ID)
    )


@pytest.mark.parametrize("name", PLAIN)
def test_signed_out_visitors_are_asked_to_sign_in(client: Client, db: None, name: str) -> None:
    answer = client.get(reverse(name))
    assert (answer.status_code, answer["Location"]) == (302, f"/accounts/login/?next={reverse(name)}")


@pytest.mark.parametrize("route", WITH_ID, ids=names(WITH_ID))
@pytest.mark.parametrize("method", ["get", "post"])
def test_signed_out_visitors_learn_nothing(client: Client, ours: Owned, route: Route, method: str) -> None:
    path = route.path(ours.ids)
    answer = getattr(client, method)(path)
    assert (answer.status_code, answer["Location"]) == (302, f"/accounts/login/?next={path}")


@pytest.mark.parametrize("name", ["home-live", "jobs:list"])
def test_parts_of_a_page_are_never_the_sign_in_page(client: Client, db: None, name: str) -> None:
    assert client.get(reverse(name), headers={"HX-Request": "true"}).status_code == 401


@pytest.mark.parametrize("route", WITH_ID, ids=names(WITH_ID))
def test_objects_of_another_tenant_do_not_exist(browser: Client, theirs: Owned, route: Route) -> None:
    assert_foreign(browser, route, theirs.ids)


@pytest.mark.parametrize(
    ("name", "query"),
    [("rewards:new", "from"), ("jobs:new", "from"), ("jobs:new", "start_from"), ("adapters:list", "job")],
)
def test_objects_of_another_tenant_do_not_exist_in_queries(
    browser: Client, theirs: Owned, name: str, query: str
) -> None:
    value = theirs.reward_version.pk if name == "rewards:new" else theirs.job.pk
    value = theirs.adapter.pk if query == "start_from" else value
    assert browser.get(reverse(name), {query: value}).status_code == 404
    assert browser.get(reverse(name), {query: "not-an-id"}).status_code == 404


def test_a_job_cannot_be_made_of_another_tenants_data(browser: Client, ours: Owned, theirs: Owned) -> None:
    answer = browser.post(
        reverse("jobs:new"),
        {
            "name": "x",
            "dataset_version": theirs.dataset_version.pk,
            "reward_version": theirs.reward_version.pk,
            "start_from": theirs.adapter.pk,
        },
    )
    form = answer.context["form"]
    for name in ("dataset_version", "reward_version", "start_from"):
        assert form.has_error(name, "invalid_choice")
    assert theirs.job.name not in answer.content.decode()
    assert ours.tenant.jobs.count() == 1


@pytest.mark.parametrize("name", PLAIN)
def test_members_see_the_pages(browser: Client, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 200


@pytest.mark.parametrize("route", GETTABLE, ids=names(GETTABLE))
def test_members_see_their_own_objects(browser: Client, ours: Owned, route: Route) -> None:
    answer = browser.get(route.path(ours.ids))
    assert answer.status_code == (302 if route.pattern.endswith("download/") else 200)


@pytest.mark.parametrize("name", ["datasets:new", "rewards:new", "jobs:new"])
def test_viewers_are_told_why_they_may_not(client: Client, ours: Owned, name: str) -> None:
    viewer = create_user(username="viewer", email="viewer@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")
    assert reverse(name) not in client.get(reverse("home")).content.decode()
    answer = client.get(reverse(name))
    assert answer.status_code == 403
    assert "Ask an owner of the tenant" in answer.content.decode()


def test_members_of_no_tenant_are_told_what_to_do(client: Client, db: None) -> None:
    client.force_login(
        create_user(username="new", email="new@example.org", password="correct horse battery"),
        backend="django.contrib.auth.backends.ModelBackend",
    )
    answer = client.get(reverse("home"))
    assert answer.status_code == 403
    assert "You belong to no tenant yet" in answer.content.decode()


def test_switching_shows_the_other_tenants_things(browser: Client, ours: Owned, theirs: Owned) -> None:
    add_member(tenant=theirs.tenant, user=ours.user)
    browser.post(reverse("tenants:switch", args=[theirs.tenant.pk]))
    assert browser.get(reverse("jobs:detail", args=[theirs.job.pk])).status_code == 200
    assert browser.get(reverse("jobs:detail", args=[ours.job.pk])).status_code == 404
