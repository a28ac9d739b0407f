"""A pool's turns of the trainer, with a trainer that notes what it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from engine import pool as module
from engine.config import EngineConfig
from engine.pool import Pool
from engine.training.errors import TrainingError
from engine.types import StepResult
from tests.engine.training.factory import make_batch, make_spec

A, B = "a" * 32, "b" * 32


class NotingTrainer:
    """Stands for the actor and for what starts it anew."""

    def __init__(self) -> None:
        self.generation = 1
        self.turns: list[list[str]] = []
        self.opened: list[str] = []
        self.damaged: set[str] = set()

    async def call(self, method: str, *args: Any, before: Any = None, group: str | None = None) -> Any:
        if before is not None:
            await before(self, self.generation)
        if method == "commit":
            return StepResult(None, {}, [])  # type: ignore[arg-type]
        assert method == "update"
        (batches,) = args
        self.turns.append([batch.job_id for batch in batches])
        await asyncio.sleep(0.01)
        return [None if batch.job_id in self.opened else TrainingError("not open") for batch in batches]

    async def open_job(self, spec: Any) -> None:
        if spec.job_id in self.damaged:
            raise TrainingError("its last commit is damaged")
        self.opened.append(spec.job_id)


def make_pool(tmp_path, monkeypatch) -> tuple[Pool, NotingTrainer]:
    trainer = NotingTrainer()

    async def call_actor(handle: NotingTrainer, method: str, spec: Any, *_: Any) -> None:
        await getattr(handle, method)(spec)

    monkeypatch.setattr(module, "call_actor", call_actor)
    pool = Pool(make_spec().base_model, EngineConfig(var=tmp_path), None, iter(range(9)).__next__)  # type: ignore[arg-type]
    pool._trainer = trainer  # type: ignore[assignment]
    return pool, trainer


async def test_jobs_that_wait_share_a_turn_once_it_is_known_what_one_takes(tmp_path, monkeypatch):
    pool, trainer = make_pool(tmp_path, monkeypatch)
    jobs = [f"{index:032x}" for index in range(5)]
    await asyncio.gather(*(pool.train(make_spec(job), make_batch(1, job_id=job)) for job in jobs))
    assert trainer.turns == [jobs[:1], jobs[1:]]
    assert sorted(trainer.opened) == jobs


async def test_a_new_trainer_gets_every_job_of_a_turn_and_one_that_cannot_be_opened_fails_alone(tmp_path, monkeypatch):
    pool, trainer = make_pool(tmp_path, monkeypatch)
    works = [(make_spec(job), make_batch(1, job_id=job)) for job in (A, B)]
    assert await pool._update(works) == [None, None]
    trainer.generation, trainer.opened, trainer.damaged = 2, [], {B}
    first, second = await pool._update(works)
    assert first is None and "damaged" in str(second)
    assert trainer.opened == [A]
    trainer.damaged.clear()
    assert await pool._update(works) == [None, None]
    assert trainer.opened == [A, B]  # only what was not open
