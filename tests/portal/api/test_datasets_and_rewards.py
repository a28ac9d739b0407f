"""Datasets, reward functions and base models over the API."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from portal.base_models.models import BaseModel
from portal.base_models.services import BUNDLED_ID

ROWS = b'{"prompt": "1+1?", "answer": 2}\n{"prompt": "2+2?", "answer": 4}\n'


def test_a_dataset_as_a_form(api, ours):
    file = SimpleUploadedFile("rows.jsonl", ROWS)
    answer = api.post("/api/v1/datasets/", {"name": "by form", "file": file, "held_out_fraction": 0.5, "seed": 1})
    assert answer.status_code == 201
    assert (answer.json()["train_rows"], answer.json()["held_out_rows"]) == (1, 1)


@pytest.mark.parametrize("media_type", ["application/jsonl", "application/x-ndjson; charset=utf-8", "text/plain"])
def test_a_dataset_as_a_body(api, ours, media_type):
    answer = api.post("/api/v1/datasets/?name=by+body&held_out_fraction=0", ROWS, media_type)
    assert answer.status_code == 201
    assert (answer.json()["number"], answer.json()["rows"], answer.json()["held_out_rows"]) == (1, 2, 0)
    again = api.post("/api/v1/datasets/?name=by+body", ROWS, media_type).json()
    assert again["number"] == 2
    shown = [item for item in api.get("/api/v1/datasets/").json()["results"] if item["name"] == "by body"]
    assert [version["number"] for version in shown[0]["versions"]] == [2, 1]
    listed = api.get(f"/api/v1/datasets/{shown[0]['id']}/versions/").json()
    assert [version["id"] for version in listed["results"]] == [version["id"] for version in shown[0]["versions"]]


def test_faulty_lines_are_named(api, ours):
    answer = api.post("/api/v1/datasets/?name=n", b'{"prompt": "a"}\n{"prompt": 7}\n', "application/jsonl")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "dataset_invalid"
    assert error["fields"] == [{"field": "file", "message": "line 2, prompt: must be text (got 7)"}]
    assert error["hint"]


def test_an_empty_body_and_an_empty_file(api, ours):
    for answer in (
        api.generic("POST", "/api/v1/datasets/?name=n", headers={"Content-Type": "application/jsonl"}),
        api.post("/api/v1/datasets/", {"name": "n", "file": SimpleUploadedFile("rows.jsonl", b"")}),
    ):
        assert answer.status_code == 400
        assert "has no rows" in answer.json()["error"]["fields"][0]["message"]


def test_a_form_without_file_or_name(api, ours):
    answer = api.post("/api/v1/datasets/", {"seed": "x"})
    assert {item["field"] for item in answer.json()["error"]["fields"]} == {"file", "name", "seed"}


def test_another_media_type(api, ours):
    answer = api.post("/api/v1/datasets/?name=n", ROWS, "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_reward_functions(api, ours):
    body = {"name": "exact", "spec": {"grader": {"type": "exact_match", "ignore_case": True}}}
    answer = api.post("/api/v1/reward-functions/", body, "application/json")
    assert answer.status_code == 201
    assert answer.json()["spec"]["grader"] == {
        "type": "exact_match",
        "input": "{{ sample.completion }}",
        "reference": "{{ row.answer }}",
        "ignore_case": True,
        "strip": True,
    }
    faulty = api.post("/api/v1/reward-functions/", {"name": "n", "spec": {"grader": {"type": "x"}}}, "application/json")
    assert faulty.status_code == 400
    assert faulty.json()["error"]["fields"][0]["field"] == "grader"


def test_base_models_on_offer(api, ours):
    BaseModel.objects.create(id="hidden", location="x", context_length=100, enabled=False)
    assert [model["id"] for model in api.get("/api/v1/base-models/").json()["results"]] == [BUNDLED_ID]
