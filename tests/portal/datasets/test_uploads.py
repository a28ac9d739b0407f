"""Uploads in pieces, drafts and what becomes of them."""

import csv
import gzip
import hashlib
import io
import tracemalloc
from datetime import timedelta

import pytest
from django.http import Http404
from django.utils import timezone

from portal.datasets.building import BuildOptions, RepeatsFound
from portal.datasets.mapping import FieldMapping
from portal.datasets.models import Dataset, DatasetUpload, DatasetVersion
from portal.datasets.parsing import DatasetInvalid
from portal.datasets.receiving import file_lock
from portal.datasets.selectors import list_rows, list_uploads
from portal.datasets.services import archive_dataset, create_dataset_version, delete_dataset
from portal.datasets.uploads import (
    MAX_UPLOADS,
    append_to_upload,
    create_upload,
    delete_expired_uploads,
    delete_upload,
    finish_upload,
    replace_upload_text,
)
from portal.errors import Conflict, InvalidInput, NotAllowed, QuotaExceeded
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.data_sets import find
from tests.portal.factories import jsonl

GOOD = b'{"prompt": "1+1?", "answer": "2"}\n{"prompt": "2+2?", "answer": "4"}\n{"prompt": "3+3?", "answer": "6"}\n'


@pytest.fixture
def begin(ours):
    def begin(content: bytes = b"", **fields) -> DatasetUpload:
        upload = create_upload(tenant=ours.tenant, user=ours.user, **{"name": "new", **fields})
        if content:
            send(ours, upload, content)
        return upload

    return begin


def send(ours, upload, content: bytes, offset: int = 0, part: str = "data") -> int:
    return append_to_upload(
        tenant=ours.tenant,
        user=ours.user,
        upload_id=upload.pk,
        stream=io.BytesIO(content),
        offset=offset,
        part=part,
    )


def finish(ours, upload, **options) -> DatasetVersion:
    return finish_upload(tenant=ours.tenant, user=ours.user, upload_id=upload.pk, options=BuildOptions(**options))


def rows(ours, version):
    return [
        (row["messages"][0]["content"], row["answer"], row["split"])
        for row in list_rows(ours.tenant, version.pk, limit=100)
    ]


class Cut(io.BytesIO):
    """A connection that dies after its bytes."""

    def read(self, size=-1):
        if chunk := super().read(size):
            return chunk
        raise ConnectionResetError


@pytest.mark.parametrize("cut", [1, 30, 34, len(GOOD) - 1])
def test_a_cut_at_any_byte_loses_nothing(ours, begin, cut):
    upload = begin()
    with pytest.raises(ConnectionResetError):
        append_to_upload(
            tenant=ours.tenant, user=ours.user, upload_id=upload.pk, stream=Cut(GOOD[:cut]), offset=0, part="data"
        )
    with pytest.raises(Conflict) as caught:
        send(ours, upload, GOOD)
    assert caught.value.fields[0].message == f"must be {cut}"
    assert send(ours, upload, GOOD[cut:], offset=cut) == len(GOOD)
    whole = create_dataset_version(tenant=ours.tenant, user=ours.user, name="whole", file=io.BytesIO(GOOD))
    assert finish(ours, upload).sha256 == whole.sha256


def test_finishing_twice_gives_the_same_version(ours, begin):
    upload = begin(GOOD)
    assert finish(ours, upload) == finish(ours, upload)
    assert Dataset.objects.get(name="new").versions.count() == 1
    with pytest.raises(Conflict, match="complete"):
        send(ours, upload, b"x", offset=len(GOOD))
    assert list_uploads(ours.tenant).get() == ours.upload


def test_one_request_at_a_time_works_on_an_upload(ours, begin):
    upload = begin(GOOD)
    with file_lock(upload.folder / "lock"), pytest.raises(Conflict, match="busy"):
        finish(ours, upload)
    assert finish(ours, upload).rows == 3


def test_gzip_is_unpacked_and_may_not_burst(ours, begin):
    assert finish(ours, begin(gzip.compress(GOOD))).rows == 3
    ours.tenant.max_dataset_bytes = 10_000
    with pytest.raises(DatasetInvalid) as caught:
        finish(ours, begin(gzip.compress(GOOD * 10_000)))
    assert "larger than 10,000 bytes" in caught.value.errors[0].message
    with pytest.raises(DatasetInvalid) as caught:
        finish(ours, begin(gzip.compress(GOOD)[:-9]))
    assert "broken or cut off" in caught.value.errors[0].message


