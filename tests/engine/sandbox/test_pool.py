"""The pool: what a reward function gets and may return, its errors, and that calls and tenants are kept apart."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal

import psutil
import pytest

from engine.sandbox.pool import SandboxPool
from engine.sandbox.runtime import PACKAGES
from engine.spec import DatasetRow, Message, Python, Turn
from engine.types import Sample, Score

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROW = DatasetRow(
    messages=[Message(role="system", content="Be brief."), Message(role="user", content="2+2?")],
    answer="4",
    metadata={"level": 3},
)
SAMPLE = Sample(ROW, "It is 4")


async def score(
    pool: SandboxPool,
    code: str,
    *,
    completion: str = "It is 4",
    tenant: str = "tenant",
    owner: str = "job",
    timeout: float = 20.0,
) -> Score:
    grader = Python(code=code)
    sample = dataclasses.replace(SAMPLE, completion=completion)
    return await pool.score(grader, sample, tenant=tenant, owner=owner, timeout=timeout)


def returning(expression: str) -> str:
    return f"def reward(completion, row):\n    return {expression}"


async def test_a_function_gets_what_it_declares(pool: SandboxPool) -> None:
    code = """
def reward(turns, prompt, completion, row):
    assert prompt == "2+2?"
    assert completion == "It is 4"
    assert [message["role"] for message in row["messages"]] == ["system", "user"]
    assert row["answer"] == "4" and row["metadata"] == {"level": 3} and row["split"] == "train"
    assert turns == [{"role": "assistant", "content": "It is 4"}]
    return 1
"""
    result = await score(pool, code)
    assert result.total == 1.0, result


async def test_turns_are_all_that_was_said(pool: SandboxPool) -> None:
    turns = [Turn(role="assistant", content="a"), Turn(role="tool", content="b"), Turn(role="assistant", content="c")]
    grader = Python(code="def reward(turns):\n    return {'total': 1, 'reason': ''.join(t['role'][0] for t in turns)}")
    sample = Sample(ROW, "c", turns)
    result = await pool.score(grader, sample, tenant="t", owner="o", timeout=20)
    assert (result.total, result.reason) == (1.0, "ata")


@pytest.mark.parametrize(
    ("expression", "total", "parts", "reason"),
    [
        ("0.25", 0.25, {}, ""),
        ("True", 1.0, {}, ""),
        ("1", 1.0, {}, ""),
        ("{'total': 0.5, 'format': 1, 'length': -2.5, 'reason': 'half'}", 0.5, {"format": 1.0, "length": -2.5}, "half"),
        ("{'reward': 1, 'parts': {'a': 0.5}}", 1.0, {"a": 0.5}, ""),
    ],
)
async def test_what_a_function_may_return(
    pool: SandboxPool, expression: str, total: float, parts: dict[str, float], reason: str
) -> None:
    result = await score(pool, returning(expression))
    assert (result.total, result.parts, result.reason, result.error) == (total, parts, reason, False)


@pytest.mark.parametrize(
    ("expression", "kind", "words"),
    [
        ("None", "wrong_return", "the return value is a number, not NoneType"),
        ("'1'", "wrong_return", "not str"),
        ("{}", "wrong_return", "'total' or 'reward'"),
        ("{'total': 1, 'reward': 1}", "wrong_return", "'total' or 'reward'"),
        ("{'total': '1'}", "wrong_return", "'total' is a number"),
        ("{'total': 1, 'part': None}", "wrong_return", "part 'part' is a number"),
        ("{'total': 1, '<b>': 1}", "wrong_return", "cannot be the name of a part"),
        ("{'total': 1} | {f'p{n}': 1 for n in range(33)}", "wrong_return", "at most 32 parts"),
        ("float('nan')", "not_finite", "nan"),
        ("-float('inf')", "not_finite", "-inf"),
        ("{'total': 1, 'part': float('nan')}", "not_finite", "part 'part' is nan"),
        ("1.01", "out_of_range", "1.01"),
        ("-1", "out_of_range", "-1"),
        ("-10**400", "out_of_range", "within 0 and 1"),
    ],
)
async def test_what_it_may_not_return(pool: SandboxPool, expression: str, kind: str, words: str) -> None:
    result = await score(pool, returning(expression))
    assert (result.total, result.error, result.error_kind) == (0.0, True, kind)
    assert words in result.reason


async def test_an_exception_comes_with_its_line_and_the_authors_own_frames(pool: SandboxPool) -> None:
    result = await score(
        pool, "def half(x):\n    return 1 / x\n\ndef reward(row):\n    print('about')\n    return half(0)"
    )
    assert (result.error_kind, result.reason) == ("exception", "ZeroDivisionError: division by zero, line 2")
    assert 'File "reward.py", line 6, in reward' in result.details
    assert "return 1 / x" in result.details
    assert "calls.py" not in result.details and "/" not in result.details.replace("1 / x", "")
    assert result.console == "about\n"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def reward(): return 1\nreturn 2", "syntax"),  # parses, but does not compile
        ("def reward(): return 1\ndel reward", "missing_function"),
        ("def reward(): raise SystemExit(0)", "exception"),
        ("import os\ndef reward(): os._exit(0)", "killed"),
        ("def reward(): return len(bytearray(1 << 30))", "out_of_memory"),
        ("def reward():\n    print('x' * 2_000_000)\n    return 1", "too_much_output"),
    ],
)
async def test_other_errors_have_a_kind(pool: SandboxPool, code: str, kind: str) -> None:
    assert (await score(pool, code)).error_kind == kind


async def test_what_is_printed_is_kept_and_shortened(pool: SandboxPool) -> None:
    result = await score(
        pool, "import sys\ndef reward():\n    print('a')\n    print('b', file=sys.stderr)\n    return 1"
    )
    assert (result.total, result.console) == (1.0, "a\nb\n")
    result = await score(pool, "def reward():\n    print('x' * 100_000)\n    return 1")
    assert result.total == 1.0 and 8_000 < len(result.console) < 9_000 and result.console.endswith("[shortened]")


async def test_the_time_is_the_functions_own(pool: SandboxPool) -> None:
    code = "import time\ndef reward(completion):\n    time.sleep(float(completion))\n    return 1"
    samples = [dataclasses.replace(SAMPLE, completion=text) for text in ("0.2", "0.001", "0.2")]
    first, second, third = await pool.score_batch(Python(code=code), samples, tenant="t", owner="o", timeout=20)
    assert first.seconds >= 0.2 and second.seconds >= 0.001 and third.seconds >= 0.2
    forged = "import json\ndef reward():\n    json.dumps = lambda answer: "
    forged += """'{"results": [{"total": 1.0}], "console": "", "seconds": -5.0}'\n    return 1"""
    assert (await score(pool, forged)).seconds > 0


async def test_asynchronous_functions_are_awaited(pool: SandboxPool) -> None:
    code = """
