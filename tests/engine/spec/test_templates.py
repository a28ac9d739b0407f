"""References into row and sample."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.templates import MissingValue, check_template, render

VALUES: dict[str, Any] = {
    "row": {
        "answer": "42",
        "prompt": "6 * 7?",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "6 * 7?"}],
        "metadata": {"level": 3, "tags": ["a", "b"], "deep": {"x-y": {"z": 1.5}}, "a key": True, "nothing": None},
        "split": "train",
    },
    "sample": {"completion": "It is 42.", "turns": [{"role": "assistant", "content": "first"}]},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Paris", "Paris"),
        ("", ""),
        ("{{ row.answer }}", "42"),
        ("{{row.answer}}", "42"),
        ("<{{ row.answer }}> {{ sample.completion }}", "<42> It is 42."),
        ("{{ row.prompt }} {{ row.split }}", "6 * 7? train"),
        ("{{ row.messages[0].content }}/{{ row.messages[-1].role }}", "Be short./user"),
        ("{{ sample.turns[0].content }}", "first"),
        ("{{ row.metadata.level }}", "3"),
        ("{{ row.metadata.tags }} {{ row.metadata.tags[1] }}", '["a", "b"] b'),
        ("{{ row.metadata.deep.x-y.z }}", "1.5"),
        ("{{ row.metadata['a key'] }}", "true"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
    ],
)
def test_a_template_is_filled_in(template: str, text: str) -> None:
    assert render(check_template(template), VALUES) == text


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ row.answer", "not closed"),
        ("{{ }}", "is not a reference"),
        ("{{ row.answer | upper }}", "is not a reference"),
        ("{{ row.answer() }}", "is not a reference"),
        ("{{ row..answer }}", "is not a reference"),
        ("{{ 1 + 1 }}", "is not a reference"),
        ("{{ item.answer }}", "begin with 'row' or 'sample'"),
        ("{{ row }}", "row alone is no value"),
        ("{{ row.anwser }}", "'anwser' is not in row; it has row.answer"),
        ("{{ row.answer.text }}", "row.answer is text and has nothing inside"),
        ("{{ sample.turns.content }}", "write sample.turns[0].content"),
        ("{{ sample.turns[0].text }}", "write sample.turns[0].content"),
        ("{{ row.__class__ }}", "is not in row"),
    ],
)
def test_a_malformed_template_is_refused(template: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        check_template(template)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ row.metadata.gone }}", "row.metadata.gone is not there"),
        ("{{ row.metadata.deep.gone.z }}", "row.metadata.deep.gone is not there"),
        ("{{ row.metadata.level.x }}", "row.metadata.level.x is not there"),
        ("{{ row.metadata.tags[2] }}", "row.metadata.tags[2] is not there"),
        ("{{ row.metadata.tags.a }}", "row.metadata.tags.a is not there"),
        ("{{ row.metadata.level[0] }}", "row.metadata.level[0] is not there"),
        ("{{ row.metadata.deep[0] }}", "row.metadata.deep[0] is not there"),
        ("{{ row.metadata.nothing }}", "row.metadata.nothing is null"),
        ("{{ sample.turns[7].content }}", "sample.turns[7] is not there"),
    ],
)
def test_a_missing_value_is_named(template: str, says: str) -> None:
    with pytest.raises(MissingValue) as error:
        render(check_template(template), VALUES)
    assert error.value.args == (says,)


def test_what_is_put_in_is_not_read_again() -> None:
    values = {**VALUES, "sample": {"completion": "{{ row.answer }}", "turns": []}}
    assert render("{{ sample.completion }}", values) == "{{ row.answer }}"


def test_braces_without_end_are_read_in_linear_time() -> None:
    with pytest.raises(ValueError, match="not closed"):
        check_template("{{" * 2_000_000)


@given(st.text(alphabet="{} rowsample.ane[]0'\"-_", max_size=40))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    try:
        check_template(text)
    except ValueError:
        return
    with contextlib.suppress(MissingValue):
        render(text, VALUES)