def test_faults_are_all_written_down_and_the_upload_stays(ours, begin):
    upload = begin(b'{"prompt": 1, "answer": []}\n' * 150 + GOOD + b'{"prompt": "=cmd", "answer": [1]}\n')
    with pytest.raises(DatasetInvalid):
        finish(ours, upload)
    upload.refresh_from_db()
    assert (len(upload.report["errors"]), upload.report["total"], upload.report["rows"]) == (100, 301, 3)
    with upload.errors_path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 301
    assert lines[-1] == {
        "file": "", "line": "154", "field": "answer", "problem": "must be text or a number", "value": "[1]"
    }  # fmt: skip
    assert upload in list_uploads(ours.tenant)
    version = finish(ours, upload, skip_bad_rows=True, held_out_fraction=0)
    assert [row[0] for row in rows(ours, version)] == ["1+1?", "2+2?", "3+3?"]
    assert version.origin["skipped_rows"] == 151


def test_cells_of_the_list_of_faults_are_no_formulas(ours, begin):
    upload = begin(b'{"prompt": "a", "answer": ["=1"], "=x": 1, "metadata": {"=x": 2}}\n')
    with pytest.raises(DatasetInvalid):
        finish(ours, upload)
    assert ",'=x," in upload.errors_path.read_text()


def test_nothing_is_left_to_store_when_every_row_is_bad(ours, begin):
    with pytest.raises(DatasetInvalid):
        finish(ours, begin(b"nonsense\n"), skip_bad_rows=True)


def test_a_corrected_text_takes_the_place_of_the_faulty(ours, begin):
    upload = begin(b"{\n")
    with pytest.raises(DatasetInvalid):
        finish(ours, upload)
    replace_upload_text(tenant=ours.tenant, user=ours.user, upload_id=upload.pk, text=GOOD.decode())
    assert finish(ours, upload).rows == 3


def test_repeats_are_asked_about(ours, begin):
    upload = begin(GOOD + GOOD.splitlines(keepends=True)[0])
    with pytest.raises(RepeatsFound) as caught:
        finish(ours, upload, duplicates="ask", overlap="ask")
    assert (caught.value.duplicates, caught.value.overlap, caught.value.rows) == (1, 0, 4)
    version = finish(ours, upload, duplicates="drop", held_out_fraction=0)
    assert (version.rows, version.origin["duplicate_rows"]) == (3, 1)


def test_training_rows_that_are_held_out_too(ours, begin):
    content = b'{"prompt": "a", "split": "train"}\n{"prompt": "a", "split": "held_out"}\n{"prompt": "b"}\n'
    with pytest.raises(RepeatsFound) as caught:
        finish(ours, begin(content), overlap="ask", held_out_fraction=0)
    assert (caught.value.duplicates, caught.value.overlap) == (0, 1)
    kept = finish(ours, begin(content), held_out_fraction=0)
    assert (kept.train_rows, kept.held_out_rows, kept.origin["overlapping_rows"]) == (2, 1, 1)
    dropped = finish(ours, begin(content), overlap="drop", held_out_fraction=0)
    assert rows(ours, dropped) == [("a", "", "held_out"), ("b", "", "train")]


def test_the_split_by_a_number_of_rows(ours, begin):
    content = b"".join(b'{"prompt": "%d"}\n' % number for number in range(50))
    first, again, other = (finish(ours, begin(content), held_out_rows=7, seed=seed) for seed in (1, 1, 2))
    assert (first.held_out_rows, other.held_out_rows) == (7, 7)
    assert first.sha256 == again.sha256 != other.sha256
    assert finish(ours, begin(content), held_out_rows=1000).train_rows == 1


def test_a_held_out_file_of_its_own(ours, begin):
    upload = begin(GOOD)
    send(ours, upload, b"prompt,answer\n4+4?,8\n", part="held_out")
    version = finish(ours, upload, held_out_fraction=0.5)
    assert [row[2] for row in rows(ours, version)] == ["train", "train", "train", "held_out"]
    upload = begin(GOOD)
    send(ours, upload, b"prompt,answer\n4+4?\n", part="held_out")
    with pytest.raises(DatasetInvalid) as caught:
        finish(ours, upload)
    assert str(caught.value.errors[0]).startswith("held-out file, line 2: has 1 field ")


def test_limits(ours, begin):
    ours.tenant.max_dataset_bytes = 100
    with pytest.raises(DatasetInvalid):
        begin(size_bytes=101)
    upload = begin(b"x" * 60)
    with pytest.raises(DatasetInvalid):
        send(ours, upload, b"x" * 41, part="held_out")
    ours.tenant.max_dataset_bytes, ours.tenant.max_dataset_rows = 10_000, 2
    with pytest.raises(DatasetInvalid) as caught:
        finish(ours, begin(GOOD), skip_bad_rows=True)
    assert "more than 2 rows" in caught.value.errors[0].message
    for _ in range(MAX_UPLOADS - 3):
        begin()
    with pytest.raises(QuotaExceeded):
        begin()


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"name": " "}, "name"), ({"name": "x" * 101}, "name"), ({"name": "\0"}, "name"), ({"format": "xls"}, "format")],
)
def test_faulty_beginnings(begin, fields, field):
    with pytest.raises(InvalidInput) as caught:
        begin(**fields)
    assert [error.field for error in caught.value.fields] == [field]


