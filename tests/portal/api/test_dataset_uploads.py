"""Datasets over the API: any format, in pieces, with a mapping; archive, delete, rows, lengths."""

import gzip
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
from asgiref.testing import ApplicationCommunicator

from portal.datasets.body_limit import FREE_BYTES, BodyLimit
from portal.datasets.models import Dataset, DatasetUpload
from portal.tenants.services import create_api_token
from tests.portal.factories import read_stream

ROWS = b'{"q": "1+1?", "a": "so #### 2"}\n{"q": "2+2?", "a": "so #### 4"}\n'
MAPPING = {"prompt": "q", "answer": "a", "answer_after": "####"}
UPLOADS = "/api/v1/dataset-uploads/"


def parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"q": ["1+1?", "2+2?"], "a": ["#### 2", "#### 4"]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (ROWS, "application/x-ndjson"),
        (gzip.compress(ROWS), "application/gzip"),
        (gzip.compress(ROWS), "application/x-ndjson"),
        (b"q,a\n1+1?,#### 2\n2+2?,#### 4\n", "text/csv"),
        (parquet(), "application/vnd.apache.parquet"),
        (parquet(), "application/octet-stream"),
    ],
    ids=["jsonl", "gzip", "gzip-as-jsonl", "csv", "parquet", "unnamed"],
)
def test_a_body_of_any_format_with_a_mapping(api, ours, content, media_type):
    query = f"name=new&held_out_rows=1&mapping={json.dumps(MAPPING).replace('#', '%23')}"
    answer = api.post(f"/api/v1/datasets/?{query}", content, media_type)
    assert answer.status_code == 201, answer.json()
    version = answer.json()
    assert (version["rows"], version["held_out_rows"]) == (2, 1)
    assert version["origin"]["mapping"]["answer_after"] == "####"
    dataset = Dataset.objects.get(name="new")
    rows = api.get(f"/api/v1/datasets/{dataset.pk}/versions/{version['id']}/rows/?start=1").json()["rows"]
    assert [(row["messages"][0]["content"], row["answer"]) for row in rows] == [("2+2?", "4")]
    file = api.get(f"/api/v1/datasets/{dataset.pk}/versions/{version['id']}/file/")
    assert len(read_stream(file).splitlines()) == 2


def test_what_is_refused_can_be_finished_with_a_mapping(api, ours):
    error = api.post("/api/v1/datasets/?name=new", ROWS, "application/x-ndjson").json()["error"]
    assert error["code"] == "dataset_invalid"
    upload = DatasetUpload.objects.get(name="new")
    assert f"{UPLOADS}{upload.pk}/finish/" in error["hint"]
    faults = read_stream(api.get(f"{UPLOADS}{upload.pk}/errors/"))
    assert len(faults.splitlines()) == 3
    preview = api.post(f"{UPLOADS}{upload.pk}/preview/", {}, "application/json").json()
    assert preview["columns"][0] == {"name": "q", "example": "1+1?"}
    assert preview["rows"][0]["faults"][0].startswith("line 1, prompt: is required")  # no column looks like a prompt
    mapped = api.post(f"{UPLOADS}{upload.pk}/preview/", {"mapping": MAPPING}, "application/json").json()
    assert mapped["rows"][1]["row"]["answer"] == "4"
    stored = api.post(f"{UPLOADS}{upload.pk}/finish/", {"mapping": MAPPING}, "application/json")
    assert (stored.status_code, stored.json()["rows"]) == (201, 2)
    again = api.post(f"{UPLOADS}{upload.pk}/finish/", {}, "application/json")
    assert again.json()["id"] == stored.json()["id"]
    assert api.get(f"{UPLOADS}{upload.pk}/").json()["version"] == stored.json()["id"]


def test_an_upload_in_pieces_goes_on_where_it_was_cut(api, ours):
    upload = api.post(UPLOADS, {"name": "new", "file_name": "rows.jsonl"}, "application/json").json()
    address = f"{UPLOADS}{upload['id']}/data/"
    assert api.put(f"{address}?offset=0", ROWS[:10], "application/octet-stream").json()["offset"] == 10
    twice = api.put(f"{address}?offset=0", ROWS[:10], "application/octet-stream")
    assert (twice.status_code, twice.json()["error"]["fields"][0]["message"]) == (409, "must be 10")
    offset = api.get(address).json()["offset"]
    api.put(f"{address}?offset={offset}", ROWS[offset:], "application/octet-stream")
    held_out = api.put(f"{address}?offset=0&part=held_out", b'{"q": "3+3?", "a": "#### 6"}', "text/plain")
    assert held_out.json()["held_out_offset"] > 0
    version = api.post(f"{UPLOADS}{upload['id']}/finish/", {"mapping": MAPPING}, "application/json").json()
    assert (version["train_rows"], version["held_out_rows"]) == (2, 1)
    assert all(item["id"] != upload["id"] for item in api.get(UPLOADS).json()["results"])


