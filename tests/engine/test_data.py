"""Reading datasets and the order of prompts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from engine.data import DatasetError, draw, load_dataset
from engine.spec import DatasetRef


def write(path: Path, lines: list[bytes], train: int, held_out: int) -> DatasetRef:
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(content)
    return DatasetRef(
        path=str(path), sha256=hashlib.sha256(content).hexdigest(), train_rows=train, held_out_rows=held_out
    )


def line(text: str, split: str = "train") -> bytes:
    row = {"messages": [{"role": "user", "content": text}], "answer": text, "split": split}
    return json.dumps(row, ensure_ascii=False).encode()


def test_rows_keep_their_line_numbers_in_file_order(tmp_path: Path) -> None:
    lines = [line("a"), line("b", "held_out"), line("c\u2028d"), line("e", "held_out")]
    dataset = load_dataset(write(tmp_path / "rows", lines, 2, 2))
    assert [(number, row.answer) for number, row in dataset.train] == [(0, "a"), (2, "c\u2028d")]
    assert [(number, row.answer) for number, row in dataset.held_out] == [(1, "b"), (3, "e")]


def test_a_file_without_final_newline_keeps_its_last_row(tmp_path: Path) -> None:
    content = line("a") + b"\n" + line("b")
    (tmp_path / "rows").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    ref = DatasetRef(path=str(tmp_path / "rows"), sha256=digest, train_rows=2, held_out_rows=0)
    assert len(load_dataset(ref).train) == 2


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    ref = write(tmp_path / "rows", [line("a")], 1, 0)
    (tmp_path / "rows").write_bytes(line("b") + b"\n")
    with pytest.raises(DatasetError, match="was changed after the job was submitted"):
        load_dataset(ref)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    ref = DatasetRef(path=str(tmp_path / "gone"), sha256="0" * 64, train_rows=1, held_out_rows=0)
    with pytest.raises(DatasetError, match="gone cannot be read: No such file"):
        load_dataset(ref)


def test_other_row_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="1 training and 1 held-out rows, but the job was submitted for 2 and 0"):
        load_dataset(write(tmp_path / "rows", [line("a"), line("b", "held_out")], 2, 0))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"{", "Line 2 of the dataset: "),
        (b"", "Line 2 of the dataset: "),
        (b'{"messages": []}', "Line 2 of the dataset: messages: "),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "must have role 'user', not 'assistant'"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "Line 2 of the dataset: "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: bytes, says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        load_dataset(write(tmp_path / "rows", [line("a"), bad, line("b")], 3, 0))
    assert says in str(caught.value)


def test_every_epoch_draws_every_row_once_in_another_order() -> None:
    epochs = [draw(50, seed=7, cursor=50 * epoch, count=50) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(50))


def test_the_cursor_alone_resumes_the_order() -> None:
    whole = draw(10, seed=3, cursor=0, count=37)
    assert [draw(10, 3, cursor, 1)[0] for cursor in range(37)] == whole
    assert draw(10, 3, 0, 8) + draw(10, 3, 8, 8) + draw(10, 3, 16, 21) == whole


def test_seeds_give_different_orders() -> None:
    assert draw(20, 0, 0, 20) != draw(20, 1, 0, 20)


def test_the_order_never_changes_between_releases() -> None:
    """Worked out apart: rows sorted by blake2b-128 of "seed:epoch:row"."""
    expected = sorted(range(6), key=lambda row: hashlib.blake2b(f"5:1:{row}".encode(), digest_size=16).hexdigest())
    assert draw(6, seed=5, cursor=6, count=6) == expected


def test_a_single_row_is_drawn_again_and_again() -> None:
    assert draw(1, 0, 5, 3) == [0, 0, 0]
