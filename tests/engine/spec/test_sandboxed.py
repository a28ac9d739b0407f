"""Code is checked when it is saved, by parsing alone."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from engine.spec import CodeTests, Python


@pytest.mark.parametrize(
    "code",
    [
        "def reward(completion): return 1",
        "async def reward(row, prompt, turns, completion): return 1",
        "def reward(completion, weight=0.5, **others): return 1",
        "def reward(*, row): return 1",
        "def helper(x): return x\ndef reward(): return helper(1)",
        "raise SystemExit  # never run here\ndef reward(): return 1",
    ],
)
def test_a_function_that_can_be_called_is_accepted(code):
    assert Python(code=code).function == "reward"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def reward(:", "line 1, column 12: invalid syntax"),
        ("def reword(): return 1", "no function 'reward' at the top level of the code (functions there: reword)"),
        ("class A:\n    def reward(): return 1", "(functions there: none)"),
        ("def reward(answer): return 1", "asks for 'answer'"),
        ("def reward(*, answer): return 1", "asks for 'answer'"),
        ("def reward(completion, /): return 1", "passed by name"),
        ("def reward(samples): return 1", "asks for 'samples'"),
        ("x = '\0'", "null bytes"),
        ("(" * 5000, "too many nested parentheses"),
        ("x" * 70_000, "at most 65536 characters"),
    ],
)
def test_other_code_is_refused_with_the_place_and_what_is_wrong(code, words):
    with pytest.raises(ValidationError) as refused:
        Python(code=code)
    assert words in refused.value.errors()[0]["msg"]


def test_a_batch_function_asks_for_the_samples():
    Python(code="def rewards(samples): return []", function="rewards", batch=True)
    with pytest.raises(ValidationError, match="asks for 'completion'"):
        Python(code="def rewards(completion): return []", function="rewards", batch=True)


def test_the_templates_and_literal_tests_of_programs_are_checked():
    CodeTests(tests="assert f(1) == 1", entry_point="f", prefix="{{ row.metadata.prompt }}")
    for wrong in ({"tests": "assert f(1 =="}, {"tests": "{{ row.nothing }}"}, {"entry_point": "{{ row.answer"}):
        with pytest.raises(ValidationError):
            CodeTests(**wrong)
