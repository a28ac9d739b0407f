"""Part E: the scheduler of production in virtual time, checked against part A, then with 1,000 tenants.

The simulation (``tests.benchmarks.simulation``) is given the stage times that part A measured one job at a time and has
to foretell how long N jobs take together. Then it is given the stage times of a GPU and asked what no machine at hand
can show.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from engine.spec import BaseModelSpec, DatasetRef, ExactMatch, JobSpec, RewardSpec, SamplingSettings, TrainingSettings
from tests.benchmarks import virtual_time
from tests.benchmarks.results import Results, load
from tests.benchmarks.running import Options, options, say
from tests.benchmarks.simulation import Episodes, Log, Shape, SimulatedPool, Times, run_job
from tests.benchmarks.spans import share, timeline
from tests.benchmarks.stats import jain, quantile

ONE_BY_ONE, ASYNCHRONOUS = "one after another", "asynchronous"
TARGET_ERROR = 15.0
"""Percent by which the simulation may be wrong."""

GPU = Times(
    call=0.03, step=0.014, token=0.00005, train=0.3, train_token=1.2e-4, commit=0.1, load=0.05, probe=0.03, open=0.3,
    between=0.01, controller=0.003, environment=0.0002, reopen=0.15,
)  # fmt: skip
"""Assumed, not measured: a model of 7 to 8 billion parameters in bf16, one accelerator of the H100 kind a worker. A
step of 256 sequences takes 27 ms; 64 episodes of 200 tokens are trained in 1.8 s."""
GPU_SHAPE = Shape(kv_tokens=400_000, max_sequences=256, slots=32, resident_jobs=64)
PROMPTS, GROUP, LONGEST = 8, 8, 512
STEP_TOKENS = PROMPTS * GROUP * 200
STEPS_A_JOB = 1
"""So long is a load simulated, on average."""


@dataclass(frozen=True)
class Scale:
    """How large the loads are."""

    tenants: int
    shape_tenants: int
    largest: int
    """Jobs of the largest tenant."""
    accelerators: tuple[int, ...]
    one_pool_up_to: int
    """Above it a single pool is not simulated: it publishes every version to all its workers, which takes the
    simulation long too."""


SCALES = {
    "smoke": Scale(12, 4, 4, (8, 16), 16),
    "quick": Scale(150, 16, 12, (8, 32, 128), 32),
    "full": Scale(1000, 64, 40, (8, 16, 32, 128, 512), 16),
}


# --- the check ---


def measured_times(data: dict[str, Any], name: str, cores: int) -> Times:
    """The stage times of part A's jobs of a kind."""
    stage, rollout = data["stages"][name], data["rollout"]
    return Times(
        call=rollout["start"], step=rollout["step"], token=rollout["token"], turn=stage["turn"],
        train=stage["train"], train_token=0.0,
        commit=stage["commit"], prepare=stage["prepare"],
        load=stage["load"], probe=stage["probe"], open=stage["open"],
        between=max(0.0, stage["between"] - stage["controller"]), controller=stage["controller"],
        environment=stage["environment"] / 2, reopen=stage["open"], rollout_cores=min(cores, stage["rollout_cores"]),
        trainer_cores=min(cores, stage["trainer_cores"]),
    )  # fmt: skip


def played(data: dict[str, Any], name: str) -> Episodes:
    """Episodes as long as those of part A."""
    episodes, stage = data["episodes"][name], data["stages"][name]

    def length(rng: random.Random) -> int:
        tokens, turns = rng.choice(episodes)
        return max(1, round(tokens / turns))

    return Episodes(
        length,
        turns=lambda rng: int(rng.choice(episodes)[1]),
        wait_scale=stage["wait_scale"] if stage["turns"] else 0.0,
    )


def foretell(data: dict[str, Any], name: str, mode: str, count: int, cores: int) -> float:
    """Seconds that ``count`` of part A's jobs take."""
    stage = data["stages"][name]
    specs = [
        job_spec(
            index, f"tenant-{index % 4}", steps=stage["steps"], prompts=stage["prompts"], group=stage["group"],
            longest=stage["max_tokens"],
        )
        for index in range(count)
    ]  # fmt: skip
    shape = Shape(cores=None if os.environ.get("MARLAAS_DEVICE") == "cuda" else cores)

    async def main() -> float:
        pool, log = SimulatedPool(specs, measured_times(data, name, cores), shape, played(data, name)), Log()
        if mode == ONE_BY_ONE:
            for spec in specs:
                await run_job(pool, spec, log)
        else:
            await asyncio.gather(*(run_job(pool, spec, log) for spec in specs))
        return asyncio.get_running_loop().time()

    return virtual_time.run(main())


