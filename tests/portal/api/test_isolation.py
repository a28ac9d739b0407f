"""No route of the API tells one tenant anything about another's objects."""

import uuid

import pytest

from portal.base_models.services import BUNDLED_ID
from tests.portal.isolation import Route, assert_foreign, routes_with_ids

ROUTES = routes_with_ids(under="api/")


def test_the_walk_sees_the_routes():
    assert {route.pattern for route in ROUTES} >= {
        "api/v1/jobs/<uuid:job_id>/",
        "api/v1/jobs/<uuid:job_id>/events/",
        "api/v1/jobs/<uuid:job_id>/pause/",
        "api/v1/jobs/<uuid:job_id>/resume/",
        "api/v1/jobs/<uuid:job_id>/cancel/",
        "api/v1/jobs/<uuid:job_id>/metrics/",
        "api/v1/jobs/<uuid:job_id>/rollouts/<int:seq>/",
        "api/v1/adapters/<uuid:adapter_id>/link/",
        "api/v1/datasets/<uuid:dataset_id>/versions/",
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.pattern)
def test_foreign_ids_answer_404(api, theirs, route: Route):
    assert_foreign(api, route, theirs.ids)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.pattern)
def test_own_ids_answer(api, ours, route: Route):
    path = route.path(ours.ids)
    answers = {api.get(path).status_code, api.post(path).status_code, api.delete(path).status_code}
    assert answers & {200, 201, 202, 204}


@pytest.mark.parametrize("name", ["jobs", "datasets", "reward-functions"])
def test_lists_show_only_the_own(api, ours, theirs, name):
    expected = {
        "jobs": ours.job.pk,
        "datasets": ours.dataset_version.dataset_id,
        "reward-functions": ours.reward_version.reward_function_id,
    }[name]
    answer = api.get(f"/api/v1/{name}/").json()
    assert [item["id"] for item in answer["results"]] == [str(expected)]
    assert answer["count"] == 1


@pytest.mark.parametrize("change", [{"priority": 1}, {"steps": 5}, {"priority": "x"}, {}])
def test_a_foreign_job_cannot_be_changed(api, theirs, change):
    """Whatever the body, right or wrong."""
    answers = [
        api.patch(f"/api/v1/jobs/{job_id}/", change, "application/json") for job_id in (theirs.job.pk, uuid.uuid4())
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("field", ["dataset_version", "reward_version", "start_from"])
def test_a_job_cannot_name_foreign_objects(api, ours, theirs, field, commands):
    commands.clear()
    body = {
        "name": "borrowed",
        "base_model": BUNDLED_ID,
        "dataset_version": str(ours.dataset_version.pk),
        "reward_version": str(ours.reward_version.pk),
    }
    named = theirs.adapter if field == "start_from" else getattr(theirs, field)
    foreign = api.post("/api/v1/jobs/", {**body, field: str(named.pk)}, "application/json")
    missing = api.post("/api/v1/jobs/", {**body, field: str(uuid.uuid4())}, "application/json")
    assert foreign.status_code == missing.status_code == 404
    assert foreign.json() == missing.json()
    assert commands == []
