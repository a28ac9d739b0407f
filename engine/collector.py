"""Draws a job's batches, ahead of the trainer as far as the job's staleness allows.

Invariants: with ``max_staleness`` k, the batch that trains step t was drawn by version t - 1 - k or a later one; data
order and sampling seeds follow from the spec's seed and the cursor, so a restart from a commit draws the same prompts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from engine.actors import gather_or_cancel
from engine.batches import sampling_seed
from engine.data import draw
from engine.environments.timing import EpisodeSeconds, merge_spans, stage_seconds
from engine.environments.worker import GroupResult
from engine.events import Span
from engine.pool import Pool
from engine.prompts import Prompts
from engine.reward_errors import scored
from engine.spec import JobSpec
from engine.training.advantages import has_signal
from engine.types import AdapterRef, Group


@dataclass(frozen=True)
class DrawnBatch:
    """Groups that one step may train on."""

    groups: list[Group]
    spans: list[Span]
    """Those of one stage on one worker do not overlap."""
    seconds: EpisodeSeconds
    """The time in which the batch was drawn, divided between the stages."""
    version: int
    """The adapter version that drew all of it."""
    cursor: int
    """The job's data cursor after this batch."""


class Collector:
    """Keeps up to ``1 + max_staleness`` batches of one job in the making."""

    def __init__(self, spec: JobSpec, pool: Pool, prompts: Prompts, cursor: int) -> None:
        self._spec = spec
        self._pool = pool
        self._prompts = prompts
        self._cursor = cursor
        self._drawing: deque[asyncio.Task[DrawnBatch]] = deque()

    async def next(self, policy: AdapterRef, steps_left: int) -> DrawnBatch:
        """The next batch in order, drawn by ``policy`` where it is not being drawn yet. ``steps_left`` >= 1."""
        self.draw_ahead(policy, 1, steps_left)
        batch = await self._drawing.popleft()
        return batch

    def draw_ahead(self, policy: AdapterRef, trained: int, steps_left: int) -> None:
        """Begin to draw what ``policy``, the latest version, may draw.

        Args:
            trained: 1 where the next batch is still to be drawn, 0 where it is drawn already and about to be trained.
            steps_left: steps the job still makes, from the next batch on; nothing is drawn beyond them.
        """
        allowed = min(self._spec.training.max_staleness + trained, steps_left - (1 - trained))
        while len(self._drawing) < allowed:
            self._drawing.append(asyncio.create_task(self._draw(policy, self._cursor)))
            self._cursor += self._spec.training.prompts_per_step

    def cancel(self) -> None:
        """Drop what is being drawn."""
        for task in self._drawing:
            task.cancel()
        self._drawing.clear()

    async def _draw(self, policy: AdapterRef, cursor: int) -> DrawnBatch:
        """A batch; groups without signal are replaced by those of other prompts where the job asks for it (DAPO)."""
        wanted = self._spec.training.prompts_per_step
        drawn = await self._draw_groups(policy, cursor, list(range(wanted)), 0)
        results = list(drawn)
        for attempt in range(1, self._spec.training.sampling_rounds):
            silent = [place for place, result in enumerate(results) if not self._teaches(result.group)]
            if not silent:
                break
            others = await self._draw_groups(policy, cursor, silent, attempt)
            drawn += others
            for place, result in zip(silent, others, strict=True):
                results[place] = result
        spans = [span for result in drawn for span in result.spans]
        return DrawnBatch(
            groups=[result.group for result in results],
            spans=merge_spans(spans),
            seconds=stage_seconds(spans, (result.episode_seconds for result in drawn)),
            version=policy.version,
            cursor=cursor + wanted,
        )

    def _teaches(self, group: Group) -> bool:
        return has_signal(self._spec, scored(self._spec, group))

    async def _draw_groups(self, policy: AdapterRef, cursor: int, places: list[int], attempt: int) -> list[GroupResult]:
        """Groups for some places of the batch at ``cursor``. Each attempt goes through the rows in an order of its own,
        so that what a batch draws follows from seed and cursor alone."""
        spec, prompts = self._spec, self._prompts
        order = spec.seed if attempt == 0 else sampling_seed(spec.seed, -attempt)
        rows = draw(len(prompts.train), order, cursor, spec.training.prompts_per_step)
        return await gather_or_cancel(
            self._pool.run_group(
                spec,
                policy,
                *prompts.train[rows[place]],
                prompts.train_ids[rows[place]],
                spec.training.group_size,
                spec.sampling.temperature,
                sampling_seed(spec.seed, cursor + place, attempt),
            )
            for place in places
        )