def test_after_a_day_it_is_forgotten(ours, theirs, begin):
    old, new = begin(GOOD), begin(GOOD)
    DatasetUpload.objects.filter(pk=old.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(Http404):
        finish(ours, old)
    gone = begin(GOOD)
    DatasetUpload.objects.filter(pk=gone.pk).delete()  # as with its tenant
    assert delete_expired_uploads() == 2
    assert not old.folder.exists()
    assert not gone.folder.exists()
    assert new.data_path.exists()
    with pytest.raises(Http404):
        delete_upload(tenant=theirs.tenant, user=theirs.user, upload_id=new.pk)
    delete_upload(tenant=ours.tenant, user=ours.user, upload_id=new.pk)
    assert not new.folder.exists()


def test_viewers_send_nothing(ours, begin):
    upload = begin(GOOD)
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    for act in (
        lambda: create_upload(tenant=ours.tenant, user=viewer, name="n"),
        lambda: finish_upload(tenant=ours.tenant, user=viewer, upload_id=upload.pk, options=BuildOptions()),
        lambda: delete_upload(tenant=ours.tenant, user=viewer, upload_id=upload.pk),
        lambda: archive_dataset(tenant=ours.tenant, user=viewer, dataset_id=ours.dataset_version.dataset_id),
        lambda: delete_dataset(tenant=ours.tenant, user=viewer, dataset_id=ours.dataset_version.dataset_id),
    ):
        with pytest.raises(NotAllowed):
            act()


def test_a_used_dataset_is_archived_not_deleted(ours):
    dataset = ours.dataset_version.dataset
    with pytest.raises(Conflict, match="1 job"):
        delete_dataset(tenant=ours.tenant, user=ours.user, dataset_id=dataset.pk)
    archive_dataset(tenant=ours.tenant, user=ours.user, dataset_id=dataset.pk)
    with pytest.raises(Conflict, match="archived"):
        create_dataset_version(tenant=ours.tenant, user=ours.user, name=dataset.name, file=jsonl({"prompt": "a"}))


def test_a_deleted_dataset_takes_only_its_own_files(ours, theirs):
    def store(owned):
        return create_dataset_version(tenant=owned.tenant, user=owned.user, name="n", file=jsonl({"prompt": "same"}))

    first, second = store(ours), store(theirs)
    assert first.path == second.path
    delete_dataset(tenant=ours.tenant, user=ours.user, dataset_id=first.dataset_id)
    assert second.path.exists()
    delete_dataset(tenant=theirs.tenant, user=theirs.user, dataset_id=second.dataset_id)
    assert not second.path.exists()


class Endless(io.RawIOBase):
    """So many rows of 8 kB, made as they are read."""

    def __init__(self, count):
        self.left, self.held = count, b""

    def read(self, size=-1):
        while self.left and len(self.held) < size:
            self.left -= 1
            self.held += f'{{"prompt": "{self.left} {"x" * 8000}"}}\n'.encode()
        chunk, self.held = self.held[:size], self.held[size:]
        return chunk


def test_memory_does_not_grow_with_the_upload(ours):
    """24 MB become a version within 4 MB of memory."""
    create_dataset_version(tenant=ours.tenant, user=ours.user, name="warm", file=Endless(5))
    tracemalloc.start()
    version = create_dataset_version(tenant=ours.tenant, user=ours.user, name="new", file=Endless(3000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (version.rows, version.size_bytes > 24_000_000) == (3000, True)
    assert peak < 4_000_000


def test_gsm8k_as_published(ours):
    path = find("gsm8k/test.jsonl")
    upload = create_upload(tenant=ours.tenant, user=ours.user, name="gsm8k", file_name=path.name)
    send(ours, upload, path.read_bytes())
    with pytest.raises(DatasetInvalid, match=r"1319 error"):
        finish(ours, upload)
    mapping = FieldMapping(prompt="question", answer="answer", answer_after="####")
    version = finish(ours, upload, mapping=mapping, held_out_rows=200)
    assert (version.rows, version.held_out_rows) == (1319, 200)
    (first,) = list_rows(ours.tenant, version.pk, limit=1)
    assert first["messages"][0]["content"].startswith("Janet’s ducks lay 16 eggs per day.")
    assert first["answer"] == "18"
    assert hashlib.sha256(version.path.read_bytes()).hexdigest() == version.sha256
