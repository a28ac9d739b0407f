"""From the form to the stored version, and what the pages show of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.base_models.models import BaseModel
from portal.datasets.lengths import prompt_histogram
from portal.datasets.models import Dataset, DatasetUpload, DatasetVersion
from portal.datasets.selectors import list_rows
from portal.datasets.services import create_dataset_version
from tests.data_sets import find
from tests.portal.factories import Owned, jsonl, read_stream
from tests.portal.pages.test_queries import add_jobs

GOOD = '{"prompt": "1+1?", "answer": "2"}\n{"prompt": "2+2?", "answer": "4"}\n'
BAD = '{"prompt": "1+1?", "answer": "2"}\n{"prompt": 5}\n'
AS_NAMED = {"prompt": "prompt", "answer": "answer", "hold_out": "percent", "held_out_percent": 0}


def upload(browser: Client, content: str | bytes, file_name: str = "rows.jsonl", **fields: Any) -> Any:
    file = SimpleUploadedFile(file_name, content.encode() if isinstance(content, str) else content)
    return browser.post(reverse("datasets:new"), {"name": "new", "source": "file", "file": file, **fields})


def open_upload(browser: Client, *args: Any, **fields: Any) -> DatasetUpload:
    answer = upload(browser, *args, **fields)
    assert answer.status_code == 302, answer.context["form"].errors
    found = DatasetUpload.objects.exclude(name="being sent").latest("created_at")
    assert answer["Location"] == reverse("datasets:upload", args=[found.pk])
    return found


def store(browser: Client, upload: DatasetUpload, **fields: Any) -> Any:
    return browser.post(reverse("datasets:upload", args=[upload.pk]), {**AS_NAMED, **fields})


def stored() -> DatasetVersion:
    return Dataset.objects.get(name="new").versions.latest("number")


def test_a_file_becomes_a_version_in_two_steps(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, GOOD)
    page = browser.get(reverse("datasets:upload", args=[sent.pk]))
    form = page.context["form"]
    assert (form["prompt"].value(), form["answer"].value(), form["answer_after"].value()) == ("prompt", "answer", "")
    assert not Dataset.objects.filter(name="new").exists()
    answer = store(browser, sent, held_out_percent=50)
    assert answer["Location"] == f"{reverse('datasets:detail', args=[stored().dataset_id])}?version=1"
    assert (stored().rows, stored().held_out_rows) == (2, 1)
    assert browser.get(reverse("datasets:upload", args=[sent.pk]))["Location"] == answer["Location"]
    shown = browser.get(answer["Location"]).content.decode()
    assert "rows.jsonl" in shown
    assert stored().sha256 in shown


def test_csv_with_other_names(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, "Question;Solution;level\n1+1?;it is\\n#### 2;3\n", "sums.csv")
    form = browser.get(reverse("datasets:upload", args=[sent.pk])).context["form"]
    initial = {name: form[name].value() for name in ("prompt", "answer", "answer_after", "metadata")}
    assert initial == {
        "prompt": "Question",
        "answer": "Solution",
        "answer_after": "####",
        "metadata": ["Question", "Solution", "level"],
    }
    store(browser, sent, **initial)
    (row,) = list_rows(ours.tenant, stored().pk)
    assert (row["messages"][0]["content"], row["answer"], row["metadata"]) == ("1+1?", "2", {"level": "3"})


def test_columns_can_be_left_out_of_the_metadata(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, '{"prompt": "a", "keep": 1, "leave": 2}\n')
    store(browser, sent, answer="", metadata=["keep"])
    assert list_rows(ours.tenant, stored().pk)[0]["metadata"] == {"keep": 1}


def test_rows_with_a_prompt_or_messages(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, GOOD + '{"messages": [{"role": "user", "content": "3+3?"}], "answer": "6"}\n')
    form = browser.get(reverse("datasets:upload", args=[sent.pk])).context["form"]
    store(browser, sent, prompt=form["prompt"].value())
    assert stored().rows == 3


def test_the_preview_follows_the_choices(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, '{"q": "Why?", "a": "Because.", "b": "So."}\n')
    address = reverse("datasets:upload-preview", args=[sent.pk])
    assert "Because." in browser.get(address, {"prompt": "q", "answer": "a"}).content.decode()
    shown = browser.get(address, {"prompt": "q", "answer": "b", "answer_after": "##"}).content.decode()
    assert "has no &#x27;##&#x27;" in shown
    assert browser.get(address, {"prompt": "no such"}).status_code == 200


def test_a_faulty_row_is_named_and_can_be_corrected_or_left_out(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, BAD)
    answer = store(browser, sent)
    assert answer.status_code == 400
    assert not Dataset.objects.filter(name="new").exists()
    (error,) = answer.context["report"]["errors"]
    assert (error["line"], error["field"]) == (2, "prompt")
    page = answer.content.decode()
    assert 'data-line="2"' in page
    assert "store the 1 good one" in page
    assert answer.context["text"] == BAD
    listed = browser.get(reverse("datasets:upload-errors", args=[sent.pk]))
    assert read_stream(listed).splitlines()[1] == b",2,prompt,must be text,5"
    browser.post(reverse("datasets:upload-text", args=[sent.pk]), {"text": GOOD})
    store(browser, sent)
    assert stored().rows == 2
    again = open_upload(browser, BAD)
    store(browser, again, skip_bad_rows="on")
    assert (stored().number, stored().rows) == (2, 1)


def test_repeats_are_a_choice(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, GOOD + GOOD)
    answer = store(browser, sent)
    assert answer.status_code == 400
    assert "2 exact repeats of a row" in answer.content.decode()
    store(browser, sent, duplicates="drop")
    assert (stored().rows, stored().origin["duplicate_rows"]) == (2, 2)


def test_a_large_text_is_not_echoed(browser: Client, ours: Owned) -> None:
    sent = open_upload(browser, BAD + GOOD * 5000)
    answer = store(browser, sent)
    assert answer.context["text"] is None
    assert len(answer.content) < 100_000


@pytest.mark.parametrize("content", [b"\x80\x81\xff\n", b"PAR1 nonsense", b"", b'"a,b\n'])
def test_files_that_cannot_be_read_are_refused_in_words(browser: Client, ours: Owned, content: bytes) -> None:
    sent = open_upload(browser, content)
    page = browser.get(reverse("datasets:upload", args=[sent.pk]))
    assert page.status_code == 200
    preview = page.context["preview"]
    assert not preview.columns
    assert preview.problem or any(row.faults for row in preview.rows) or not content
    assert store(browser, sent).status_code == 400


def test_a_held_out_file(browser: Client, ours: Owned) -> None:
    held_out = SimpleUploadedFile("test.jsonl", b'{"prompt": "3+3?", "answer": "6"}\n')
    sent = open_upload(browser, GOOD, held_out_file=held_out)
    store(browser, sent)
    assert (stored().train_rows, stored().held_out_rows) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"source": "file"}, "file", "Choose a file."),
        ({"source": "paste", "text": " \n"}, "text", "Paste at least one row."),
        ({"source": "paste", "text": GOOD, "name": ""}, "name", "Give the dataset a name."),
    ],
)
def test_what_is_missing_from_an_upload_is_said_at_the_field(
    browser: Client, ours: Owned, fields: dict[str, str], field: str, message: str
) -> None:
    body = {"name": "new", **fields}
    answer = browser.post(reverse("datasets:new"), body)
    assert answer.status_code == 400
    assert answer.context["form"].errors == {field: [message]}
    assert f'id="id_{field}_error"' in answer.content.decode()
    by_script = browser.post(reverse("datasets:new"), body, headers={"X-Requested-With": "XMLHttpRequest"})
    assert by_script.json() == {"errors": {field: [message]}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "no such"}, "prompt"),
        ({"held_out_percent": ""}, "held_out_percent"),
        ({"held_out_percent": 51}, "held_out_percent"),
        ({"hold_out": "rows", "held_out_rows": -1}, "held_out_rows"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_faulty_choices_are_said_at_the_field(browser: Client, ours: Owned, fields: Any, field: str) -> None:
    answer = store(browser, open_upload(browser, GOOD), **fields)
    assert answer.status_code == 400
    assert list(answer.context["form"].errors) == [field]


def test_the_tenants_limit_is_said_at_the_field(browser: Client, ours: Owned) -> None:
    ours.tenant.max_dataset_bytes = 20
    ours.tenant.save()
    answer = upload(browser, GOOD)
    assert answer.context["form"].errors["file"] == ["The file is larger than 20 bytes, your tenant's limit."]


def test_a_version_is_compared_with_the_one_before_and_downloaded(browser: Client, ours: Owned) -> None:
    for count in (3, 5):
        rows = jsonl(*({"prompt": f"{number}?"} for number in range(count)))
        version = create_dataset_version(tenant=ours.tenant, user=ours.user, name="new", file=rows, held_out_fraction=0)
    page = browser.get(reverse("datasets:detail", args=[version.dataset_id]))
    assert dict(page.context["changes"])["training rows"] == "+2"
    answer = browser.get(reverse("datasets:rows", args=[version.dataset_id, version.pk]))
    assert read_stream(answer) == version.path.read_bytes()
    other = reverse("datasets:rows", args=[ours.dataset_version.dataset_id, version.pk])
    assert browser.get(other).status_code == 404


def test_prompt_lengths_against_the_context(browser: Client, ours: Owned) -> None:
    small = BaseModel.objects.create(id="small", location="/nowhere", source="local", context_length=100)
    rows = jsonl({"prompt": "x" * 352}, {"prompt": "x" * 40}, {"prompt": "x" * 40})  # 4 characters a token, 12 of frame
    version = create_dataset_version(tenant=ours.tenant, user=ours.user, name="new", file=rows, held_out_fraction=0)
    histogram = prompt_histogram(version, small)
    assert histogram is not None
    assert (histogram.longest, histogram.over, histogram.sampled_rows, histogram.exact) == (100, 1, 3, False)
    assert sum(each.rows for each in histogram.bins) == 3
    assert [(each.rows, each.over) for each in histogram.bins if each.rows] == [(2, False), (1, True)]
    address = reverse("datasets:lengths", args=[version.dataset_id, version.pk])
    assert "1 of 3 prompts do not fit" in browser.get(address, {"base_model": "small"}).content.decode()


def test_used_datasets_are_archived_and_others_deleted(browser: Client, ours: Owned) -> None:
    used = ours.dataset_version.dataset
    browser.post(reverse("datasets:delete", args=[used.pk]))
    assert Dataset.objects.filter(pk=used.pk).exists()
    browser.post(reverse("datasets:archive", args=[used.pk]))
    assert list(browser.get(reverse("datasets:list")).context["page"]) == []
    assert list(browser.get(reverse("datasets:list"), {"archived": ""}).context["page"]) == [used]
    browser.post(reverse("datasets:restore", args=[used.pk]))
    assert list(browser.get(reverse("datasets:list")).context["page"]) == [used]
    sent = open_upload(browser, GOOD)
    store(browser, sent)
    browser.post(reverse("datasets:delete", args=[stored().dataset_id]))
    assert not Dataset.objects.filter(name="new").exists()


def test_gsm8k_by_its_guessed_columns(browser: Client, ours: Owned) -> None:
    path = find("gsm8k/test.jsonl")
    sent = open_upload(browser, path.read_bytes(), "gsm8k.jsonl")
    form = browser.get(reverse("datasets:upload", args=[sent.pk])).context["form"]
    guessed = {name: form[name].value() for name in ("prompt", "answer", "answer_after")}
    assert guessed == {"prompt": "question", "answer": "answer", "answer_after": "####"}
    store(browser, sent, **guessed, held_out_percent=10)
    assert (stored().rows, stored().held_out_rows) == (1319, 132)
    assert all(row["answer"].replace(",", "").lstrip("-").isdigit() for row in list_rows(ours.tenant, stored().pk))


def test_a_name_is_never_a_header_of_its_own(browser: Client, ours: Owned) -> None:
    name = 'odd "name"\nX-Evil: 1 ü'
    version = create_dataset_version(tenant=ours.tenant, user=ours.user, name=name, file=jsonl({"prompt": "a"}))
    answer = browser.get(reverse("datasets:rows", args=[version.dataset_id, version.pk]))
    assert "X-Evil" not in answer.headers
    assert read_stream(answer) == version.path.read_bytes()


def test_the_page_costs_the_same_whatever_was_made_of_the_dataset(browser: Client, ours: Owned) -> None:
    address = reverse("datasets:detail", args=[ours.dataset_version.dataset_id])

    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert browser.get(address).status_code == 200
        return len(captured)

    def grow() -> None:
        rows = jsonl(*({"prompt": f"{number}?"} for number in range(30)))
        create_dataset_version(tenant=ours.tenant, user=ours.user, name="sums", file=rows)
        add_jobs(ours, 1)

    for _ in range(2):
        grow()
    few = count()
    for _ in range(5):
        grow()
    assert count() == few <= 20
