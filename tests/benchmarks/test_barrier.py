"""The synchronous mode's barrier: everybody waits for the slowest, and for nobody who has ended."""

import asyncio
import random

from tests.benchmarks.batches import count_tokens, make_batch, rows_of
from tests.benchmarks.controller import DRAW, PUBLISH, TRAIN, StageBarrier


async def test_no_job_enters_a_stage_before_all_have_come_to_it():
    barrier = StageBarrier(4)
    rng = random.Random(0)
    entered: list[tuple[int, int]] = []

    async def job(index: int, steps: int) -> None:
        for step in range(steps):
            for stage in (DRAW, TRAIN, PUBLISH):
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                for _ in range(2 if stage == DRAW else 1):  # the groups of a batch come one by one
                    await barrier.come(str(index), 3 * step + stage)
                entered.append((3 * step + stage, index))
        await barrier.leave(str(index))

    async with asyncio.timeout(10):
        await asyncio.gather(*(job(index, steps) for index, steps in enumerate((3, 3, 1, 3))))
    assert [stage for stage, _ in entered] == sorted(stage for stage, _ in entered)
    assert len(entered) == 3 * (3 + 3 + 1 + 3)


def test_a_batch_is_the_same_each_time_and_advantages_are_centred():
    shape = {"vocabulary": 300, "groups": 3, "group": 4, "prompt": 5, "completion": 16}
    batch = make_batch(**shape)
    assert batch == make_batch(**shape) != make_batch(**shape, seed=1)
    assert len(rows_of(batch)) == 12
    assert count_tokens(batch) == sum(len(one["logprobs"]) for group in batch for one in group["episodes"])
    for group in batch:
        assert abs(sum(one["advantage"] for one in group["episodes"])) < 1e-9