def test_an_upload_is_forgotten(api, ours):
    upload = api.post(UPLOADS, {"name": "new"}, "application/json").json()
    assert api.delete(f"{UPLOADS}{upload['id']}/").status_code == 204
    assert api.get(f"{UPLOADS}{upload['id']}/").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"mapping": {"prompt": "q", "other": 1}}, "mapping.other"),
        ({"mapping": 7}, "mapping.prompt"),
        ({"held_out_fraction": 1}, "held_out_fraction"),
        ({"held_out_rows": -1}, "held_out_rows"),
        ({"duplicates": "maybe"}, "duplicates"),
    ],
)
def test_faulty_choices_name_their_field(api, ours, body, field):
    answer = api.post(f"{UPLOADS}{ours.upload.pk}/finish/", body, "application/json")
    assert answer.status_code == 400
    assert [item["field"] for item in answer.json()["error"]["fields"]] == [field]


def test_repeats_are_refused_where_asked(api, ours):
    body = b'{"prompt": "a"}\n' * 3
    answer = api.post("/api/v1/datasets/?name=new&duplicates=ask", body, "application/x-ndjson")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "repeats_found")
    assert "Found 2 exact repeat(s)" in answer.json()["error"]["message"]
    dropped = api.post("/api/v1/datasets/?name=new&duplicates=drop", body, "application/x-ndjson").json()
    assert (dropped["rows"], dropped["origin"]["duplicate_rows"]) == (1, 2)


def test_archive_and_delete(api, ours):
    address = f"/api/v1/datasets/{ours.dataset_version.dataset_id}/"
    assert api.delete(address).json()["error"]["code"] == "conflict"
    assert api.patch(address, {"archived": True}, "application/json").json()["archived_at"]
    assert api.get("/api/v1/datasets/").json()["count"] == 0
    assert api.get("/api/v1/datasets/?archived=true").json()["count"] == 1
    assert api.patch(address, {"archived": False}, "application/json").json()["archived_at"] is None
    api.post("/api/v1/datasets/?name=new", b'{"prompt": "a"}\n', "text/plain")
    unused = Dataset.objects.get(name="new")
    assert api.delete(f"/api/v1/datasets/{unused.pk}/").status_code == 204
    assert not Dataset.objects.filter(name="new").exists()


def test_lengths_by_base_model(api, ours):
    address = f"/api/v1/datasets/{ours.dataset_version.dataset_id}/versions/{ours.dataset_version.pk}/lengths/"
    found = api.get(address).json()
    assert (found["sampled_rows"], found["over"], found["context_length"]) == (10, 0, 1024)
    assert sum(each["rows"] for each in found["bins"]) == 10
    assert api.get(f"{address}?base_model=none").json()["error"]["fields"][0]["field"] == "base_model"


# --- before the body is received -------------------------------------------------------------------------------------


async def ask(headers, path="/api/v1/datasets/", pieces=()):
    """How many bytes of the body reach Django, and the status where it is not asked at all."""
    reached = []

    async def django(scope, receive, send):
        more = True
        while more:
            message = await receive()
            reached.append(len(message.get("body", b"")))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    communicator = ApplicationCommunicator(BodyLimit(django), scope)
    for index, piece in enumerate(pieces):
        message = {"type": "http.request", "body": piece, "more_body": index + 1 < len(pieces)}
        await communicator.send_input(message)
    start = await communicator.receive_output(5)
    await communicator.receive_output(5)
    return sum(reached), start["status"]


@pytest.mark.django_db(transaction=True)
async def test_bodies_above_the_limit_are_not_received(ours):
    from asgiref.sync import sync_to_async

    _, secret = await sync_to_async(create_api_token)(tenant=ours.tenant, user=ours.user, name="x")
    bearer = (b"authorization", f"Bearer {secret}".encode())
    piece = b"x" * (FREE_BYTES + 1)

    def length(size):
        return (b"content-length", str(size).encode())

    assert await ask([bearer, length(len(piece))], pieces=[piece]) == (len(piece), 200)
    too_much = ours.tenant.max_dataset_bytes + FREE_BYTES + 1
    assert await ask([bearer, length(too_much)], pieces=[piece]) == (0, 200)  # the view refuses it by its length
    assert await ask([length(len(piece))], pieces=[piece]) == (0, 200)  # and the sign-in this one
    assert await ask([length(too_much)], path="/datasets/new/", pieces=[piece]) == (0, 413)
    chunked = (b"transfer-encoding", b"chunked")
    assert await ask([chunked], pieces=[piece]) == (0, 200)
    assert await ask([bearer, chunked], pieces=[piece, b"y"]) == (len(piece) + 1, 200)
