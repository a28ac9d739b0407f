"""Part F: whole jobs against TRL, where ``BENCH_TRL_PYTHON`` names a Python that has it: one GRPO job in TRL as a user
would run it, the same job here, and eight of them here at once.

Steps a second are those of complete steps: prompts, sampling, reward, update, and here also the commit to disk and the
publishing to the rollout. TRL's first step, which warms it up, does not count; here nothing is left out from submitting
the jobs to the last one's end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from engine.config import EngineConfig
from engine.models import prepare
from tests.benchmarks.live import Engine, engine
from tests.benchmarks.processes import side
from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.stats import median
from tests.benchmarks.workload import chosen_model, make_job, write_dataset


@dataclass(frozen=True)
class Size:
    steps: int
    prompts: int
    group: int
    max_tokens: int
    jobs: tuple[int, ...]
    repeats: int


SIZES = {
    "smoke": Size(2, 1, 4, 8, (1, 2), 1),
    "quick": Size(2, 4, 8, 32, (1, 8), 1),
    "full": Size(3, 4, 8, 32, (1, 8), 2),
}
DTYPES = ("float32", "bfloat16")
"""TRL's default, and what a patient user sets."""


def trl_rates(results: Results, size: Size, model: Any, dataset: dict[str, Any], log: Any) -> dict[str, list[float]]:
    """Steps a second of a job in TRL, by number format."""
    config, rates = EngineConfig(), {}
    for dtype in DTYPES:
        with side("tests.benchmarks.trl_job", log=log / f"{dtype}.log", python=os.environ["BENCH_TRL_PYTHON"]) as trl:
            version = trl.ask("start", threads=config.threads)
            say(f"a job in TRL {version}, {dtype}")
            found = trl.ask(
                "run", model_dir=str(prepare(model, config.models)), dtype=dtype, device=config.device,
                dataset=dataset["path"], prompts=size.prompts, group=size.group, max_tokens=size.max_tokens,
                steps=size.steps + 1, rank=8, learning_rate=1e-4,
            )  # fmt: skip
        rates[dtype] = [1 / seconds for seconds in found["seconds"][1:]]
        results.data[f"trl {dtype}"] = found
    results.note(f"TRL {version}, transformers' own generation.")
    return rates


def our_rates(bench: Engine, size: Size, model: Any, dataset: dict[str, Any]) -> dict[int, list[float]]:
    """Steps a second of all jobs together, by their number."""
    rates: dict[int, list[float]] = {count: [] for count in size.jobs}

    def run(count: int, name: str, steps: int) -> float:
        jobs = [
            make_job(
                model, dataset, run=name, index=index, steps=steps, prompts=size.prompts, group=size.group,
                max_tokens=size.max_tokens,
            )
            for index in range(count)
        ]  # fmt: skip
        return count * steps / bench.run(jobs).wall()

    run(1, "warm-up", 1)
    for repeat in range(size.repeats):
        for count in size.jobs:
            rates[count].append(run(count, f"peers-{repeat}-{count}", size.steps))
            say(f"{count} jobs here: {rates[count][-1]:.3f} steps/s")
    return rates


def main() -> None:
    chosen = options(__doc__)
    size = SIZES[chosen.size]
    results = Results("F", "Whole jobs against TRL", chosen.size)
    if not os.environ.get("BENCH_TRL_PYTHON"):
        results.note("Not measured: set BENCH_TRL_PYTHON to the Python of an environment that has TRL.")
        results.save(chosen.out)
        return
    with scratch() as folder:
        model = chosen_model(chosen.size, folder)
        dataset = write_dataset(folder / "sums.jsonl")
        theirs = trl_rates(results, size, model, dataset, folder)
        with engine(folder) as bench:
            say(f"starting the engine with {model.id}")
            bench.begin(model)
            ours = our_rates(bench, size, model, dataset)
    base = {dtype: median(rates) for dtype, rates in theirs.items()}
    rows: list[list[Any]] = [
        [f"TRL, {dtype}, 1 job", rate, 1 / rate, *(rate / base[other] for other in DTYPES)]
        for dtype, rate in base.items()
    ]
    for count, rates in ours.items():
        rate = median(rates)
        name = f"here, {model.dtype}, {count} job{'s' if count > 1 else ''}"
        rows.append([name, rate, 1 / rate, *(rate / base[other] for other in DTYPES)])
    results.table(
        "Steps a second", ["", "steps/s", "s a step", *(f"x TRL {dtype}" for dtype in DTYPES)], rows,
        f"{model.id}; {size.prompts} prompts x {size.group} samples of at most {size.max_tokens} tokens, rank 8.",
    )  # fmt: skip
    results.data["rates"] = {"trl": theirs, "here": {str(count): rates for count, rates in ours.items()}}
    results.save(chosen.out)


if __name__ == "__main__":
    main()
