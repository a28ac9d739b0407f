"""Stage times measured alone, from which the simulation of part E is made. Saved with part A's results.

The rollout's time for R sequences that end after l_1..l_R tokens is fitted as ``start + step * max(l) + token *
sum(l)``: a decoding step costs a constant and something for each sequence in it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy
import ray

from engine.store import load_commit
from engine.types import AdapterRef, RolloutRequest
from tests.benchmarks.live import Engine, Run
from tests.benchmarks.results import Results
from tests.benchmarks.running import say
from tests.benchmarks.spans import covered

if TYPE_CHECKING:
    from tests.benchmarks.concurrency import Bench, Load

FIRST_LORA_ID = 1_000_000_000
"""Ids that the controller's counter does not come to: those of calibration's adapters."""


def note_lengths(results: Results, load: Load, run: Run, together: Run) -> None:
    """Tokens and turns of the episodes that were really played, and a job's own times, one job at a time.

    ``together``: the same jobs in step; where several are trained in a turn of the lane, nothing else runs beside it.
    """
    episodes = [
        [episode.tokens, round(episode.parts.get("environment_turns", 1))]
        for spec in run.specs
        for event in run.of(spec, "rollout")
        for episode in event.payload.episodes
    ]
    results.data.setdefault("episodes", {})[load.name] = episodes
    steps = sum(spec.training.steps for spec in run.specs)
    spans = [span.end - span.start for span in run.spans("prepare")]
    # Reading and rendering the dataset: in the controller's process, so one job at a time.
    prepare = max(0.0, mean(spans) - mean(call_seconds(run, "open_job")) - mean(call_seconds(run, "load_adapter")))
    preparing = prepare * len(run.specs)
    turn, train = lane_seconds(run, together)
    results.data.setdefault("stages", {})[load.name] = {
        "turn": turn,
        "train": train,
        "commit": mean(call_seconds(run, "commit")),
        "open": mean(call_seconds(run, "open_job")),
        "prepare": prepare,
        "between": max(0.0, between(run, steps) - preparing / steps),
        "load": mean(call_seconds(run, "load_adapter")),
        "probe": mean(call_seconds(run, "score")),
        "controller": max(0.0, run.cpu_seconds.get("controller", 0.0) - preparing) / steps,
        "environment": environment_cpu(run),
        "rollout_cores": cores_kept_busy(run, "rollout", "generate", "score", "load_adapter"),
        "trainer_cores": cores_kept_busy(together, "trainer", "update", "commit", "open_job"),
        "steps": load.steps, "prompts": load.prompts, "group": load.group, "max_tokens": load.max_tokens,
        "turns": load.turns, "wait_scale": load.wait_scale,
    }  # fmt: skip
    turns = sum(episode[1] for episode in episodes) / max(1, len(episodes))
    if load.turns:
        results.note(f"{load.title}: {turns:.1f} turns an episode on average, of {load.turns} at most.")


def lane_seconds(alone: Run, together: Run) -> tuple[float, float]:
    """Seconds of a turn of the lane, and what each job in it adds; the mean turn of one job comes out as it was."""
    single = mean(call_seconds(alone, "update"))
    turns = Counter(together.intervals("update"))  # a call for several jobs is noted once for each
    shared = [(count, end - start) for (start, end), count in turns.items() if count > 1]
    if not shared:
        return 0.0, single
    counts, seconds = sum(count for count, _ in shared), sum(taken for _, taken in shared)
    train = min(single, max(0.0, (seconds - single * len(shared)) / (counts - len(shared))))
    return single - train, train


def call_seconds(run: Run, *methods: str) -> list[float]:
    return [end - start for start, end in run.intervals(*methods)]


def mean(values: list[float]) -> float:
    """Not the median: what is foretold is a sum."""
    return sum(values) / len(values) if values else 0.0


def environment_cpu(run: Run) -> float:
    """Processor seconds of the environment worker for each request it sends to the rollout."""
    return run.cpu_seconds.get("environment", 0.0) / max(1, len(run.intervals("generate")))


def cores_kept_busy(run: Run, process: str, *methods: str) -> float:
    """Cores a process uses while one of its methods runs, one job at a time."""
    busy = covered(run.intervals(*methods), run.began, run.end())
    return max(0.1, run.cpu_seconds.get(process, 0.0) / busy) if busy else 1.0


def between(run: Run, steps: int) -> float:
    """Seconds a step takes beside its groups, its training and its publishing, one job at a time: the controller's own
    work, reading the dataset, reports."""
    ends = [run.began] + [run.ended(spec) or 0.0 for spec in run.specs]
    working = 0.0
    for index, spec in enumerate(run.specs):
        own = run.intervals("run_group", "update", "commit", "open_job", "load_adapter", "score", job_id=spec.job_id)
        working += covered(own, ends[index], ends[index + 1])
    return max(0.0, (ends[-1] - ends[0] - working) / max(1, steps))


def measure(results: Results, engine: Engine, bench: Bench, load: Load) -> None:
    """Time the rollout with 1, 4, 16, ... groups of as many adapters at once, and fit its constants."""
    specs = bench.jobs(load, max(load.counts), "")
    engine.run(specs[: max(load.counts)])
    prompt = [index % 300 + 2 for index in range(30)]
    rows: list[list[float]] = []
    refs = []
    for index, spec in enumerate(specs):
        commit = load_commit(str(engine.config.job_dir(spec.job_id)), spec.training.steps)
        refs.append(AdapterRef(spec.job_id, commit.version, FIRST_LORA_ID + index, commit.path, commit.sha256))
    for repeat in range(3):
        for count in [4**power for power in range(4) if 4**power <= len(refs)] + [len(refs)]:
            requests = [
                RolloutRequest(ref, prompt, load.group, load.max_tokens, 1.0, 100 * repeat + index, ref.job_id)
                for index, ref in enumerate(refs[:count])
            ]
            began = time.perf_counter()
            drawn: list[list[Any]] = ray.get(
                [engine.controller.rollout.remote(specs[0].base_model.id, request) for request in requests]
            )
            seconds = time.perf_counter() - began
            lengths = [len(completion.token_ids) for group in drawn for completion in group]
            rows.append([1.0, max(lengths), sum(lengths), seconds])
    table = numpy.array(rows[len(rows) // 3 :])  # the first repeat loads the adapters
    # Relative errors: a lone group's time counts as much as that of all at once.
    start, step, token = fit(table[:, :3] / table[:, 3:], numpy.ones(len(table)))
    results.data["rollout"] = {"start": start, "step": step, "token": token}
    say(f"  rollout: {1000 * start:.1f} ms a call, {1000 * step:.2f} ms a step, {1000 * token:.3f} ms a token")


def fit(inputs: Any, seconds: Any) -> list[float]:
    """Least squares with coefficients of at least 0: a negative one is left out, and the others fitted again."""
    used = list(range(inputs.shape[1]))
    while True:
        found, *_ = numpy.linalg.lstsq(inputs[:, used], seconds, rcond=None)
        if (found >= 0).all() or len(used) == 1:
            values = [0.0] * inputs.shape[1]
            for place, value in zip(used, found, strict=True):
                values[place] = max(0.0, float(value))
            return values
        used.pop(int(found.argmin()))
