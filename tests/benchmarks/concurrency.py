"""Part A: N equal jobs, one after another, all at once in step, and all at once as they come.

The three modes run on the same processes with the same specs and seeds. *One after another*: the next job is submitted
when the last has ended, and nothing is drawn ahead. *Synchronous*: all at once, but a stage (draw, train, publish)
begins when every job has come to it. *Asynchronous*: all at once, as production does it. Staleness is 0 throughout, so
every job's result must be the same in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.spec import BaseModelSpec, JobSpec
from tests.benchmarks import calibration, profile
from tests.benchmarks.live import Engine, Run, engine, slow_tool
from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.slow_tool import LONGEST, SHORTEST
from tests.benchmarks.spans import share, timeline, union
from tests.benchmarks.stats import interleaved, median
from tests.benchmarks.workload import chosen_model, make_job, tiny_model, write_dataset

ONE_BY_ONE, SYNCHRONOUS, ASYNCHRONOUS = MODES = ("one after another", "synchronous", "asynchronous")
ROLLOUT_CALLS = ("generate", "score")
TRAINER_CALLS = ("update", "open_job")
"""The trainer's work in its lane; a commit beside it is disk's."""
BUCKETS = 240


@dataclass(frozen=True)
class Load:
    """One kind of job."""

    name: str
    steps: int
    prompts: int
    group: int
    max_tokens: int
    repeats: int
    counts: tuple[int, ...]
    """Numbers of jobs; the largest one runs one after another once a repeat, and its first n jobs give n's figures."""
    turns: int = 0
    """0: a single turn, nothing but computing."""
    wait_scale: float = 1.0
    """Of the tool's answering times."""

    @property
    def title(self) -> str:
        if not self.turns:
            return "compute only"
        return f"tools that answer after {SHORTEST * self.wait_scale:g} to {LONGEST * self.wait_scale:g} s"


COUNTS = (1, 2, 4, 8, 16, 32)
LOADS = {
    "smoke": (
        Load("compute", steps=2, prompts=1, group=4, max_tokens=8, repeats=1, counts=(1, 2)),
        Load("tools", steps=1, prompts=1, group=4, max_tokens=12, repeats=1, counts=(1, 2), turns=2, wait_scale=0.2),
    ),
    "quick": (
        Load("compute", steps=2, prompts=2, group=8, max_tokens=24, repeats=1, counts=(1, 2, 8, 32)),
        Load(
            "tools",
            steps=1,
            prompts=2,
            group=4,
            max_tokens=24,
            repeats=1,
            counts=(1, 2, 8, 32),
            turns=2,
            wait_scale=0.3,
        ),
    ),
    "full": (
        Load("compute", steps=1, prompts=1, group=8, max_tokens=24, repeats=2, counts=COUNTS),
        Load("tools", steps=1, prompts=2, group=4, max_tokens=24, repeats=1, counts=COUNTS, turns=3),
    ),
}


