"""Part F: whole jobs against TRL, where ``BENCH_TRL_PYTHON`` names a Python that has it: one GRPO job in TRL as a user
would run it, the same job here, and eight of them here at once.

Steps a second are those of complete steps: prompts, sampling, reward, update, and here also the commit to disk and the
publishing to the rollout. TRL's first step, which warms it up, does not count; here nothing is left out from submitting
the jobs to the last one's end.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.config import EngineConfig
from engine.models import prepare
from tests.benchmarks.live import Engine, engine
from tests.benchmarks.processes import side
from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.stats import median, quantile
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
    "full": Size(2, 4, 8, 32, (1, 8), 2),
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


def our_rates(
    bench: Engine, size: Size, model: Any, dataset: dict[str, Any]
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """By the number of jobs: steps a second of all together, and the tokens sampled in a step."""
    rates: dict[int, list[float]] = {count: [] for count in size.jobs}
    tokens: dict[int, list[float]] = {count: [] for count in size.jobs}

    def run(count: int, name: str, steps: int) -> float:
        jobs = [
            make_job(
                model, dataset, run=name, index=index, steps=steps, prompts=size.prompts, group=size.group,
                max_tokens=size.max_tokens,
            )
            for index in range(count)
        ]  # fmt: skip
        done = bench.run(jobs)
        tokens[count] += done.metrics("tokens_sampled")
        return count * steps / done.wall()

    run(1, "warm-up", 1)
    for repeat in range(size.repeats):
        for count in size.jobs:
            rates[count].append(run(count, f"peers-{repeat}-{count}", size.steps))
            say(f"{count} jobs here: {rates[count][-1]:.3f} steps/s")
    return rates, tokens


def bound(results: Results, model_dir: Path, dtype: str, tokens: float) -> None:
    """The least time of a step on this machine: its matrix products with the base's weights, at the pace at which the
    machine does one of the shape they have. Prompts, attention, adapters and everything else are left out."""
    import torch
    from safetensors import safe_open

    linear = head = 0
    with safe_open(model_dir / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a dict
            shape = weights.get_slice(name).get_shape()
            if "embed" in name or "lm_head" in name:
                head = shape[0] * shape[1]
            elif len(shape) == 2:
                linear += shape[0] * shape[1]
    config = json.loads((model_dir / "config.json").read_text())
    torch.set_num_threads(psutil.cpu_count() or 1)
    rows = torch.randn(round(tokens), config["hidden_size"]).to(getattr(torch, dtype))
    weight = torch.randn(config["intermediate_size"], config["hidden_size"]).to(rows.dtype)
    paces = []
    for _ in range(60):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        paces.append(2 * rows.numel() * weight.shape[0] / (time.perf_counter() - began))
    pace = quantile(paces, 0.9)
    sampling, training = 2 * (linear + head) * tokens, 4 * (linear + head) * tokens
    results.table(
        "The least time of a step", ["", "10^9 operations", "s"],
        [
            ["sampling", sampling / 1e9, sampling / pace],
            ["training, forwards and backwards", training / 1e9, training / pace],
            ["both", (sampling + training) / 1e9, (sampling + training) / pace],
        ],
        f"{tokens:.0f} tokens a step through the base's weights alone, at {pace / 1e9:.0f} x 10^9 operations a second, "
        f"what this machine's processors together do of one such product in {dtype}.",
    )  # fmt: skip
    results.data["bound"] = {"seconds": (sampling + training) / pace, "pace": pace, "tokens": tokens}


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
            ours, tokens = our_rates(bench, size, model, dataset)
        model_dir = prepare(model, EngineConfig().models)
        bound(results, model_dir, model.dtype, median(tokens[max(size.jobs)]))
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
