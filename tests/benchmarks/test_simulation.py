"""The simulation: no work is lost or invented, what it takes can be worked out by hand, and shares are fair."""

from __future__ import annotations

import asyncio

import pytest

from engine.spec import BaseModelSpec, DatasetRef, ExactMatch, JobSpec, RewardSpec, TrainingSettings
from tests.benchmarks.processors import BatchingEngine, Cores, Worker
from tests.benchmarks.simulation import Episodes, Log, Shape, SimulatedPool, Times, run_job
from tests.benchmarks.stats import jain
from tests.benchmarks.virtual_time import Stuck, run

TIMES = Times(
    call=0.0, step=0.1, token=0.01, train=2.0, train_token=0.0, commit=0.0, load=0.0, probe=0.0, open=0.0, reopen=0.0
)


def make_spec(index: int, tenant: str, *, steps: int = 3, weight: float = 1.0, staleness: int = 0) -> JobSpec:
    return JobSpec(
        job_id=f"{index:032x}",
        tenant_id=tenant,
        base_model=BaseModelSpec(id="tiny", source="local", location="/nowhere", context_length=1024),
        dataset=DatasetRef(path="/nowhere", sha256="0" * 64, train_rows=64, held_out_rows=0),
        reward=RewardSpec(grader=ExactMatch()),
        training=TrainingSettings(steps=steps, prompts_per_step=1, group_size=4, max_staleness=staleness),
        weight=weight,
        seed=index,
    )


def simulate(specs: list[JobSpec], times: Times, shape: Shape, length: int = 10, until: float = float("inf")):
    """(pool, log) of all jobs together."""

    async def main():
        pool, log = SimulatedPool(specs, times, shape, Episodes(lambda rng: length)), Log()
        await asyncio.gather(*(run_job(pool, spec, log, until) for spec in specs))
        return pool, log

    return run(main())


def test_hours_pass_in_no_time_and_in_order():
    async def main() -> list[tuple[float, str]]:
        seen = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((asyncio.get_running_loop().time(), name))

        await asyncio.gather(sleeper("late", 7200), sleeper("early", 0.5))
        return seen

    assert run(main()) == [(pytest.approx(0.5), "early"), (pytest.approx(7200), "late")]


def test_waiting_for_what_never_comes_is_an_error():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run(main())


def test_two_that_want_all_cores_take_twice_as_long():
    async def main() -> float:
        cores = Cores(2)
        first, second = Worker(cores, 2), Worker(cores, 2)
        await asyncio.gather(first.work(3), second.work(3))
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(6)


def test_a_batch_takes_what_its_steps_take():
    """Two sequences of 4 and 10 tokens: 4 steps with both, 6 with one."""

    async def main() -> tuple[float, float]:
        engine = BatchingEngine(Cores(1), 1, step=0.1, token=0.01, max_sequences=8)
        await asyncio.gather(engine.decode([4]), engine.decode([10]))
        return asyncio.get_running_loop().time(), engine.progress.done

    seconds, done = run(main())
    assert seconds == pytest.approx(4 * 0.12 + 6 * 0.11)
    assert done == pytest.approx(10)


def test_a_full_batch_makes_the_next_request_wait():
    """Three tokens each of two sequences, then of the two that had no room."""

    async def main() -> float:
        engine = BatchingEngine(Cores(1), 1, step=0.1, token=0.0, max_sequences=3)
        await asyncio.gather(engine.decode([3, 3]), engine.decode([3, 3]))
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(0.6)


def test_one_job_alone_takes_the_sum_of_its_stages():
    """10 steps of 0.1 + 4 * 0.01 s to draw, 2 s to train, three times."""
    _, log = simulate([make_spec(1, "a")], TIMES, Shape())
    assert log.ended[f"{1:032x}"] == pytest.approx(3 * (10 * 0.14 + 2.0))


def test_drawing_ahead_hides_the_drawing_behind_the_training():
    """The first two batches are drawn together, in 10 steps of 0.1 + 8 * 0.01 s; the third during the training."""
    _, log = simulate([make_spec(1, "a", staleness=1)], TIMES, Shape())
    assert log.ended[f"{1:032x}"] == pytest.approx(10 * 0.18 + 3 * 2.0)


def test_the_lane_is_the_bound_and_is_conserved():
    specs = [make_spec(index, f"t{index}") for index in range(12)]
    pool, log = simulate(specs, TIMES, Shape(max_sequences=256, slots=16))
    trained = sum(len(steps) for steps in log.steps.values())
    assert trained == 36
    assert pool.trainers[0].worker.progress.busy_seconds == pytest.approx(36 * 2.0)
    assert pool.rollouts[0].engine.tokens == 36 * 4 * 10
    assert max(log.ended.values()) == pytest.approx(1.4 + 36 * 2.0, rel=0.1)


def test_more_lanes_train_more_at_once():
    specs = [make_spec(index, f"t{index}") for index in range(12)]
    ends = [
        max(simulate(specs, TIMES, Shape(lanes=lanes, max_sequences=256, slots=16))[1].ended.values())
        for lanes in (1, 3)
    ]
    assert ends[1] < 0.45 * ends[0]


def test_a_tenant_with_many_jobs_gets_no_more_than_one_with_few():
    greedy = [make_spec(index, "greedy", steps=1000) for index in range(20)]
    modest = [make_spec(100 + index, f"modest-{index}", steps=1000) for index in range(4)]
    _, log = simulate([*greedy, *modest], TIMES, Shape(slots=32, max_sequences=256), until=600)
    given = {
        "greedy": sum(len(log.steps[spec.job_id]) for spec in greedy),
        **{spec.tenant_id: len(log.steps[spec.job_id]) for spec in modest},
    }
    assert jain(list(given.values())) > 0.98


def test_weights_are_kept():
    heavy, light = (
        make_spec(1, "heavy", steps=1000, weight=3, staleness=4),
        make_spec(2, "light", steps=1000, staleness=4),
    )
    others = [make_spec(10 + index, "light", steps=1000, staleness=4) for index in range(3)]
    more = [make_spec(20 + index, "heavy", steps=1000, weight=3, staleness=4) for index in range(3)]
    _, log = simulate([heavy, light, *others, *more], TIMES, Shape(slots=32, max_sequences=512), until=800)
    of = {name: sum(len(log.steps[s.job_id]) for s in jobs) for name, jobs in
          (("heavy", [heavy, *more]), ("light", [light, *others]))}  # fmt: skip
    assert of["heavy"] / of["light"] == pytest.approx(3, rel=0.15)