def check(results: Results, measured: dict[str, Any]) -> None:
    """Compare with every figure of part A that the simulation can make."""
    data, cores = measured["data"], int(measured["machine"]["cores"])
    rows, errors = [], []
    for name in data["stages"]:
        for mode in (ONE_BY_ONE, ASYNCHRONOUS):
            for count, found in data[name][mode].items():
                foretold = foretell(data, name, mode, int(count), cores)
                error = 100 * (foretold / found["wall"] - 1)
                errors.append(abs(error))
                rows.append([f"{name}, {count} jobs, {mode}", found["wall"], foretold, error])
    results.table(
        "The simulation against part A", ["run", "measured s", "simulated s", "error %"], rows,
        f"Stage times from the runs one after another; target: within {TARGET_ERROR:g} %. "
        f"Part A was measured with size {measured['size']}.",
    )  # fmt: skip
    results.data["errors"] = {"median": quantile(errors, 0.5), "largest": max(errors)}
    say(f"error: {quantile(errors, 0.5):.1f} % in the median, {max(errors):.1f} % at most")


# --- loads ---


def job_spec(
    index: int, tenant: str, *, steps: int, prompts: int = PROMPTS, group: int = GROUP, longest: int = LONGEST
) -> JobSpec:
    return JobSpec(
        job_id=f"{index:032x}",
        tenant_id=tenant,
        base_model=BaseModelSpec(id="simulated", source="local", location="/nowhere", context_length=8192),
        dataset=DatasetRef(path="/nowhere", sha256="0" * 64, train_rows=64, held_out_rows=0),
        reward=RewardSpec(grader=ExactMatch()),
        sampling=SamplingSettings(max_tokens=longest),
        training=TrainingSettings(steps=steps, prompts_per_step=prompts, group_size=group),
        seed=index,
    )


def skewed_load(tenants: int, largest: int) -> list[JobSpec]:
    """Endless jobs of tenants of equal weight: the n-th largest has ``largest / n`` of them, at least one."""
    sizes = [max(1, round(largest / (rank + 1))) for rank in range(tenants)]
    owners = [f"tenant-{rank}" for rank, size in enumerate(sizes) for _ in range(size)]
    random.Random(1).shuffle(owners)
    return [job_spec(index, owner, steps=100_000) for index, owner in enumerate(owners)]


def long_tailed(rng: random.Random) -> int:
    """Tokens of a turn: log-normal, 170 in the median."""
    return min(LONGEST, max(8, round(170 * math.exp(0.7 * NormalDist().inv_cdf(rng.uniform(0.001, 0.999))))))


@dataclass
class Outcome:
    """What a load came to on some hardware, between a quarter of the time and its end."""

    steps_a_second: float
    rollout: float
    """Tokens decoded, as a share of what the workers decode with full batches."""
    train: float
    """Share of time in which the trainers work, on average."""
    wait_median: float
    wait_95: float
    fairness: float
    """Jain's index of the steps the tenants got."""
    seconds: float
    pictures: dict[str, list[float]]


def simulate(specs: list[JobSpec], shape: Shape, pools: int = 1) -> Outcome:
    """Jobs spread over equal pools, each for as long as ``STEPS_A_JOB`` steps a job take."""
    times = GPU
    train = times.train + times.train_token * STEP_TOKENS
    draw = STEP_TOKENS * (times.step + times.token * shape.max_sequences) / shape.max_sequences
    capacity = pools * min(shape.lanes / train, shape.rollout_workers / draw)
    until = max(40.0, STEPS_A_JOB * len(specs) / capacity)

    async def main() -> tuple[list[SimulatedPool], Log]:
        log = Log()
        of_pool = [specs[index::pools] for index in range(pools)]
        episodes = Episodes(long_tailed, prompt=200, wait_scale=1.0)
        made = [SimulatedPool(own, times, shape, episodes) for own in of_pool if own]
        await asyncio.gather(
            *(run_job(pool, spec, log, until) for pool, own in zip(made, of_pool, strict=False) for spec in own)
        )
        return made, log

    made, log = virtual_time.run(main())
    start = until / 4
    done = {job: sum(start <= at <= until for at in steps) for job, steps in log.steps.items()}
    by_tenant: dict[str, float] = {}
    for spec in specs:
        by_tenant[spec.tenant_id] = by_tenant.get(spec.tenant_id, 0.0) + done[spec.job_id]
    rollouts = [one.engine.progress.intervals for pool in made for one in pool.rollouts]
    full_rate = shape.max_sequences / (times.step + times.token * shape.max_sequences)
    tokens = sum(one.engine.tokens for pool in made for one in pool.rollouts)
    trainers = [one.worker.progress.intervals for pool in made for one in pool.trainers]
    return Outcome(
        steps_a_second=sum(done.values()) / (until - start),
        rollout=tokens / (len(rollouts) * full_rate * max([until, *log.ended.values()])),
        train=sum(share(one, start, until) for one in trainers) / len(trainers),
        wait_median=quantile(log.waits, 0.5),
        wait_95=quantile(log.waits, 0.95),
        fairness=jain(list(by_tenant.values())),
        seconds=until,
        pictures={
            "a rollout worker": timeline(rollouts[0], 0, until, 200),
            "a trainer": timeline(trainers[0], 0, until, 200),
        },
    )


HEADS = ["steps/s", "rollout %", "trainer %", "median wait s", "95 % wait s", "fairness"]