import asyncio
async def part(x):
    await asyncio.sleep(0.001)
    return x
async def reward():
    return sum(await asyncio.gather(part(0.25), part(0.5)))
"""
    assert (await score(pool, code)).total == 0.75


async def test_a_batch_function_sees_the_group(pool: SandboxPool) -> None:
    grader = Python(
        code="def rewards(samples):\n    best = max(len(s['completion']) for s in samples)\n"
        "    return [len(s['completion']) / best for s in samples]",
        function="rewards",
        batch=True,
    )
    samples = [dataclasses.replace(SAMPLE, completion="x" * length) for length in (1, 2, 4)]
    scores = await pool.score_batch(grader, samples, tenant="t", owner="o", timeout=20)
    assert [one.total for one in scores] == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("return [1]", ["wrong_return"] * 3),
        ("return 1", ["wrong_return"] * 3),
        ("raise ValueError('no')", ["exception"] * 3),
        ("return [1, 2, 'x']", ["", "out_of_range", "wrong_return"]),
    ],
)
async def test_errors_of_a_batch_function(pool: SandboxPool, body: str, kinds: list[str]) -> None:
    grader = Python(code=f"def rewards(samples):\n    {body}", function="rewards", batch=True)
    scores = await pool.score_batch(grader, [SAMPLE] * 3, tenant="t", owner="o", timeout=20)
    assert [one.error_kind for one in scores] == kinds


async def test_samples_of_a_plain_function_fail_one_by_one(pool: SandboxPool) -> None:
    code = """
import os
def reward(completion):
    if completion == "die":
        os._exit(3)
    if completion == "hang":
        while True: pass
    return float(completion)
