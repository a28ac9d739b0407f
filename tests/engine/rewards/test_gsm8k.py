"""Gold answers of GSM8K (arXiv 2110.14168): right in every way a model writes a number, wrong one off."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from engine.rewards.graders import grade
from engine.spec import DatasetRow, DeclarativeGrader, Maths, Message, Numeric
from engine.types import Sample
from tests.data_sets import read_json_lines

FORMS: dict[str, Callable[[str], str]] = {
    "bare": lambda n: n,
    "gold": lambda n: f"#### {n}",
    "white space": lambda n: f"\n  {n}  \n",
    "sentence": lambda n: f"The answer is {n}.",
    "unit": lambda n: f"She sells {n} eggs a day",
    "commas": lambda n: f"In all, {Decimal(n):,} people came.",
    "dollar": lambda n: f"He pays ${n}.",
    "dollar and commas": lambda n: f"So the total is ${Decimal(n):,}.",
    "cents": lambda n: f"It costs ${Decimal(n):,.2f}",
    "boxed": lambda n: f"Therefore \\boxed{{{n}}}",
    "boxed dollar": lambda n: f"The price is $\\boxed{{\\${n}}}$.",
    "inline maths": lambda n: f"We find $x = {n}$.",
    "display maths": lambda n: f"\\[ {n} \\]",
    "parentheses": lambda n: f"so \\({n}\\) it is",
    "bold": lambda n: f"The answer is **{n}**",
    "equation": lambda n: f"2 + 3 * 4 = {n}",
    "LaTeX commas": lambda n: f"$\\boxed{{{Decimal(n):,}}}$".replace(",", "{,}"),
    "decimal point": lambda n: f"{n}.0" if "." not in n else n,
    "tags": lambda n: f"<think>Let me see: 3 and 4.</think><answer>{n}</answer>",
    "after reasoning": lambda n: f"First, 16 - 3 = 13. Then 13 - 4 = 9.\nFinal answer: {n}",
}


def gold_answers(every: int) -> list[str]:
    """The solutions of every so manieth row; the number follows ``####``."""
    rows = [*read_json_lines("gsm8k/test.jsonl"), *read_json_lines("gsm8k/train.jsonl")]
    return [row["answer"] for row in rows[::every]]


def score(grader: DeclarativeGrader, completion: str, answer: str) -> float:
    row = DatasetRow(messages=[Message(role="user", content="?")], answer=answer)
    result = grade(grader, Sample(row, completion))
    assert not result.error, result.reason
    return result.total


def wrong(number: str) -> list[str]:
    value = Decimal(number)
    return [str(value + 1), str(value - 1), str(value * 10 + 7), str(-value - 3), str(value + Decimal("0.5"))]


def test_there_are_twenty_forms() -> None:
    assert len(FORMS) == 20


@pytest.mark.parametrize("form", FORMS)
def test_numeric_knows_every_gold_answer_and_no_wrong_one(form: str) -> None:
    for answer in gold_answers(every=8):
        number = answer.rpartition("####")[2].strip().replace(",", "")
        for reference in (answer, number):
            assert score(Numeric(), FORMS[form](number), reference) == 1, (form, number)
        for other in wrong(number):
            assert score(Numeric(), FORMS[form](other), number) == 0, (form, number, other)


@pytest.mark.parametrize("form", FORMS)
def test_maths_knows_every_gold_answer_and_no_wrong_one(form: str) -> None:
    for answer in gold_answers(every=250):
        number = answer.rpartition("####")[2].strip().replace(",", "")
        assert score(Maths(), FORMS[form](number), number) == 1, (form, number)
        for other in wrong(number)[:2]:
            assert score(Maths(), FORMS[form](other), number) == 0, (form, number, other)
