"""The pool of grading processes: limits, crashes, fairness and cleanliness, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from engine.rewards.runner import GraderPool
from engine.spec import (
    DatasetRow,
    DeclarativeGrader,
    ExactMatch,
    Maths,
    Message,
    Numeric,
    ReasoningGymScore,
    Regex,
    Turn,
)
from engine.types import Sample, Score

ENDLESS = Regex(pattern="(a+)+$")
ENDLESS_COMPLETION = "a" * 60 + "b"  # 2^60 ways to split


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[GraderPool]:
    pool = GraderPool(2)
    yield pool
    await pool.close()


async def score(
    pool: GraderPool,
    grader: DeclarativeGrader,
    completion: str,
    answer: str = "",
    *,
    limit: float = 5,
    owner: str = "job",
) -> Score:
    (score,) = await pool.score([grader], sample(completion, answer), timeout=limit, owner=owner)
    return score


def sample(completion: str, answer: str = "") -> Sample:
    return Sample(DatasetRow(messages=[Message(role="user", content="?")], answer=answer), completion)


def hang(pool: GraderPool, owner: str = "hanging", limit: float = 1) -> asyncio.Task[Score]:
    return asyncio.create_task(score(pool, ENDLESS, ENDLESS_COMPLETION, limit=limit, owner=owner))


def pids(pool: GraderPool) -> list[int]:
    return [pid for process in pool._processes if (pid := process._process.id)]


def gone(pid: int) -> bool:
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


async def test_scores_come_back_whole_and_in_order(pool: GraderPool) -> None:
    graders: list[DeclarativeGrader] = [Numeric(), ExactMatch(), Numeric(reference="none")]
    right, exact, failed = await pool.score(graders, sample("It is 42.", "42"), timeout=5)
    assert (right.total, right.reason, right.error) == (1.0, "", False)
    assert (exact.total, exact.reason, exact.error) == (0.0, "expected '42'", False)
    assert (failed.total, failed.error, failed.error_kind) == (0.0, True, "grader")
    assert all(one.seconds > 0 for one in (right, exact, failed))


async def test_the_whole_episode_reaches_the_grader(pool: GraderPool) -> None:
    turns = [
        Turn(role="assistant", content="6*7"),
        Turn(role="tool", content="42"),
        Turn(role="assistant", content="!"),
    ]
    episode = Sample(sample("").row, "!", turns)
    (score,) = await pool.score([Numeric(input="{{ sample.turns[1].content }}", reference="42")], episode, timeout=5)
    assert score.total == 1


async def test_a_grader_that_raises_says_what_and_where(pool: GraderPool) -> None:
    result = await score(pool, ReasoningGymScore(dataset="no_such_dataset"), "1", limit=30)
    assert result.error and result.error_kind == "grader"
    assert "RuntimeError" in result.reason and "no_such_dataset" in result.details and ", line " in result.details


async def test_graders_that_run_together_time_out_together(pool: GraderPool) -> None:
    scores = await pool.score([Numeric(), ENDLESS], sample(ENDLESS_COMPLETION, "1"), timeout=0.5)
    assert [score.error_kind for score in scores] == ["timed_out", "timed_out"]


async def test_many_calls_each_get_their_own_score(pool: GraderPool) -> None:
    results = await asyncio.gather(
        *(score(pool, Numeric(), str(i), str(i - i % 3), owner=f"job{i % 5}") for i in range(300))
    )
    assert [result.total for result in results] == [float(i % 3 == 0) for i in range(300)]


async def test_text_of_any_kind_passes(pool: GraderPool) -> None:
    for text in ("a\nb\r\n\x00", "日本 \u2028", "\ud800", '"\\'):
        assert (await score(pool, ExactMatch(), text, text)).total == 1, repr(text)


@pytest.mark.parametrize(
    ("grader", "completion", "answer"),
    [
        (ENDLESS, ENDLESS_COMPLETION, ""),
        (Maths(), "$9^{9^{9^9}}$", "3"),
        (Maths(), "x $1$ " * 170_000, "3"),
    ],
    ids=["catastrophic regex", "power tower", "a megabyte of formulas"],
)
async def test_an_endless_grading_is_stopped_at_its_limit(
    pool: GraderPool, grader: DeclarativeGrader, completion: str, answer: str
) -> None:
    result = await score(pool, grader, completion, answer, limit=1)
    assert result == Score(
        0.0, reason="timed out after 1 s and was stopped", error=True, seconds=1, error_kind="timed_out"
    )
    assert (await score(pool, Numeric(), "1", "1")).total == 1


async def test_a_megabyte_is_graded_where_the_grader_is_linear(pool: GraderPool) -> None:
    assert (await score(pool, Numeric(), "1 " * 500_000 + "42", "42", limit=30)).total == 1


async def test_loading_a_graders_code_does_not_count(pool: GraderPool) -> None:
    """math-verify takes longer to import than this limit."""
    assert (await score(pool, Maths(), "42", "42", limit=1.5)).total == 1


async def test_other_jobs_go_on_while_one_hangs(pool: GraderPool) -> None:
    hanging = [hang(pool, limit=20) for _ in range(5)]
    others = await asyncio.gather(*(score(pool, Numeric(), "1", "1", owner=f"job{i % 3}") for i in range(60)))
    assert all(other.total == 1 for other in others)
    assert not any(task.done() for task in hanging)


async def test_jobs_that_hang_together_leave_a_worker_to_the_others(pool: GraderPool) -> None:
    first = await asyncio.gather(hang(pool, "a", 0.2), hang(pool, "b", 0.2))
    assert all(result.error for result in first)
    hanging = [hang(pool, owner, limit=20) for owner in "abab"]
    assert (await score(pool, Numeric(), "1", "1", owner="c")).total == 1
    assert not any(task.done() for task in hanging)


async def test_owners_take_turns(pool: GraderPool) -> None:
    await asyncio.gather(*(score(pool, Numeric(), "1", "1", owner=owner) for owner in "ab"))  # both workers are up
    many = [asyncio.create_task(score(pool, Numeric(), "1", "1", owner="many")) for _ in range(400)]
    await many[0]
    one = asyncio.create_task(score(pool, Numeric(), "1", "1", owner="one"))
    await one
    assert sum(task.done() for task in many) < 400
    await asyncio.gather(*many)


async def test_a_worker_that_is_killed_grades_once_more_and_is_then_an_error(pool: GraderPool) -> None:
    await score(pool, Numeric(), "1", "1")
    (first,) = pids(pool)
    hanging = hang(pool, limit=30)
    await asyncio.sleep(0.3)
    os.kill(first, signal.SIGKILL)
    await asyncio.sleep(0.3)
    assert not hanging.done()
    (second,) = pids(pool)
    os.kill(second, signal.SIGKILL)
    reason = "the grading process ended unexpectedly (signal 9)"
    assert await hanging == Score(0.0, reason=reason, error=True, error_kind="killed")
    assert (await score(pool, Numeric(), "1", "1", owner="hanging")).total == 1
    assert not {first, second} & set(pids(pool))


async def test_nobody_else_waits_for_the_worker_that_replaces_one_that_hung(pool: GraderPool) -> None:
    await asyncio.gather(*(score(pool, Numeric(), "1", "1", owner=owner) for owner in "ab"))  # both workers are up
    before = set(pids(pool))
    assert (await hang(pool, limit=0.2)).error
    scores = [await score(pool, Numeric(), "1", "1", owner="other") for _ in range(3)]
    assert all(one.total == 1 for one in scores)
    assert len(before & set(pids(pool))) == 1
    assert len(pool._idle) == 1  # the new one was not waited for


async def test_a_worker_that_died_while_idle_is_replaced(pool: GraderPool) -> None:
    await score(pool, Numeric(), "1", "1")
    (pid,) = pids(pool)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert (await score(pool, Numeric(), "1", "1")).total == 1


async def test_an_engine_that_is_held_up_does_not_blame_the_grader(pool: GraderPool) -> None:
    await score(pool, Numeric(), "1", "1")
    slow = asyncio.create_task(score(pool, Numeric(), "1", "1", limit=0.2))
    for _ in range(3):
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251
    assert (await slow).total == 1


async def test_a_cancelled_call_that_waits_is_never_graded(pool: GraderPool) -> None:
    running = hang(pool, "a", limit=1)
    await asyncio.sleep(0)
    waiting = hang(pool, "a", limit=60)
    await asyncio.sleep(0)
    waiting.cancel()
    after = asyncio.create_task(score(pool, Numeric(), "1", "1", owner="a"))
    assert (await running).error
    assert (await after).total == 1


async def test_closing_leaves_no_process_and_answers_every_caller() -> None:
    pool = GraderPool(3)
    await asyncio.gather(*(score(pool, Numeric(), "1", "1", owner=owner) for owner in "abc"))
    tasks = [hang(pool, owner, limit=60) for owner in "abcabc"]
    await asyncio.sleep(0.3)
    before = pids(pool)
    assert len(before) == 3
    tasks.append(hang(pool, "d", limit=60))  # its grading has not begun when the pool closes
    await asyncio.sleep(0)
    await pool.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert not any(psutil.pid_exists(pid) for pid in before)
    with pytest.raises(RuntimeError, match="closed"):
        await score(pool, Numeric(), "1", "1")


def test_workers_die_with_the_engine() -> None:
    code = (
        "import asyncio\n"
        "from tests.engine.rewards.test_runner import GraderPool, Numeric, hang, pids, score\n"
        "async def main():\n"
        "    pool = GraderPool(2)\n"
        "    await score(pool, Numeric(), '1', '1')\n"
        "    hanging = hang(pool, limit=60)\n"
        "    await asyncio.sleep(0.3)\n"
        "    print(*pids(pool), flush=True)\n"
        "    await hanging\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout
        workers = [int(pid) for pid in engine.stdout.readline().split()]
        engine.kill()
    assert workers
    for pid in workers:
        assert gone(pid)


async def test_a_worker_inherits_no_environment_and_is_limited(
    pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    await score(pool, Numeric(), "1", "1")
    (pid,) = pids(pool)
    assert psutil.Process(pid).environ().keys() <= {"PYTHONHASHSEED", "LC_CTYPE"}
    assert os.getsid(pid) == pid
    assert psutil.Process(pid).rlimit(psutil.RLIMIT_AS) == (2 * 1024**3, 2 * 1024**3)
    assert psutil.Process(pid).rlimit(psutil.RLIMIT_CORE) == (0, 0)


def test_a_pool_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 workers"):
        GraderPool(1)