"""
    samples = [
        dataclasses.replace(SAMPLE, completion=text) for text in ("0.1", "die", "0.2", "x", "hang", "0.3", "0.4")
    ]
    scores = await pool.score_batch(Python(code=code), samples, tenant="t", owner="o", timeout=1)
    assert [one.total for one in scores] == [0.1, 0.0, 0.2, 0.0, 0.0, 0.3, 0.4]
    assert [one.error_kind for one in scores] == ["", "killed", "", "exception", "timed_out", "", ""]


@pytest.mark.parametrize(
    "leave",
    [
        "global seen; seen += 1",
        "builtins.seen = getattr(builtins, 'seen', 0) + 1; seen = builtins.seen",
        "math.seen = getattr(math, 'seen', 0) + 1; seen = math.seen",
        "sys.modules['left'] = math; seen = len([m for m in sys.modules if m == 'kept']); sys.modules['kept'] = math",
        "seen = os.path.exists('/tmp/left')\n    try: open('/tmp/left', 'w').close()\n    except OSError: pass",
        "seen = os.environ.get('LEFT', 0); os.environ['LEFT'] = '1'",
        "seen = sys.getrecursionlimit() == 5000; sys.setrecursionlimit(5000)",
        "seen = decimal.getcontext().prec; decimal.getcontext().prec = 50",
        "os.dup(0); seen = os.dup(0) - expected",
    ],
)
@pytest.mark.parametrize("together", [False, True])
async def test_no_state_goes_from_one_call_to_the_next(pool: SandboxPool, leave: str, together: bool) -> None:
    """Neither between calls made one after another, nor between those sent together."""
    setup = "import builtins, decimal, math, os, sys\nexpected, seen = 6, 0\n"
    code = f"{setup}def reward():\n    {leave}\n    return {{'total': 1, 'seen': int(seen)}}"
    if together:
        scores = await pool.score_batch(Python(code=code), [SAMPLE] * 4, tenant="t", owner="o", timeout=20)
    else:
        scores = [await score(pool, code) for _ in range(3)]
    assert [one.error for one in scores] == [False] * len(scores), scores
    assert len({one.parts["seen"] for one in scores}) == 1, scores


async def test_only_the_named_packages_can_be_imported(pool: SandboxPool) -> None:
    for name in PACKAGES:
        assert (await score(pool, f"import {name}\ndef reward(): return 1")).total == 1.0, name
    for name in ("numpy", "django", "pydantic", "engine.config", "portal"):
        result = await score(pool, f"import {name}\ndef reward(): return 1")
        assert result.reason.startswith(("ModuleNotFoundError", "PermissionError")), result


async def test_mathematics_can_be_verified(pool: SandboxPool) -> None:
    code = r"""
from math_verify import parse, verify
def reward(completion):
    return verify(parse(r"$\frac{1}{2}$"), parse(completion))
"""
    assert (await score(pool, code, completion="$0.5$")).total == 1.0
    assert (await score(pool, code, completion="$0.6$")).total == 0.0


async def test_code_of_two_tenants_never_shares_a_worker(pool: SandboxPool) -> None:
    code = "def reward():\n    return 1"
    grader = Python(code=code)
    for tenant in ("one", "two"):
        assert (await score(pool, code, tenant=tenant)).total == 1.0
    assert None is not pool.worker_id("one", grader) != pool.worker_id("two", grader)
    other = Python(code=code + "\n")
    assert (await pool.score(other, SAMPLE, tenant="one", owner="job", timeout=20)).total == 1.0
    assert pool.worker_id("one", grader) != pool.worker_id("one", other)


async def test_a_killed_worker_is_replaced_and_the_call_answered(pool: SandboxPool) -> None:
    grader = Python(code="def reward():\n    return 1")
    assert (await pool.score(grader, SAMPLE, tenant="killed", owner="job", timeout=20)).total == 1.0
    before = pool.worker_id("killed", grader)
    assert before is not None
    os.killpg(before, signal.SIGKILL)
    assert (await pool.score(grader, SAMPLE, tenant="killed", owner="job", timeout=20)).total == 1.0
    assert pool.worker_id("killed", grader) != before


async def test_hanging_code_does_not_hold_up_another_tenant(pool: SandboxPool) -> None:
    hanging = "def reward():\n    while True: pass"
    slow = [asyncio.create_task(score(pool, hanging, owner="bad", tenant="bad", timeout=30)) for _ in range(8)]
    await asyncio.sleep(0.1)
    assert (await score(pool, "def reward():\n    return 1", tenant="good", owner="good")).total == 1.0
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_workers_end_when_idle_when_worn_out_and_when_too_many(pool: SandboxPool) -> None:
    level = pool._level
    small = SandboxPool(2, level=level, live=2, recycle_after=3, idle_seconds=0.5)
    try:
        graders = [Python(code=f"def reward():\n    return {number} / 10") for number in range(3)]
        for number, grader in enumerate(graders):
            assert (await small.score(grader, SAMPLE, tenant="t", owner="o", timeout=20)).total == number / 10
        assert small.worker_id("t", graders[0]) is None
        assert small.worker_id("t", graders[2]) is not None
        first = small.worker_id("t", graders[2])
        for _ in range(3):
            await small.score(graders[2], SAMPLE, tenant="t", owner="o", timeout=20)
        assert small.worker_id("t", graders[2]) != first
        for _ in range(300):
            if not small._workers:
                break
            await asyncio.sleep(0.1)
        assert not small._workers
    finally:
        await small.close()


async def test_closing_leaves_no_process(pool: SandboxPool) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    other = SandboxPool(2, level=pool._level)
    hanging = asyncio.create_task(score(other, "def reward():\n    while True: pass"))
    assert (await score(other, "def reward():\n    return 1", owner="other")).total == 1.0
    started = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert started
    await other.close()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=20)
    assert not alive, alive
    with pytest.raises(RuntimeError, match="closed"):
        await score(other, "def reward():\n    return 1")


async def test_without_a_sandbox_nothing_runs() -> None:
    none = SandboxPool(2, level="none")
    result = await score(none, "def reward():\n    return 1")
    assert (result.total, result.error_kind) == (0.0, "refused")
    assert "no working sandbox" in result.reason
    await none.close()
