"""Uploads become the lines the engine's search tool reads, or are refused by line."""

from __future__ import annotations

import json

import pytest

from engine.environments.files import Document
from portal.environments import documents
from portal.environments.documents import DocumentsInvalid, read_documents


def read(content: bytes | str, size: int = 7) -> list[dict[str, str]]:
    """In small chunks, which cut lines and characters anywhere."""
    data = content.encode() if isinstance(content, str) else content
    return list(read_documents(data[start : start + size] for start in range(0, len(data), size)))


def test_json_lines_keep_text_and_title_alone():
    found = read('\n{"text": "Größe", "title": "T", "more": 1}\r\n\n{"text": "b", "title": ""}')
    assert found == [{"text": "Größe", "title": "T"}, {"text": "b"}]
    assert [Document.model_validate(one).text for one in found] == ["Größe", "b"]


def test_paragraphs_of_plain_text_are_documents():
    assert read("\ufeffOne\ntwo\n\n \nthree") == [{"text": "One\ntwo"}, {"text": "three"}]
    assert read(" \n\n") == read("") == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"text": "a"}\n{"text": ""}\n{"txt": 1}', ["Line 2: 'text'", "Line 3: 'text'"]),
        ('{"text": "a"}\nplain', ["Line 2: is not valid JSON"]),
        ('{"text": "a", "title": 5}', ["Line 1: 'title'"]),
        ('{"text": "\\ud800"}', ["Line 1: holds half of a surrogate pair"]),
        ('{"text": "a"}\n[1]', ["Line 2: must be a JSON object"]),
        (b"\xff\xfe", ["Line 1 or one soon after it is not UTF-8"]),
    ],
)
def test_faults_name_their_line(content, says):
    with pytest.raises(DocumentsInvalid) as caught:
        read(content)
    assert len(caught.value.fields) == len(says)
    for field, words in zip(caught.value.fields, says, strict=True):
        assert words in field.message


def test_the_number_of_faults_of_lines_and_of_documents_is_bounded(monkeypatch):
    with pytest.raises(DocumentsInvalid) as caught:
        read('{"a": 1}\n' * 500, size=4096)
    assert len(caught.value.fields) == documents.MAX_FAULTS
    monkeypatch.setattr(documents, "MAX_DOCUMENTS", 3)
    assert len(read("a\n\nb\n\nc")) == 3
    with pytest.raises(DocumentsInvalid, match="not stored") as caught:
        read("a\n\nb\n\nc\n\nd")
    assert "more than 3 documents" in caught.value.fields[0].message
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 20)
    for content in (json.dumps({"text": "x" * 40}), "x" * 40, "x" * 15 + "\n" + "x" * 15):
        with pytest.raises(DocumentsInvalid) as caught:
            read(content)
        assert "longer than 20" in caught.value.fields[0].message
