"""Completions that are programs: what counts as one, how its tests count, and HumanEval whole."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from engine.sandbox.pool import SandboxPool
from engine.spec import CodeTests, DatasetRow, Message
from engine.types import Sample, Score
from tests.data_sets import find

pytestmark = pytest.mark.asyncio(loop_scope="module")

PREFIX = '''import math

def helper(x):
    return x * 2

def double(x):
    """ Twice x. """
'''
TESTS = """
def check(candidate):
    for x in range(3):
        assert candidate(x) == 2 * x
    assert candidate(-1) == -2
"""
GRADER = CodeTests(
    tests="{{ row.metadata.test }}",
    entry_point="{{ row.metadata.entry_point }}",
    prefix="{{ row.metadata.prompt }}",
)


async def grade(
    pool: SandboxPool, completion: str, *, tests: str = TESTS, grader: CodeTests = GRADER, timeout: float = 20.0
) -> Score:
    metadata = {"test": tests, "entry_point": "double", "prompt": PREFIX}
    row = DatasetRow(messages=[Message(role="user", content=PREFIX)], metadata=metadata)
    return await pool.score(grader, Sample(row, completion), tenant="t", owner="o", timeout=timeout)


@pytest.mark.parametrize(
    "completion",
    [
        "    return x * 2\n",  # a continuation
        "return x * 2",  # one whose first indentation was stripped
        "if x:\n    return x * 2\nreturn 0",  # one whose every indentation was
        "    return helper(x)\n",  # what comes before it is there
        "def double(x):\n    return x * 2",
        "Here it is:\n```python\ndef double(x):\n    return helper(x)\n```\nDone.",
        "```\n    return x * 2\n```",
        "```python\ndef double(x): return 0\n```\nNo:\n```python\ndef double(x): return 2 * x\n```",  # the last counts
        "double = lambda x: 2 * x",
        "```python\ndef double(x):\n    return x * 2",  # cut off
    ],
)
async def test_what_counts_as_the_program(pool: SandboxPool, completion: str) -> None:
    result = await grade(pool, completion)
    assert (result.total, result.error, result.reason) == (1.0, False, "4 of 4 assertions hold")


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        ("    return x * 3\n", "1 of 4"),
        ("I do not know.", "not valid Python"),
        ("```python\nx = 1\n```", "assertions"),
        ("    return 1 / 0\n", "raised ZeroDivisionError"),
        ("    import sys\n    sys.exit(0)\n", "SystemExit"),
        ("    import os\n    os._exit(0)\n", "ended before it had answered"),
        ("    while True: pass\n", "timed out"),
        ("    return [0] * 10**9\n", "MemoryError"),
        ("def other(x): return 2 * x\n", "assertions"),
    ],
)
async def test_a_program_that_fails_scores_0_and_is_no_error_of_the_reward(
    pool: SandboxPool, completion: str, words: str
) -> None:
    result = await grade(pool, completion, timeout=3)
    assert (result.total, result.error) == (0.0, False)
    assert words in result.reason


async def test_a_fraction_counts_assertions(pool: SandboxPool) -> None:
    fraction = GRADER.model_copy(update={"score": "fraction"})
    assert (await grade(pool, "    return abs(x) * 2\n", grader=fraction)).total == 0.75
    assert (await grade(pool, "    return x * 2\n", grader=fraction)).total == 1.0
    tests = "def test_a():\n    assert double(1) == 2\ndef test_b():\n    double(None)\ndef test_c():\n    double(1)\n"
    result = await grade(pool, "    return x * 2\n", tests=tests, grader=fraction)
    assert result.total == pytest.approx(2 / 3)
    assert "raised TypeError" in result.reason


async def test_plain_assertions_and_asynchronous_tests_run(pool: SandboxPool) -> None:
    assert (await grade(pool, "    return x * 2\n", tests="assert double(2) == 4")).total == 1.0
    tests = "async def test_it():\n    assert double(2) == 5"
    assert (await grade(pool, "    return x * 2\n", tests=tests)).total == 0.0


@pytest.mark.parametrize("tests", ["def check(candidate:", "x = 1", "def helper(): assert False"])
async def test_tests_that_test_nothing_are_the_rewards_error(pool: SandboxPool, tests: str) -> None:
    result = await grade(pool, "    return x * 2\n", tests=tests)
    assert (result.total, result.error, result.error_kind) == (0.0, True, "grader")


async def test_a_missing_value_is_the_rewards_error(pool: SandboxPool) -> None:
    result = await grade(pool, "", grader=CodeTests(tests="{{ row.metadata.tests }}"))
    assert result.error_kind == "grader" and "row.metadata.tests" in result.reason


async def test_humaneval(pool: SandboxPool) -> None:
    """Every canonical solution scores 1, as continuation and as fenced program; every broken one 0."""
    with gzip.open(find("humaneval/HumanEval.jsonl.gz"), "rt") as lines:
        problems = [json.loads(line) for line in lines]
    assert len(problems) == 164

    async def run(problem: dict[str, Any], completion: str) -> float:
        row = DatasetRow(messages=[Message(role="user", content=problem["prompt"])], metadata=problem)
        score = await pool.score(GRADER, Sample(row, completion), tenant="t", owner="o", timeout=30)
        assert not score.error, (problem["task_id"], score)
        return score.total

    def fenced(problem: dict[str, Any]) -> str:
        return f"Sure!\n```python\n{problem['prompt']}{problem['canonical_solution']}```\n"

    right = await asyncio.gather(*(run(problem, problem["canonical_solution"]) for problem in problems))
    as_program = await asyncio.gather(*(run(problem, fenced(problem)) for problem in problems))
    broken = await asyncio.gather(*(run(problem, "    return '?'\n") for problem in problems))
    assert {problem["task_id"] for problem, total in zip(problems, right, strict=True) if total != 1.0} == set()
    assert {problem["task_id"] for problem, total in zip(problems, as_program, strict=True) if total != 1.0} == set()
    assert {problem["task_id"] for problem, total in zip(problems, broken, strict=True) if total != 0.0} == set()
