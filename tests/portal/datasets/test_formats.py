"""Files of each format as records, in bounded memory."""

import datetime
import decimal
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest

from portal.datasets.formats import CSV, JSONL, PARQUET, UnreadableFile, detect_format, iterate_records


@pytest.fixture
def read(tmp_path):
    def read(content: bytes, format: str):
        path = tmp_path / "file"
        path.write_bytes(content)
        return [
            (record.line, record.data if record.invalid is None else str(record.invalid.faults[0][1]))
            for record in iterate_records(path, format)
        ]

    return read


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        path = tmp_path / "file.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
        return path

    return write


@pytest.mark.parametrize(
    ("content", "name", "format"),
    [
        (b'{"a": 1}', "rows.jsonl", JSONL),
        (b'{"a": "1,2"}', "", JSONL),
        (b"question,answer\n1,2\n", "", CSV),
        (b"question;answer\n", "rows.csv.gz", CSV),
        (b"PAR1....", "rows.csv", PARQUET),
        (b"", "", JSONL),
        (b"a\tb\n", "rows.tsv", CSV),
        (b"no rows at all", "rows.parquet", JSONL),
    ],
)
def test_formats_are_told_apart(tmp_path, content, name, format):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert detect_format(path, name) == format


def test_json_lines_keep_their_numbers(read):
    assert read(b'\xef\xbb\xbf{"a": 1}\r\n\n{"b": 2}\n{"c"', JSONL) == [
        (1, {"a": 1}),
        (3, {"b": 2}),
        (4, "is not valid JSON: Expecting ':' delimiter at position 5"),
    ]


def test_csv_records_know_the_line_they_begin_on(read):
    assert read(b'\xef\xbb\xbfq,a\r\n"one\r\ntwo",1\r\n\r\n"three, four",2\r\nfive\r\n', CSV) == [
        (2, {"q": "one\ntwo", "a": "1"}),
        (5, {"q": "three, four", "a": "2"}),
        (6, "has 1 field where the header has 2"),
    ]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters(read, delimiter):
    assert read(f"q{delimiter}a\n1,5{delimiter}2\n".encode(), CSV) == [(2, {"q": "1,5", "a": "2"})]


def test_faults_of_csv(read):
    found = read(b'q,a\n"x"y,1\n\xff,2\n' + b"z" * 1_500_000 + b",3\nlast,4\n", CSV)
    assert [line for line, _ in found] == [2, 3, 4, 5]
    assert "not valid CSV" in found[0][1]
    assert found[1][1] == "is not UTF-8: byte 0xff at position 1"
    assert "longer than 1,000,000 bytes" in found[2][1]
    assert found[3][1] == {"q": "last", "a": "4"}


@pytest.mark.parametrize(
    ("content", "format", "line", "says"),
    [
        (b'q,a\n1,2\n"open,3\n' + b"x,y\n" * 10, CSV, 3, "never closed"),
        (b'q,a\n1,2\n"open,3\n' + b"x,y\n" * 500_000, CSV, 3, "never closed"),
        (b"q,q\n1,2\n", CSV, 1, "'q' appears twice"),
        (b"[\n", JSONL, 1, "one object a line"),
        (b"\xff\xfeq", CSV, 0, "UTF-16"),
        (b"PAR1 and then nothing", PARQUET, 0, "no readable Parquet file"),
    ],
)
def test_what_ends_the_reading(read, content, format, line, says):
    with pytest.raises(UnreadableFile) as caught:
        read(content, format)
    assert caught.value.line == line
    assert says in caught.value.message


def test_parquet_values_become_json(parquet):
    path = parquet(
        prompt=["a", None],
        number=[1.5, float("nan")],
        when=[datetime.date(2024, 2, 3), None],
        price=[decimal.Decimal("1.50"), None],
        chat=[[{"role": "user", "content": "x"}], []],
    )
    first, second = iterate_records(path, PARQUET)
    assert first.data == {
        "prompt": "a",
        "number": 1.5,
        "when": "2024-02-03",
        "price": "1.50",
        "chat": [{"role": "user", "content": "x"}],
    }
    assert second.data == {"prompt": None, "number": None, "when": None, "price": None, "chat": []}
    assert (first.line, second.line) == (1, 2)


def test_parquet_bytes_that_are_no_text(parquet):
    (record,) = iterate_records(parquet(blob=[b"\xff"]), PARQUET)
    assert record.invalid.faults == (("blob", "holds bytes that are not UTF-8 text", None),)


@pytest.mark.parametrize("format", [JSONL, CSV, PARQUET])
def test_memory_does_not_grow_with_the_file(tmp_path, format):
    """A file of 16 MB is read within 3 MB (of Python's memory; Arrow's own is bounded by the batch)."""
    path, text, count = tmp_path / "file", "x" * 8000, 2000
    if format == PARQUET:
        rows = [f"{text}{number}" for number in range(count)]
        pyarrow.parquet.write_table(pyarrow.table({"q": rows}), path, row_group_size=50, use_dictionary=False)
        del rows
    else:
        line = f'{{"q": "{text}"}}\n' if format == JSONL else f'"{text}",1\n'
        with path.open("w") as file:
            file.write("" if format == JSONL else "q,a\n")
            file.writelines(line for _ in range(count))
    next(iterate_records(path, format))  # imports
    tracemalloc.start()
    read = sum(record.data is not None for record in iterate_records(path, format))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == count
    assert peak < 3_000_000
