"""Each attack, really run, on each level: nothing is reached, and the right error comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine.sandbox import level as levels
from engine.sandbox.attack_code import ATTACKS
from engine.sandbox.pool import SandboxPool
from engine.spec import DatasetRow, Message, Python
from engine.types import Sample, Score

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(pool: SandboxPool) -> AsyncIterator[dict[str, Any]]:
    """What the attacks aim at, another tenant's worker among it."""
    with levels.targets() as found:
        yield found | {"other_worker": await levels.bystander(pool)}


async def attack(pool: SandboxPool, target: dict[str, Any], name: str) -> Score:
    plain = {key: value for key, value in target.items() if isinstance(value, str | int)}
    row = DatasetRow(messages=[Message(role="user", content="")], metadata=plain | {"attack": name})
    # Where time is to run out, it may do so soon; where something else is to happen, it may take its time.
    timeout = 0.5 if name and "timed_out" in ATTACKS[name].kinds else 30.0
    grader = Python(code=levels.ATTACK_CODE)
    return await pool.score(grader, Sample(row, ""), tenant="hostile", owner="hostile", timeout=timeout)


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_reaches_nothing_and_disturbs_nobody(
    pool: SandboxPool, target: dict[str, Any], name: str
) -> None:
    score = await attack(pool, target, name)
    assert score.total == 0.0
    assert score.error_kind in ATTACKS[name].kinds, score
    assert score.error == bool(score.error_kind)
    assert not levels.was_contacted(target)
    assert await levels.bystander(pool) == target["other_worker"]


async def test_the_attacked_targets_are_within_reach_of_code_outside_the_sandbox() -> None:
    """Else stopping the attacks would show nothing."""
    with levels.targets() as target:
        for name in ("read a host file", "list a host folder", "TCP to loopback", "the broker's unix socket"):
            assert ATTACKS[name].run(target) is True
            target["sockets"]["udp"].getsockname()
        assert levels.was_contacted(target)
        assert ATTACKS["an abstract unix socket"].run(target) is True
        assert ATTACKS["write a host file"].run(target) is True


async def test_honest_code_runs_after_all_of_that(pool: SandboxPool, target: dict[str, Any]) -> None:
    assert (await attack(pool, target, "")).total == 1.0


async def test_a_level_that_lets_an_attack_through_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {
        "bubblewrap": [levels.AttackResult("read a host file", "files", False, "nothing reached")],
        "landlock": [levels.AttackResult("read a host file", "files", True, "exception")],
    }

    async def attacked(level: str) -> list[levels.AttackResult]:
        return results[level]

    monkeypatch.setattr(levels, "attack_level", attacked)
    report = await _detect()
    assert report.level == "landlock"
    assert "read a host file" in report.unusable["bubblewrap"]

    results["landlock"] = [dataclasses.replace(results["landlock"][0], stopped=False)]
    assert (await _detect()).level == "none"


async def test_a_level_on_which_honest_code_does_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def attacked(level: str) -> list[levels.AttackResult]:
        raise RuntimeError(f"no {level}")

    monkeypatch.setattr(levels, "attack_level", attacked)
    report = await _detect()
    assert report.level == "none"
    assert report.unusable == {"bubblewrap": "no bubblewrap", "landlock": "no landlock"}


async def _detect() -> levels.SandboxReport:
    import asyncio

    return await asyncio.to_thread(levels.detect)
