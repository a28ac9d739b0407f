"""Forward and backward passes over the parts of a step, as many at a time as there are CPU threads for them.

On two cores two passes of a thread each take little more than half the time of one after the other with two threads:
most of a pass is operators too small for the threads to be worth their synchronization. On an accelerator there is one
pass at a time, over as many parts as the token budget holds.

Invariant: what is computed depends on the parts and the number of threads alone, so the same step gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

import torch

from engine.training.lora import Adapter
from engine.training.objective import Part

Result = TypeVar("Result")

SMALLEST_PASS = 128
"""Tokens from which on a thread is no faster with more of them at once (SmolLM2-135M, bf16)."""
PARTS_OF_A_PASS = 4


class PassRunner:
    """Runs passes; for one caller at a time."""

    def __init__(self, threads: int, token_budget: int, device: torch.device) -> None:
        """``token_budget``: tokens that are under way at once, but for a single part that is longer than its share."""
        self._threads = threads
        self._at_once = max(1, min(threads, token_budget // SMALLEST_PASS)) if device.type == "cpu" else 1
        self._token_budget = token_budget
        self._workers = ThreadPoolExecutor(self._at_once, thread_name_prefix="pass")

    def part_size(self, tokens: int) -> int:
        """Tokens of one part, where there are so many in all: several of them to a pass where passes run side by side,
        so that they can be divided evenly."""
        share = -(-tokens // self._at_once)
        size = min(max(share, SMALLEST_PASS), self._token_budget // self._at_once)
        return -(-size // PARTS_OF_A_PASS) if self._at_once > 1 else size

    def run(self, function: Callable[[Sequence[Part]], Sequence[Result]], parts: Sequence[Part]) -> list[Result]:
        """``function`` on all parts, which gives a result for each; in order. Gradients are added to their adapters."""
        lanes = self._divide(parts)
        work = [[[parts[index] for index in shared] for shared in lane] for lane in lanes]
        found = self._run(function, work)
        results = {
            index: result
            for lane, outcomes in zip(lanes, found, strict=True)
            for index, result in zip((index for shared in lane for index in shared), outcomes, strict=True)
        }
        return [results[index] for index in range(len(parts))]

    def _divide(self, parts: Sequence[Part]) -> list[list[list[int]]]:
        """[lane][pass] indices of parts: lanes of about equal length, the largest parts placed first."""
        total = sum(part.tokens for part in parts)
        count = min(self._at_once, max(1, total // SMALLEST_PASS), len(parts))
        lanes: list[list[int]] = [[] for _ in range(count)]
        loads = [0] * count
        for index in sorted(range(len(parts)), key=lambda index: -parts[index].tokens):
            lane = loads.index(min(loads))
            lanes[lane].append(index)
            loads[lane] += parts[index].tokens
        limit = self._token_budget // self._at_once
        return [list(_cut(sorted(lane), [part.tokens for part in parts], limit)) for lane in lanes]

    def _run(
        self, function: Callable[[Sequence[Part]], Sequence[Result]], lanes: list[list[list[Part]]]
    ) -> list[list[Result]]:
        """[lane] results of its passes."""
        if len(lanes) <= 1:
            return [[result for shared in lane for result in function(shared)] for lane in lanes]
        twins = _give_twins(lanes)

        def work(lane: list[list[Part]]) -> list[Result]:
            torch.set_num_threads(self._threads // len(lanes))
            return [result for shared in lane for result in function(shared)]

        futures = [self._workers.submit(work, lane) for lane in lanes]
        wait(futures)
        torch.set_num_threads(self._threads)  # MKL's is the process's, not the thread's
        found = [future.result() for future in futures]
        for adapter, twin in twins:
            adapter.add_gradient(twin)
        return found


def _cut(indices: list[int], tokens: list[int], limit: int) -> Iterator[list[int]]:
    """Runs of parts, each at most ``limit`` tokens or a single part."""
    shared: list[int] = []
    size = 0
    for index in indices:
        if shared and size + tokens[index] > limit:
            yield shared
            shared, size = [], 0
        shared.append(index)
        size += tokens[index]
    if shared:
        yield shared


def _give_twins(lanes: list[list[list[Part]]]) -> list[tuple[Adapter, Adapter]]:
    """Give an adapter that an earlier lane has too a twin, so that no two threads add to one gradient."""
    seen: set[int] = set()
    twins: list[tuple[Adapter, Adapter]] = []
    for lane in lanes:
        of_lane: dict[int, Adapter] = {}
        for shared in lane:
            for index, part in enumerate(shared):
                adapter = part.adapter
                if adapter is None:
                    continue
                if id(adapter) not in of_lane:
                    of_lane[id(adapter)] = adapter.twin() if id(adapter) in seen else adapter
                    if id(adapter) in seen:
                        twins.append((adapter, of_lane[id(adapter)]))
                shared[index] = replace(part, adapter=of_lane[id(adapter)])
        seen |= of_lane.keys()
    return twins
