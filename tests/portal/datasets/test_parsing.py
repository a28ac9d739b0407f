"""Lines of an upload: how they are split, what they may hold, how faults are named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec import DatasetRow
from portal.datasets.parsing import MAX_LINE_BYTES, RowInvalid, excerpt, iterate_lines, parse_line


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))), st.data())
def test_lines_do_not_depend_on_the_chunks(lines, data):
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(iterate_lines(chunks)) == lines


def test_line_ends():
    assert list(iterate_lines([b"a\r\nb\n\nc"])) == [b"a", b"b", b"", b"c"]
    assert list(iterate_lines([])) == []


def test_a_long_line_is_skipped_over_without_being_held():
    chunk = b"x" * 10_000
    held = []

    def chunks():
        yield b"first\n"
        for _ in range(1000):  # 10 MB
            held.append(len(lines.gi_frame.f_locals["held"]))
            yield chunk
        yield b"\nlast\n"

    lines = iterate_lines(chunks())
    assert list(lines) == [b"first", None, b"last"]
    assert max(held) <= MAX_LINE_BYTES


def test_a_line_of_exactly_the_limit_passes():
    exact, longer = b"x" * MAX_LINE_BYTES, b"y" * (MAX_LINE_BYTES + 1)
    assert list(iterate_lines([exact + b"\n" + longer])) == [exact, None]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"prompt": "1+1?", "answer": 2},
            {"messages": [{"role": "user", "content": "1+1?"}], "answer": "2", "metadata": {}},
        ),
        (
            {"prompt": "half?", "answer": 0.5, "level": 3, "metadata": {"source": "book"}, "split": "held_out"},
            {
                "messages": [{"role": "user", "content": "half?"}],
                "answer": "0.5",
                "metadata": {"source": "book", "level": 3},
                "split": "held_out",
            },
        ),
        (
            {
                "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "ü?"}],
                "answer": None,
            },
            {
                "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "ü?"}],
                "answer": "",
                "metadata": {},
            },
        ),
    ],
)
def test_good_rows(row, expected):
    parsed = parse_line(json.dumps(row).encode())
    assert parsed == expected
    DatasetRow.model_validate(parsed)


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (b'{"prompt": "a"', "", "not valid JSON"),
        (b"prompt,answer", "", "not valid JSON"),
        (b'{"prompt": "\xff"}', "", "not UTF-8: byte 0xff at position 13"),
        (b'["a"]', "", "must be a JSON object"),
        (b'"a"', "", "must be a JSON object"),
        (b"{}", "prompt", "is required"),
        (b'{"prompt": 3}', "prompt", "must be text"),
        (b'{"prompt": "  "}', "prompt", "is empty"),
        (b'{"prompt": "a", "messages": []}', "prompt", "not both"),
        (b'{"messages": []}', "messages", "at least 1"),
        (b'{"messages": "hello"}', "messages", "must be a list"),
        (b'{"messages": [{"role": "user"}]}', "messages.0.content", "is required"),
        (b'{"messages": [{"role": "robot", "content": "a"}]}', "messages.0.role", "must be one of"),
        (b'{"messages": [{"role": "assistant", "content": "a"}]}', "messages", "last message must have role 'user'"),
        (b'{"prompt": "a", "answer": [1]}', "answer", "must be text or a number"),
        (b'{"prompt": "a", "answer": true}', "answer", "must be text or a number"),
        (b'{"prompt": "a", "metadata": 3}', "metadata", "must be an object"),
        (b'{"prompt": "a", "level": 1, "metadata": {"level": 2}}', "level", "both in 'metadata' and beside it"),
        (b'{"prompt": "a", "split": "test"}', "split", "must be one of"),
        (b'{"prompt": "a", "split": null}', "split", "must be one of"),
        (b'{"prompt": "a", "prompt": "b"}', "prompt", "appears twice"),
        (b'{"prompt": "a", "metadata": {"x": {"y": 1, "y": 2}}}', "y", "appears twice"),
        (b'{"prompt": "a", "answer": NaN}', "", "NaN is not a JSON number"),
        (b'{"prompt": "a", "x": -Infinity}', "", "-Infinity is not a JSON number"),
        (b'{"prompt": "a", "answer": 1e999}', "", "1e999 is too large"),
        (b'{"prompt": "a", "answer": ' + b"1" * 5000 + b"}", "", "not valid JSON"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "nested too deeply"),
        (b'{"prompt": "\\ud800"}', "", "surrogate"),
    ],
)
def test_faults_name_field_and_remedy(line, field, says):
    with pytest.raises(RowInvalid) as caught:
        parse_line(line)
    (found,) = caught.value.faults
    assert found[0] == field
    assert says in found[1]


def test_all_faults_of_a_row_are_named():
    with pytest.raises(RowInvalid) as caught:
        parse_line(b'{"prompt": 1, "answer": {}, "metadata": []}')
    assert {fault[0] for fault in caught.value.faults} == {"prompt", "answer", "metadata"}


@given(st.binary(max_size=200))
def test_any_bytes_give_a_row_or_a_fault(line):
    try:
        row = parse_line(line)
    except RowInvalid:
        return
    DatasetRow.model_validate(row)


def test_excerpts_are_short_and_on_one_line():
    assert excerpt("a\nb") == "a b"
    assert len(excerpt("x" * 1000)) == 80
    assert excerpt({"a": [1]}) == '{"a": [1]}'
    assert excerpt(None) == ""
