"""PostgreSQL takes no text with a NUL character, SQLite does: an address with one is an address of nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.portal.factories import Owned


@pytest.mark.parametrize(("route", "name"), [("new-datasets", "dataset_query"), ("new-rewards", "reward_query")])
def test_a_search_for_what_to_train_on(browser: Client, ours: Owned, route: str, name: str) -> None:
    response = browser.get(reverse(f"jobs:{route}"), {name: "a\x00b"})
    assert response.status_code == 200
    assert "sums" not in response.text and "numeric" not in response.text


def test_a_search_for_jobs(browser: Client, ours: Owned) -> None:
    response = browser.get(reverse("jobs:list"), {"name": f"{ours.job.name}\x00"})
    assert response.status_code == 200
    assert str(ours.job.pk) not in response.text


def test_a_base_model_for_the_lengths_of_a_dataset(browser: Client, api: Client, ours: Owned) -> None:
    version = ours.dataset_version
    query = {"base_model": "a\x00b"}
    assert browser.get(reverse("datasets:lengths", args=[version.dataset_id, version.pk]), query).status_code == 200
    address = f"/api/v1/datasets/{version.dataset_id}/versions/{version.pk}/lengths/"
    assert api.get(address, query).status_code == 400


def test_a_pool_of_the_engine(client: Client, admin_user: Any) -> None:
    client.force_login(admin_user)
    assert client.get("/engine/pools/a%00b/").status_code == 404