class Bench:
    """The part's runs and what is made of them."""

    def __init__(self, bench: Engine, folder: Path, model: BaseModelSpec, results: Results) -> None:
        self._engine = bench
        self._model = model
        self._results = results
        self._dataset = write_dataset(folder / "sums.jsonl")
        self._number = 0

    def jobs(self, load: Load, count: int, address: str) -> list[JobSpec]:
        self._number += 1
        return [
            make_job(
                self._model, self._dataset, run=f"{self._model.id} {load.name} {self._number}", index=index,
                steps=load.steps, prompts=load.prompts, group=load.group, max_tokens=load.max_tokens,
                tool_address=address, turns=load.turns,
            )
            for index in range(count)
        ]  # fmt: skip

    def run(self, load: Load, mode: str, count: int, address: str, which: str = " (warm-up)") -> Run:
        specs = self.jobs(load, count, address)
        run = self._engine.run(specs, one_by_one=mode == ONE_BY_ONE, barrier=mode == SYNCHRONOUS)
        say(f"{load.name}, {count} jobs, {mode}{which}: {run.wall():.1f} s")
        return run

    def measure(self, load: Load) -> dict[str, dict[int, list[Run]]]:
        """Runs by mode and number of jobs."""
        runs: dict[str, dict[int, list[Run]]] = {mode: {count: [] for count in load.counts} for mode in MODES}
        cases = [(ONE_BY_ONE, max(load.counts))] + [
            (mode, count) for count in load.counts for mode in (SYNCHRONOUS, ASYNCHRONOUS)
        ]
        with slow_tool(load.turns, load.wait_scale) as address:
            address = address if load.turns else ""
            # Not counted: compiles, starts graders, opens connections.
            self.run(load, ASYNCHRONOUS, min(4, max(load.counts)), address)
            for repeat, (mode, count) in interleaved(cases, load.repeats):
                run = self.run(load, mode, count, address, f", repeat {repeat + 1} of {load.repeats}")
                for of in load.counts if mode == ONE_BY_ONE else (count,):
                    runs[mode][of].append(run)
        return runs

    # --- what is reported ---

    def report(self, load: Load, runs: dict[str, dict[int, list[Run]]]) -> None:
        rows, walls = [], {mode: [] for mode in MODES}
        for count in load.counts:
            base = median([run.wall(count) for run in runs[ONE_BY_ONE][count]])
            for mode in MODES:
                figures = [self.figures(run, count) for run in runs[mode][count]]
                middle = {key: median([one[key] for one in figures]) for key in figures[0]}
                walls[mode].append([count, middle["wall"]])
                rows.append(
                    [
                        f"{count} jobs, {mode}", middle["wall"], 100 * middle["wall"] / base, 100 * middle["rollout"],
                        100 * middle["train"], 100 * middle["either"], middle["tokens"], middle["first_step"],
                        middle["queue"],
                    ]
                )  # fmt: skip
                self._results.data.setdefault(load.name, {}).setdefault(mode, {})[str(count)] = {
                    **middle, "walls": [one["wall"] for one in figures],
                }  # fmt: skip
        columns = [
            load.title, "wall s", "% of one by one", "rollout %", "trainer %", "either %", "tokens/s",
            "last first step s", "longest queue s",
        ]  # fmt: skip
        self._results.table(
            f"{load.title}: {load.steps} steps of {load.prompts} prompts x {load.group}", columns, rows,
            "rollout, trainer, either: share of wall time in which it has work; tokens: sampled and trained; last "
            "first step: when the last of the jobs had committed its first step; queue: longest wait for the trainer.",
        )  # fmt: skip
        self._results.chart("lines", f"{load.title}: wall time", series=walls, x="jobs", y="seconds", log_x=True)
        most = max(load.counts)
        for mode in MODES:
            self._pictures(load, mode, runs[mode][most][-1])
        profile.report(self._results, load.title, {mode: runs[mode][most][-1] for mode in MODES})

    def figures(self, run: Run, count: int) -> dict[str, float]:
        start, end = run.began, run.end(count)
        rollout, trainer = run.intervals(*ROLLOUT_CALLS), run.intervals(*TRAINER_CALLS)
        tokens = sum(run.metrics("tokens_sampled", count)) + sum(run.metrics("tokens_trained", count))
        return {
            "wall": end - start,
            "rollout": share(rollout, start, end),
            "train": share(trainer, start, end),
            "either": share(rollout + trainer, start, end),
            "tokens": tokens / (end - start),
            "first_step": max(run.of(spec, "step")[0].time for spec in run.specs[:count]) - start,
            "queue": max((span.end - span.start for span in run.spans("queue", count)), default=0.0),
        }

    def _pictures(self, load: Load, mode: str, run: Run) -> None:
        start, end = run.began, run.end()
        busy = {
            name: timeline(run.intervals(*calls), start, end, BUCKETS)
            for name, calls in (("rollout", ROLLOUT_CALLS), ("trainer", TRAINER_CALLS))
        }
        title = f"{load.title}, {len(run.specs)} jobs, {mode}"
        self._results.chart("areas", f"{title}: at work over time", series=busy, seconds=end - start)
        rows = [
            [str(index), [span for stage, calls in STAGES for span in _drawn(run, spec, stage, calls)]]
            for index, spec in enumerate(run.specs)
        ]
        self._results.chart("gantt", f"{title}: stages of each job", rows=rows, seconds=end - start)

    def equality(self, load: Load, runs: dict[str, dict[int, list[Run]]]) -> None:
        """Compare every job's last adapter between the modes; in fp32 they must be equal."""
        most = max(load.counts)
        found = {mode: [self._engine.weights(spec) for spec in runs[mode][most][-1].specs] for mode in MODES}
        rows = []
        for mode in (SYNCHRONOUS, ASYNCHRONOUS):
            gaps = [
                max(float((ours[name] - alone[name]).abs().max()) for name in alone)
                for ours, alone in zip(found[mode], found[ONE_BY_ONE], strict=True)
            ]
            rows.append([f"{mode}, {most} jobs", max(gaps), sum(gap <= 1e-5 for gap in gaps), len(gaps)])
            self._results.data.setdefault("equality", {})[f"{load.name} {mode}"] = max(gaps)
        self._results.table(
            f"{load.title}: last adapter against the same job one after another ({self._model.id})",
            ["mode", "largest difference", "jobs equal to 1e-5", "of"], rows,
        )  # fmt: skip


STAGES = (
    ("environment", ("run_group",)),
    ("rollout", ("generate",)),
    ("train", ("update",)),
    ("publish", ("commit", "load_adapter", "score")),
)
"""Drawn in this order: what comes later lies on top."""


def _drawn(run: Run, spec: JobSpec, stage: str, calls: tuple[str, ...]) -> list[list[Any]]:
    return [
        [stage, round(start - run.began, 3), round(end - run.began, 3)]
        for start, end in union(run.intervals(*calls, job_id=spec.job_id))
    ]


def main() -> None:
    chosen = options(__doc__)
    results = Results("A", "Many jobs at once", chosen.size)
    with scratch() as folder:
        model = chosen_model(chosen.size, folder)
        with engine(folder) as bench:
            say(f"Starting the engine with {model.id}")
            bench.begin(model)
            a = Bench(bench, folder, model, results)
            for load in LOADS[chosen.size]:
                runs = a.measure(load)
                a.report(load, runs)
                if model.dtype == "float32":
                    a.equality(load, runs)
                most = max(load.counts)
                calibration.note_lengths(results, load, runs[ONE_BY_ONE][most][-1], runs[SYNCHRONOUS][most][-1])
            say("Measuring the stages alone, for the simulation")
            calibration.measure(results, bench, a, LOADS[chosen.size][0])
            if model.dtype != "float32":
                compare_results(bench, folder, results, chosen.size)
    if model.id == "tiny":
        results.note(
            "The base model is tiny and random: its arithmetic is next to nothing, so what is seen is everything else."
        )
    results.save(chosen.out)


def compare_results(bench: Engine, folder: Path, results: Results, size: str) -> None:
    """The equality of results, where the timings were taken with 16-bit weights: a small run of the tiny fp32 model."""
    say("Comparing results in fp32 on the tiny model")
    b = Bench(bench, folder, tiny_model(folder / "tiny"), results)
    for load in LOADS[size]:
        load = replace(load, counts=(8,), repeats=1, wait_scale=0.1 * load.wait_scale)
        b.equality(load, b.measure(load))


if __name__ == "__main__":
    main()
