"""Episodes of several turns with the real vLLM and the real trainer: tools, and an environment on a server."""

from __future__ import annotations

import asyncio
import math
import os
import re
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from aiohttp import web

from engine.chat import ChatRenderer
from engine.config import EngineConfig
from engine.environments.tools.environment import instructions
from engine.environments.worker import EnvironmentWorker, GroupResult
from engine.rollout.worker import RolloutWorker
from engine.spec import DatasetRow, Message, Tools
from engine.training.advantages import advantages_of
from engine.training.trainer import Trainer
from engine.types import BASE, Completion, RolloutRequest, TrainBatch
from tests.engine.running import Engine
from tests.engine.talkative import CONTEXT, make_talkative_model

pytestmark = pytest.mark.engine

TOOLS = {"type": "tools", "max_turns": 3}
MIX = {
    "type": "mix",
    "parts": [
        {"name": "right", "weight": 1, "grader": {"type": "numeric"}},
        {"name": "short", "weight": 1, "grader": {"type": "brevity", "target": 1, "limit": 60}},
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talkative_model(tmp_path_factory.mktemp("talkative"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARLAAS_REMOTE_ENVIRONMENTS_ALLOW_PRIVATE", "true")
        assert EngineConfig().remote_environments_allow_private
        ray.init(
            address="local", namespace="marlaas", include_dashboard=False, log_to_driver=False, num_cpus=2,
            object_store_memory=100 * 2**20, _temp_dir=f"/tmp/marlaas-turns-{os.getpid()}",
        )  # fmt: skip
        yield Engine(tmp_path_factory.mktemp("engine"), model)
        ray.shutdown()


def settings(environment: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "base_model__context_length": CONTEXT, "environment": environment, "reward": {"grader": MIX},
        "sampling": {"max_tokens": 80}, "training__group_size": 6, **more,
    }  # fmt: skip


class GuessingGame(threading.Thread):
    """A server of the remote protocol: it ends a game itself where the guess has a 7, and likes some guesses more.
    Its answers take ``seconds``, and it fails on guesses with any of the digits ``hates``."""

    def __init__(self, seconds: float = 0.0, hates: str = "") -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.hates = hates
        self.said: list[tuple[int, str]] = []
        """Turn and text of every step."""
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self.start()
        self._ready.wait(10)

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application()
        application.router.add_post("/game/{what}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/game"
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        if request.match_info["what"] != "step":
            return web.json_response({})
        await asyncio.sleep(self.seconds)
        self.said.append((body["turn"], body["text"]))
        if set(self.hates) & set(body["text"]):
            return web.Response(status=400, text="I do not know this number")
        reward = {"reward": (1 + sum(map(ord, body["text"])) % 9) / 10}
        if "7" in body["text"]:
            return web.json_response({"done": True, "rewards": reward})
        return web.json_response({"messages": [{"role": "user", "content": "wrong"}], "rewards": reward})

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.join(10)


def trained_groups(engine: Engine, job: str, step: int) -> list[list[dict[str, Any]]]:
    """Episodes of the batch that made a step; batches dropped before it were drawn for the same step."""
    groups = [group["episodes"] for group in engine.of(job, "rollout") if group["step"] == step]
    return groups[-engine.spec(1).training.prompts_per_step :]


def assert_trained_as_sampled(engine: Engine, job: str, steps: int) -> None:
    assert engine.status(job)["status"] == "succeeded", engine.status(job)["reason"]
    assert engine.steps(job) == list(range(1, steps + 1))
    for step in engine.of(job, "step"):
        metrics = step["metrics"]
        assert all(math.isfinite(value) for value in metrics.values())
        # Each sampled token of what teaches something is trained once, and no other one is. The trainer finds the
        # probabilities the sampler drew with, which it could not after any other ids.
        drawn = trained_groups(engine, job, step["step"])
        assert metrics["tokens_sampled"] == sum(episode["tokens"] for group in drawn for episode in group)
        assert metrics["tokens_trained"] == sum(
            episode["tokens"] for group in drawn for episode in group if episode["advantage"]
        )
        assert metrics["logprob_gap"] < 1e-3
        assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-3)
        assert metrics["grad_norm"] > 0
        assert metrics["environment_seconds"] > 0


def test_a_job_whose_model_calls_tools(engine: Engine):
    job = engine.submit(3, **settings(TOOLS))
    engine.wait(job)
    assert_trained_as_sampled(engine, job, 3)
    episodes = [episode for group in engine.of(job, "rollout") for episode in group["episodes"]]
    turns = [episode["parts"]["environment_turns"] for episode in episodes]
    assert max(turns) == 3 and min(turns) == 1
    assert sum(episode["parts"]["environment_tool_calls"] for episode in episodes) > 0
    # What a limit cut short is scored as far as it got.
    cut = [episode for episode in episodes if episode["truncated"]]
    assert cut and not any(episode["error"] for episode in cut)
    assert any("ended by the limit of 3 turns" in episode["reason"] for episode in cut)
    assert all("right" in episode["parts"] for episode in cut)


def test_a_job_whose_environment_is_a_server(engine: Engine):
    game = GuessingGame()
    environment = {"type": "remote", "url": game.url, "max_turns": 3}
    job = engine.submit(3, **settings(environment, reward={"grader": {"type": "environment"}}, tenant_id="remote"))
    engine.wait(job)
    game.stop()
    assert_trained_as_sampled(engine, job, 3)
    episodes = [episode for group in engine.of(job, "rollout") for episode in group["episodes"]]
    assert max(turn for turn, _ in game.said) == 3
    assert all(episode["reward"] == pytest.approx(episode["parts"]["environment_reward"]) for episode in episodes)
    cut = [episode for episode in episodes if episode["truncated"]]
    assert cut and all(episode["reward"] > 0 for episode in cut if "limit of 3 turns" in episode["reason"])
    assert any("[user] wrong" in episode["completion"] for episode in episodes)


def test_a_server_that_is_slow_is_named_by_the_doctor(engine: Engine):
    """Episodes overlap: all the while some draw. It still shows that most of the time goes into the server."""
    game = GuessingGame(seconds=3.0)
    environment = {"type": "remote", "url": game.url, "max_turns": 3}
    reward = {"grader": {"type": "environment"}}
    job = engine.submit(3, **settings(environment, reward=reward, evaluation={"max_rows": 1}))
    engine.wait(job)
    game.stop()
    assert "stalled_environment" in {notice["code"] for notice in engine.of(job, "notice")}
    for step in engine.of(job, "step"):
        metrics = step["metrics"]
        assert metrics["environment_seconds"] > 3 * metrics["rollout_seconds"]


def erring(policy: dict[str, Any]) -> tuple[GuessingGame, dict[str, Any]]:
    game = GuessingGame(hates="5689")
    environment = {"type": "remote", "url": game.url, "max_turns": 2}
    return game, settings(environment, reward={"grader": {"type": "environment"}}, reward_errors=policy)


def test_episodes_whose_environment_fails_are_dropped_where_the_job_wants_it(engine: Engine):
    game, more = erring({"mode": "drop_episode"})
    job = engine.submit(3, **more)
    engine.wait(job)
    game.stop()
    assert_trained_as_sampled(engine, job, 3)
    for step in engine.of(job, "step"):
        groups = trained_groups(engine, job, step["step"])
        left = [[one for one in group if not one["error"]] for group in groups]
        left = [group if len(group) >= 2 else [] for group in left]
        metrics = step["metrics"]
        assert metrics["dropped_episodes"] == sum(len(group) for group in groups) - sum(len(group) for group in left)
        assert metrics["dropped_groups"] == sum(not group for group in left)
        assert metrics["reward_mean"] == pytest.approx(
            statistics.fmean(one["reward"] for group in left for one in group)
        )
        for group in groups:
            assert all(one["advantage"] == 0 for one in group if one["error"])
            assert sum(one["advantage"] for one in group) == pytest.approx(0, abs=1e-6)
    assert sum(step["metrics"]["dropped_episodes"] for step in engine.of(job, "step")) > 0
    errors = engine.of(job, "reward_error")
    assert 1 <= len(errors) <= 5
    assert {error["kind"] for error in errors} == {"environment"}
    assert all("status 400: I do not know this number" in error["reason"] and error["completion"] for error in errors)


def test_too_many_errors_fail_the_job_and_the_batch_is_shown(engine: Engine):
    game, more = erring({"mode": "score_zero", "max_fraction": 0.1, "window_batches": 3})
    job = engine.submit(50, **more)
    engine.wait(job)
    game.stop()
    status = engine.status(job)
    assert status["status"] == "failed"
    assert re.search(
        r"The reward failed on \d+ of \d+ completions .*more than the 10% this job allows", status["reason"]
    )
    assert "mend the reward" in status["next"]
    assert any(
        episode["error"]
        for episode in engine.of(job, "rollout")[-1]["episodes"] + engine.of(job, "rollout")[-2]["episodes"]
    )
    assert engine.of(job, "reward_error")


# --- the parts by themselves ---


class Recording:
    """A rollout worker that keeps what it drew."""

    def __init__(self, worker: RolloutWorker) -> None:
        self.worker = worker
        self.drawn: list[tuple[RolloutRequest, list[Completion]]] = []

    async def __call__(self, request: RolloutRequest) -> list[Completion]:
        completions = await self.worker.generate(request)
        self.drawn.append((request, completions))
        return completions


async def test_trained_ids_are_the_sampled_ids(model: Path, tmp_path: Path, engine: Engine):
    spec = engine.spec(1, **settings(TOOLS, training__prompts_per_step=1, training__kl_coefficient=0.01))
    worker = RolloutWorker(
        str(model), dtype="float32", max_model_len=CONTEXT, max_loras=1, max_lora_rank=8, max_num_seqs=16,
        kv_cache_gib=0.05, device="cpu", threads=1,
    )  # fmt: skip
    rollout = Recording(worker)
    environment = EnvironmentWorker(model, 2, rollout)
    row = DatasetRow(messages=[Message(role="user", content="What is 2 + 3?")], answer="5")
    renderer = ChatRenderer(model)
    prompt_ids = renderer.prompt_ids(row.messages, "", instructions(Tools()))
    result: GroupResult = await environment.run_group(spec, BASE, 0, row, prompt_ids, 8, 1.0, 11)
    await environment.close()
    await worker.shutdown()

    first = rollout.drawn[0][1]
    later = rollout.drawn[1:]
    assert later, "no episode had a second turn"
    for index, trajectory in enumerate(result.group.trajectories):
        # The turns of this episode: each later request's prompt is all that came before it.
        ids, logprobs = list(first[index].token_ids), list(first[index].logprobs)
        mask = [True] * len(ids)
        for request, (completion,) in later:
            before = request.prompt_ids[len(prompt_ids) :]
            whole = before + completion.token_ids
            if len(before) > len(ids) and trajectory.token_ids[: len(whole)] == whole:
                added = len(before) - len(ids)
                ids, mask = whole, mask + [False] * added + [True] * len(completion.token_ids)
                logprobs += [0.0] * added + completion.logprobs
        observed = len(trajectory.token_ids) - len(ids)
        assert trajectory.token_ids[: len(ids)] == ids
        assert trajectory.loss_mask == mask + [False] * observed
        assert trajectory.logprobs == logprobs + [0.0] * observed

    trainer = Trainer(str(model), dtype="float32", device="cpu", threads=1, token_budget=1024, resident_bytes=2**30)
    trainer.open_job(spec, str(tmp_path / "job"))
    batch = TrainBatch(spec.job_id, 1, 1, [result.group], advantages_of(spec, [result.group]), prompt_ids[:20])
    metrics = trainer.train_step(batch).metrics
    sampled = sum(len(completion.token_ids) for _, completions in rollout.drawn for completion in completions)
    assert metrics["tokens_trained"] == sampled == sum(sum(t.loss_mask) for t in result.group.trajectories)
    assert metrics["logprob_gap"] < 1e-3
    assert math.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
