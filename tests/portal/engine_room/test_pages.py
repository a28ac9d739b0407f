"""The engine page."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.base_models.services import BUNDLED_ID
from portal.engine_room.models import DrainWish, EngineState, PoolWish
from portal.engine_room.services import store_report
from tests.portal.engine_room.conftest import drained, make_report, sign_in
from tests.portal.factories import build_owned

PAGE = "/engine/"


def text_of(answer):
    assert answer.status_code == 200
    return answer.content.decode()


def test_what_the_engine_reports_is_shown(operator, reported):
    page = text_of(operator.get(PAGE))
    for words in (
        "rollout-0", "25.0\u202f%", "of 1,000 tokens", "7 events not acknowledged", "ray 2.60", "first job",
        "Serving",
        # One tenant has three quarters of the tokens where its weight gives it a quarter.
        '<td class="num">25.0\u202f%</td><td class="num">75.0\u202f%',
    ):  # fmt: skip
        assert words in page, words
    assert "not been heard from" not in page


def test_tenants_are_named(operator, ours):
    pool = make_report().pools[0]
    share = pool.rollout_shares[0].model_copy(update={"tenant_id": str(ours.tenant.pk)})
    store_report(report=make_report(pools=[pool.model_copy(update={"rollout_shares": [share]})]))
    assert "Share of Ours" in text_of(operator.get(PAGE))


def test_silence_is_said(operator, ours):
    assert "never been heard from" in text_of(operator.get(PAGE))
    store_report(report=make_report())
    EngineState.objects.update(heard_at=timezone.now() - timedelta(minutes=5))
    page = text_of(operator.get(PAGE))
    assert "has not been heard from since" in page and "rollout-0" in page
    assert "events worker shows no sign of life" in page


def test_a_failed_pool_says_why(operator, ours):
    pool = make_report().pools[0].model_copy(update={"state": "failed", "trouble": "no such folder"})
    store_report(report=make_report(pools=[pool]))
    page = text_of(operator.get(PAGE))
    assert "no such folder" in page and "Failed" in page


def test_draining_and_taking_work_again(operator, reported):
    answer = operator.post(reverse("engine_room:drain"), {"reason": ""})
    assert answer.status_code == 422 and "required" in answer.content.decode()
    page = text_of(operator.post(reverse("engine_room:drain"), {"reason": "new GPUs"}, follow=True))
    assert "is asked to take no work" in page and "Take work again" in page
    store_report(report=make_report(drain=drained(1)))
    assert "The engine is drained" in text_of(operator.get("/engine/live/"))
    page = text_of(operator.post(reverse("engine_room:resume"), follow=True))
    assert "asked to take work again" in page and not DrainWish.objects.get().draining


def test_scaling(operator, reported):
    address = reverse("engine_room:scale", args=[BUNDLED_ID])
    assert 'value="1"' in text_of(operator.get(address))
    answer = operator.post(address, {"rollout_workers": 0})
    assert answer.status_code == 422 and not PoolWish.objects.exists()
    page = text_of(operator.post(address, {"rollout_workers": 2}, follow=True))
    assert "2 rollout workers asked for" in page
    assert operator.get(reverse("engine_room:scale", args=["nothing"])).status_code == 404


def test_who_may_only_look(looker, reported):
    client = sign_in(looker)
    page = text_of(client.get(PAGE))
    assert "Drain the engine" not in page and ">Scale<" not in page
    assert client.post(reverse("engine_room:drain"), {"reason": "x"}).status_code == 422
    for address in (reverse("engine_room:resume"), reverse("engine_room:scale", args=[BUNDLED_ID])):
        assert client.post(address, {"rollout_workers": 2}).status_code == 403
    assert not DrainWish.objects.exists() and not PoolWish.objects.exists()


@pytest.mark.parametrize("name", ["overview", "live", "drain", "resume"])
def test_for_others_there_is_no_such_page(browser, name):
    address = reverse(f"engine_room:{name}")
    for method in ("get", "post"):
        assert getattr(browser, method)(address).status_code in (404, 405)
    assert browser.post(reverse("engine_room:scale", args=[BUNDLED_ID])).status_code == 404
    assert Client().get(PAGE).status_code == 302, "to sign in"


@pytest.mark.parametrize(("asked", "minutes"), [("", 5), ("60", 60), ("0", 5), ("x", 5), ("-5", 5)])
def test_the_window(operator, reported, asked, minutes):
    page = text_of(operator.get(f"{PAGE}?minutes={asked}"))
    assert f'href="?minutes={minutes}" aria-current="true"' in page


def test_the_page_costs_the_same_however_much_runs(operator, reported):
    def queries():
        with CaptureQueriesContext(connection) as captured:
            text_of(operator.get("/engine/live/"))
        return len(captured)

    few = queries()
    for name in ("one", "two", "three"):
        build_owned(name)
    assert queries() == few <= 14


def test_wishes_are_shown_in_the_admin_and_not_changed_there(admin_client, operator, reported):
    operator.post(reverse("engine_room:drain"), {"reason": "new GPUs"})
    assert "new GPUs" in text_of(admin_client.get("/admin/engine_room/drainwish/"))
    assert admin_client.post("/admin/engine_room/drainwish/1/change/", {"draining": ""}).status_code == 403
    assert admin_client.post("/admin/engine_room/drainwish/1/delete/", {"post": "yes"}).status_code == 403
