"""Columns to prompt, messages, answer and metadata."""

import pytest

from portal.datasets.mapping import FieldMapping, guess_mapping, list_columns, map_row, read_mapping
from portal.datasets.parsing import RowInvalid
from portal.errors import InvalidInput


def user(text):
    return [{"role": "user", "content": text}]


def test_columns_are_renamed_and_the_rest_is_metadata():
    mapping = FieldMapping(prompt="question", answer="answer", answer_after="####")
    row = map_row({"question": "1+1?", "answer": "1+1=2\n#### 2", "level": 3}, mapping)
    assert row == {"messages": user("1+1?"), "answer": "2", "metadata": {"level": 3}}


def test_rows_may_have_a_prompt_or_messages_and_need_no_answer():
    mapping = FieldMapping(prompt="prompt", messages="messages", answer="answer")
    for data in ({"prompt": "hi"}, {"messages": user("hi")}):
        assert map_row(data, mapping) == {"messages": user("hi"), "answer": "", "metadata": {}}


def test_a_dot_leads_into_an_object():
    data = {"prompt": user("hi"), "reward_model": {"ground_truth": 7}, "extra": {"index": 1}}
    mapping = FieldMapping(messages="prompt", answer="reward_model.ground_truth", metadata=["extra.index", "absent"])
    assert map_row(data, mapping) == {"messages": user("hi"), "answer": "7", "metadata": {"extra.index": 1}}


def test_json_in_text_is_read():
    row = map_row(
        {"messages": '[{"role": "user", "content": "hi"}]', "metadata": '{"a": 1}', "split": "", "b": "2"}, None
    )
    assert row == {"messages": user("hi"), "answer": "", "metadata": {"a": 1, "b": "2"}}


@pytest.mark.parametrize(("said", "meant"), [("test", "held_out"), ("Validation", "held_out"), ("train", "train")])
def test_splits_by_other_names(said, meant):
    assert map_row({"q": "a", "fold": said}, FieldMapping(prompt="q", split="fold"))["split"] == meant


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"a": "1 #### 2"}, ("q", "is missing from this row", None)),
        ({"q": 7, "a": "#### 2"}, ("q", "must be text", 7)),
        ({"q": "x", "a": "2"}, ("a", "has no '####'", "2")),
        ({"q": "x", "a": 2}, ("a", "must be text with '####' in it", 2)),
    ],
)
def test_faults_name_the_column(data, fault):
    with pytest.raises(RowInvalid) as caught:
        map_row(data, FieldMapping(prompt="q", answer="a", answer_after="####"))
    assert caught.value.faults == (fault,)


def test_faults_inside_messages_name_the_column():
    with pytest.raises(RowInvalid) as caught:
        map_row({"chat": [{"role": "user"}]}, FieldMapping(messages="chat"))
    assert caught.value.faults == (("chat.0.content", "is required", None),)


@pytest.mark.parametrize(
    ("rows", "mapping"),
    [
        (
            [{"question": "?", "answer": "so\n#### 4"}],
            {"prompt": "question", "answer": "answer", "answer_after": "####"},
        ),
        ([{"Problem": "?", "solution": "x", "level": 1}], {"prompt": "Problem", "answer": "solution"}),
        (
            [{"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "4"}}],
            {"messages": "prompt", "answer": "reward_model.ground_truth"},
        ),
        ([{"prompt": "?", "answer": 4, "split": "train"}], {"prompt": "prompt", "answer": "answer", "split": "split"}),
        ([{"prompt": "?", "split": "mostly"}], {"prompt": "prompt"}),
        (
            [{"prompt": "?"}, {"messages": [{"role": "user", "content": "?"}]}],
            {"prompt": "prompt", "messages": "messages"},
        ),
    ],
)
def test_guesses(rows, mapping):
    assert guess_mapping(list_columns(rows)) == FieldMapping(**mapping)


def test_no_guess_where_nothing_looks_like_a_prompt():
    assert guess_mapping(list_columns([{"a": 1, "b": 2}])) is None


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "mapping.prompt"),
        ({"prompt": "a", "nonsense": "b"}, "mapping.nonsense"),
        ({"prompt": 1}, "mapping.prompt"),
        ("{", "mapping"),
        ([], "mapping.prompt"),
    ],
)
def test_faulty_mappings(data, field):
    with pytest.raises(InvalidInput) as caught:
        read_mapping(data)
    assert [error.field for error in caught.value.fields] == [field]