def cells(outcome: Outcome) -> list[float]:
    return [
        outcome.steps_a_second, 100 * outcome.rollout, 100 * outcome.train, outcome.wait_median, outcome.wait_95,
        outcome.fairness,
    ]  # fmt: skip


def pool_shapes(results: Results, scale: Scale) -> Shape:
    """How many lanes a pool of eight accelerators needs; where one lane saturates. Returns the best shape."""
    specs = skewed_load(scale.shape_tenants, scale.largest)
    rows, found = [], {}
    for lanes in (1, 2, 3, 4, 5, 6):
        shape = replace(GPU_SHAPE, rollout_workers=8 - lanes, lanes=lanes)
        outcome = simulate(specs, shape)
        found[shape] = outcome
        rows.append([f"{8 - lanes} rollout workers, {lanes} lanes", *cells(outcome)])
        say(f"{8 - lanes} rollout workers and {lanes} lanes: {outcome.steps_a_second:.2f} steps/s")
    results.table(
        f"Eight accelerators in one pool, {len(specs)} jobs of {scale.shape_tenants} tenants", ["pool", *HEADS], rows,
        "Rollout: tokens decoded, of what full batches would. Wait: of a batch for its lane. Fairness: Jain's index of "
        "the steps the tenants got; 1 is equal. A tenant with one job cannot use more than that job does.",
    )  # fmt: skip
    rows, curve = [], []
    for workers in (1, 2, 3, 4, 6, 8):
        outcome = simulate(specs, replace(GPU_SHAPE, rollout_workers=workers))
        rows.append([f"{workers} rollout workers, 1 lane", *cells(outcome)])
        curve.append([workers, outcome.steps_a_second])
    results.table("One lane: where the serialized trainer saturates", ["pool", *HEADS], rows)
    bound = 1 / (GPU.train + GPU.train_token * STEP_TOKENS)
    results.chart(
        "lines", "One lane: steps a second by rollout workers",
        series={"simulated": curve, "the lane's bound": [[x, bound] for x, _ in curve]},
        x="rollout workers", y="steps/s",
    )  # fmt: skip
    return max(found, key=lambda shape: found[shape].steps_a_second)


def large(results: Results, scale: Scale, best: Shape) -> None:
    """Many tenants on ever more accelerators: in pools of eight, and in one pool."""
    specs = skewed_load(scale.tenants, scale.largest)
    rows, series = [], {"pools of eight": [], "one pool, one lane": [], "one pool, lanes in proportion": []}
    for accelerators in scale.accelerators:
        cases = [("pools of eight", best, accelerators // 8)]
        if 8 < accelerators <= scale.one_pool_up_to:
            lanes = best.lanes * accelerators // 8
            wide = replace(GPU_SHAPE, rollout_workers=accelerators - 1)
            cases.append(("one pool, one lane", wide, 1))
            in_proportion = replace(GPU_SHAPE, rollout_workers=accelerators - lanes, lanes=lanes)
            cases.append(("one pool, lanes in proportion", in_proportion, 1))
        for name, shape, pools in cases:
            began = time.monotonic()
            outcome = simulate(specs, shape, pools)
            rows.append([f"{accelerators} accelerators, {name}", *cells(outcome)])
            series[name].append([accelerators, outcome.steps_a_second])
            say(
                f"{accelerators} accelerators, {name}: {outcome.steps_a_second:.2f} steps/s "
                f"({outcome.seconds:.0f} s simulated in {time.monotonic() - began:.0f} s)"
            )
            if accelerators == scale.accelerators[0]:
                results.chart(
                    "areas", f"{accelerators} accelerators, {name}: at work over time", series=outcome.pictures,
                    seconds=outcome.seconds,
                )  # fmt: skip
    results.table(
        f"{scale.tenants:,} tenants with {len(specs):,} jobs, the largest with {scale.largest}",
        ["hardware", *HEADS], rows,
        f"A pool of eight: {best.rollout_workers} rollout workers, {best.lanes} lanes; production has one lane a pool.",
    )  # fmt: skip
    results.chart(
        "lines", f"{scale.tenants:,} tenants: steps a second by accelerators",
        series={name: points for name, points in series.items() if points},
        x="accelerators", y="steps/s", log_x=True, log_y=True,
    )  # fmt: skip


def run(chosen: Options) -> None:
    results = Results("E", "Scale on paper", chosen.size)
    measured = load(chosen.out, "A")
    if measured is None:
        results.note("Part A has not been measured here, so the simulation was not checked: run parts A and E.")
    else:
        check(results, measured)
    results.note(
        "The GPU's stage times are assumed, not measured: "
        + ", ".join(f"{name} {value:g} s" for name, value in vars(GPU).items() if not name.endswith("cores"))
        + f". A step is {PROMPTS} prompts x {GROUP} episodes, answered by an environment after 0.5 to 4 s."
    )
    scale = SCALES[chosen.size]
    best = pool_shapes(results, scale)
    large(results, scale, best)
    results.save(chosen.out)


if __name__ == "__main__":
    run(options(__doc__))
