"""Uploads as a whole."""

import hashlib
import io
import json
from pathlib import Path

import pytest

from engine.spec import DatasetRow
from portal.datasets.models import Dataset, DatasetVersion
from portal.datasets.selectors import get_dataset, list_datasets, preview_rows
from portal.datasets.services import DatasetInvalid, create_dataset_version
from portal.errors import InvalidInput, NotAllowed
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import jsonl


def upload(ours, content: bytes, **options):
    return create_dataset_version(tenant=ours.tenant, user=ours.user, name="new", file=io.BytesIO(content), **options)


def test_the_file_is_what_the_row_says(ours):
    version = upload(ours, b'{"prompt": "one?", "answer": 1}\n\n{"prompt": "\xc3\xbc?"}\n{"prompt": "three?"}\n')
    content = version.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == version.sha256 == version.path.stem
    assert len(content) == version.size_bytes
    rows = [DatasetRow.model_validate_json(line) for line in content.splitlines()]
    assert [row.messages[-1].content for row in rows] == ["one?", "ü?", "three?"]
    splits = [row.split for row in rows]
    assert (version.rows, version.train_rows, version.held_out_rows) == (3, splits.count("train"), 1)
    reference = version.to_ref()
    assert Path(reference.path).is_absolute()
    assert (reference.train_rows, reference.held_out_rows) == (2, 1)


def test_the_same_name_gets_the_next_version(ours):
    first, second = upload(ours, b'{"prompt": "a"}\n'), upload(ours, b'{"prompt": "b"}\n')
    assert (first.number, second.number) == (1, 2)
    assert first.dataset == second.dataset
    assert preview_rows(ours.tenant, first.pk)[0]["messages"][0]["content"] == "a"


def test_bom_and_crlf_are_taken(ours):
    version = upload(ours, b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [row["messages"][0]["content"] for row in preview_rows(ours.tenant, version.pk)] == ["a", "b"]


def test_explicit_splits_are_kept(ours):
    version = upload(
        ours,
        b'{"prompt": "a", "split": "held_out"}\n{"prompt": "b", "split": "train"}\n{"prompt": "c", "split": "train"}\n',
        held_out_fraction=0.5,
    )
    assert [row["split"] for row in preview_rows(ours.tenant, version.pk)] == ["held_out", "train", "train"]


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"", 0, "has no rows"),
        (b"\n \n\r\n", 0, "has no rows"),
        (b"\xef\xbb\xbf", 0, "has no rows"),
        ('{"prompt": "a"}'.encode("utf-16"), 0, "UTF-16"),
        (b'{"prompt": "a"}\n' + b'{"prompt": "' + b"x" * 10_000_000 + b'"}\n', 2, "longer than 1,000,000 bytes"),
        (b'{"prompt": "a"}\n\n{"prompt": "b"\n', 3, "not valid JSON"),
        (b'{"prompt": "a", "split": "held_out"}\n', 0, "nothing to train on"),
    ],
)
def test_faulty_files(ours, content, line, says):
    with pytest.raises(DatasetInvalid) as caught:
        upload(ours, content)
    (error,) = caught.value.errors
    assert error.line == line
    assert says in error.message
    assert caught.value.total == 1


def test_nothing_is_stored_of_a_faulty_file(ours):
    folder = ours.dataset_version.path.parent
    before = sorted(folder.iterdir()), DatasetVersion.objects.count()
    with pytest.raises(DatasetInvalid):
        upload(ours, b'{"prompt": "good"}\n{"prompt": 1}\n')
    assert (sorted(folder.iterdir()), DatasetVersion.objects.count()) == before
    assert not Dataset.objects.filter(name="new").exists()


def test_the_first_hundred_errors_and_how_many_there_are(ours):
    with pytest.raises(DatasetInvalid) as caught:
        upload(ours, b'{"prompt": 1, "answer": []}\n' * 150)
    error = caught.value
    assert (len(error.errors), error.total) == (100, 300)
    assert [(e.line, e.field, e.excerpt) for e in error.errors[:3]] == [
        (1, "prompt", "1"),
        (1, "answer", "[]"),
        (2, "prompt", "1"),
    ]
    assert error.fields[1].message == "line 1, answer: must be text or a number (got [])"


def test_limits_of_the_tenant(ours):
    ours.tenant.max_dataset_rows = 2
    upload(ours, b'{"prompt": "a"}\n' * 2)
    with pytest.raises(DatasetInvalid, match=r"1 error") as caught:
        upload(ours, b'{"prompt": "a"}\n' * 3)
    assert "more than 2 rows" in caught.value.errors[0].message
    ours.tenant.max_dataset_bytes = 20
    with pytest.raises(DatasetInvalid) as caught:
        upload(ours, b'{"prompt": "a"}\n' * 2)
    assert "larger than 20 bytes" in caught.value.errors[0].message


@pytest.mark.parametrize(
    ("options", "field"), [({"name": " "}, "name"), ({"held_out_fraction": 1.0}, "held_out_fraction")]
)
def test_faulty_options(ours, options, field):
    with pytest.raises(InvalidInput) as caught:
        create_dataset_version(
            **{"tenant": ours.tenant, "user": ours.user, "name": "n", "file": jsonl({"prompt": "a"}), **options}
        )
    assert [error.field for error in caught.value.fields] == [field]


def test_viewers_cannot_upload(ours):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        create_dataset_version(tenant=ours.tenant, user=viewer, name="n", file=jsonl({"prompt": "a"}))


def test_equal_content_of_two_tenants_shares_no_rows(ours, theirs):
    assert ours.dataset_version.sha256 == theirs.dataset_version.sha256
    assert [dataset.tenant for dataset in list_datasets(ours.tenant)] == [ours.tenant]
    assert get_dataset(ours.tenant, ours.dataset_version.dataset_id).versions.get() == ours.dataset_version


def test_rows_keep_their_numbers_and_text(ours):
    version = upload(ours, (json.dumps({"prompt": 'a "quote" \u2028', "answer": 10, "n": 1.5}) + "\n").encode())
    (row,) = preview_rows(ours.tenant, version.pk)
    assert row == {
        "messages": [{"role": "user", "content": 'a "quote" \u2028'}],
        "answer": "10",
        "metadata": {"n": 1.5},
        "split": "train",
    }
