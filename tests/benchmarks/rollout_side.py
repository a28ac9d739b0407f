"""One rollout worker for part B: ``python -m tests.benchmarks.rollout_side``, told what to do by ``processes``.

The environment decides whose LoRA kernel it has: with ``VLLM_PLUGINS`` empty it is vLLM's own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from engine.rollout import cpu_ops, cpu_sampler
from engine.rollout.worker import RolloutWorker
from engine.types import BASE, PROBE_TOKENS, AdapterRef, Policy, RolloutRequest
from tests.benchmarks.processes import serve


class RolloutSide:
    """The worker and its adapters; every command runs to its end on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._refs: list[AdapterRef] = []
        self._ids = itertools.count(1)
        self._seeds = itertools.count(1)

    def start(self, folders: list[dict[str, Any]], stock: bool, **settings: Any) -> dict[str, Any]:
        """``folders``: path and sha256 of each adapter. ``stock``: leave vLLM's own operators in place."""
        if stock:
            cpu_ops.register = cpu_sampler.register = lambda: None
        self._worker = RolloutWorker(**settings)
        stats = self._loop.run_until_complete(self._worker.start())
        self._refs = [self._new_ref(f"{index:032x}", 1, folder) for index, folder in enumerate(folders)]
        self._folders = folders
        for ref in self._refs:
            self._loop.run_until_complete(self._worker.load_adapter(ref))
        from vllm.platforms import current_platform

        kernel = False
        if current_platform.is_cpu():
            from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

            kernel = getattr(PunicaWrapperCPU, "_marlaas", False)
        return {**stats, "own_kernel": kernel}

    def _new_ref(self, job_id: str, version: int, folder: dict[str, Any]) -> AdapterRef:
        return AdapterRef(job_id, version, next(self._ids), folder["path"], folder["sha256"])

    def draw(
        self, requests: int, adapters: int, prompt: list[int], max_tokens: int, seed: int, in_turn: bool = False
    ) -> dict[str, float]:
        """Run requests at once, spread over so many adapters (0: none); ``in_turn``: adapter after adapter."""
        policies: list[Policy] = list(self._refs[:adapters]) or [BASE]
        batches: list[list[RolloutRequest]] = [[] for _ in policies]
        for index in range(requests):
            place = index % len(policies)
            batches[place].append(self._request(policies[place], prompt, index, max_tokens, seed + index))
        if not in_turn:
            batches = [[request for batch in batches for request in batch]]
        began = time.perf_counter()
        tokens = sum(self._loop.run_until_complete(self._all(batch)) for batch in batches)
        return {"tokens": tokens, "seconds": time.perf_counter() - began}

    def _request(self, policy: Policy, prompt: list[int], index: int, max_tokens: int, seed: int) -> RolloutRequest:
        # The first ids differ: a prompt that is cached as a whole would be no prompt at all.
        own = [2 + (seed * 31 + index) % 200, *prompt[1:]]
        return RolloutRequest(policy, own, 1, max_tokens, 1.0, seed)

    async def _all(self, requests: list[RolloutRequest]) -> int:
        drawn = await asyncio.gather(*(self._worker.generate(request) for request in requests))
        return sum(len(completion.token_ids) for (completion,) in drawn)

    def publish(self, prompt: list[int], times: int, busy: int, max_tokens: int) -> list[dict[str, float]]:
        """Load a version, prove it, draw its first token; with ``busy`` requests of others in flight all the while."""
        return self._loop.run_until_complete(self._publish(prompt, times, busy, max_tokens))

    async def _publish(self, prompt: list[int], times: int, busy: int, max_tokens: int) -> list[dict[str, float]]:
        others = [asyncio.create_task(self._stream(prompt, index, max_tokens, [0])) for index in range(busy)]
        await asyncio.sleep(0.5 if busy else 0)
        found = []
        for _ in range(times):
            found.append(await self._publish_once(prompt))
            await asyncio.sleep(0.1)
        await stop(others)
        return found

    async def _publish_once(self, prompt: list[int]) -> dict[str, float]:
        version = next(self._seeds)
        ref = self._new_ref(f"{2**64 + version:032x}", 1, self._folders[-1])
        began = time.perf_counter()
        await self._worker.load_adapter(ref)
        loaded = time.perf_counter()
        await self._worker.score(ref, prompt[:PROBE_TOKENS])
        proven = time.perf_counter()
        await self._worker.generate(RolloutRequest(ref, prompt, 1, 1, 1.0, version))
        drawn = time.perf_counter()
        await self._worker.remove_adapter(ref)
        return {"load": loaded - began, "probe": proven - loaded, "first_token": drawn - proven, "all": drawn - began}

    async def _stream(self, prompt: list[int], index: int, max_tokens: int, tokens: list[int]) -> None:
        """Requests of another job, one after another, until cancelled."""
        ref = self._refs[index % max(1, len(self._refs) - 1)]
        while True:
            drawn = await self._all([self._request(ref, prompt, index, max_tokens, next(self._seeds))])
            tokens[0] += drawn  # apart from the await: other streams add meanwhile

    def disturb(self, prompt: list[int], requests: int, max_tokens: int, seconds: float, publish: bool) -> float:
        """Tokens a second of a job's stream of requests; with ``publish`` another job publishes all the while."""
        return self._loop.run_until_complete(self._disturb(prompt, requests, max_tokens, seconds, publish))

    async def _disturb(self, prompt: list[int], requests: int, max_tokens: int, seconds: float, publish: bool) -> float:
        tokens = [0]
        streams = [asyncio.create_task(self._stream(prompt, index, max_tokens, tokens)) for index in range(requests)]
        await asyncio.sleep(0.5)
        before, began = tokens[0], time.perf_counter()
        while time.perf_counter() - began < seconds:
            if publish:
                await self._publish_once(prompt)
            await asyncio.sleep(0.5)  # a job that publishes twice a second: a fast one
        rate = (tokens[0] - before) / (time.perf_counter() - began)
        await stop(streams)
        return rate


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    side = RolloutSide()
    serve({"start": side.start, "draw": side.draw, "publish": side.publish, "disturb": side.disturb})
