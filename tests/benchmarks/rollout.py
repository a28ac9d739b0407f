"""Part B: the rollout worker. One adapter or many against none, against stock vLLM, against serving one
adapter after another; what a publish takes, and what it takes from others.

Two workers, each in a process of its own, which differ in the operators that are ours (on CPUs: LoRA, RMSNorm);
cases are measured in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.models import prepare
from engine.spec import BaseModelSpec
from tests.benchmarks.processes import Side, side
from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.stats import interleaved, median
from tests.benchmarks.workload import chosen_model

OURS, STOCK, IN_TURN = "ours", "stock vLLM", "adapter after adapter"


@dataclass(frozen=True)
class Size:
    requests: tuple[int, ...]
    adapters: tuple[int, ...]
    max_tokens: int
    repeats: int
    slow_up_to: int
    """Requests that stock vLLM, and adapter after adapter, are measured with at most: both are several times slower."""
    publishes: int
    stream_seconds: float


SIZES = {
    "smoke": Size((1, 4), (1, 4), 8, 1, 4, 2, 1.0),
    "quick": Size((1, 8, 64), (1, 8, 32), 24, 2, 64, 5, 3.0),
    "full": Size((1, 8, 32, 64, 128), (1, 8, 32), 24, 2, 64, 12, 10.0),
}
PROMPT = list(range(3, 50))
"""Token ids; the first is replaced by one of the request's own."""


@dataclass(frozen=True)
class Case:
    requests: int
    adapters: int
    """0: the base alone."""
    how: str


def cases(size: Size) -> list[Case]:
    found = []
    for requests in size.requests:
        found.append(Case(requests, 0, OURS))
        for adapters in size.adapters:
            if adapters > requests:
                continue
            found.append(Case(requests, adapters, OURS))
            if requests <= size.slow_up_to:
                found.append(Case(requests, adapters, STOCK))
            if adapters > 1 and requests <= size.slow_up_to:
                found.append(Case(requests, adapters, IN_TURN))
    return found


def measure(size: Size, sides: dict[str, Side]) -> dict[Case, list[float]]:
    """Tokens a second, by case."""
    rates: dict[Case, list[float]] = {case: [] for case in cases(size)}
    for name, one in sides.items():
        one.ask("draw", requests=4, adapters=min(4, max(size.adapters)), prompt=PROMPT, max_tokens=4, seed=1)
        say(f"{name} is warm")
    last = -1
    for repeat, case in interleaved(cases(size), size.repeats):
        if repeat != last:
            last = repeat
            say(f"repeat {repeat + 1} of {size.repeats}: {len(rates)} cases")
        worker = sides[STOCK if case.how == STOCK else OURS]
        drawn = worker.ask(
            "draw", requests=case.requests, adapters=case.adapters, prompt=PROMPT, max_tokens=size.max_tokens,
            seed=10_000 * (repeat + 1), in_turn=case.how == IN_TURN,
        )  # fmt: skip
        rates[case].append(drawn["tokens"] / drawn["seconds"])
    return rates


def report(results: Results, size: Size, rates: dict[Case, list[float]]) -> None:
    def rate(requests: int, adapters: int, how: str) -> float | None:
        found = rates.get(Case(requests, adapters, how))
        return median(found) if found else None

    rows, series = [], {}
    for requests in size.requests:
        base = rate(requests, 0, OURS)
        assert base is not None
        series.setdefault("no adapter", []).append([requests, base])
        for adapters in size.adapters:
            ours = rate(requests, adapters, OURS)
            if ours is None:
                continue
            series.setdefault(f"{adapters} adapters", []).append([requests, ours])
            stock, in_turn = rate(requests, adapters, STOCK), rate(requests, adapters, IN_TURN)
            rows.append(
                [
                    f"{requests} requests over {adapters} adapters", base, ours, 100 * ours / base, stock,
                    stock and ours / stock, in_turn, in_turn and ours / in_turn,
                ]
            )  # fmt: skip
    columns = [
        "tokens/s", "no adapter", "ours", "% of none", STOCK, "ours/stock", IN_TURN, "ours/in turn",
    ]  # fmt: skip
    results.table(
        "Tokens a second", columns, rows,
        f"Prompts of {len(PROMPT)} tokens, at most {size.max_tokens} new ones, rank 8. Medians of {size.repeats}. The "
        "adapters equal the base, so every case draws the same tokens.",
    )  # fmt: skip
    results.chart("lines", "Tokens a second by requests at once", series=series, x="requests", y="tokens/s", log_x=True)
    results.data["rates"] = [{**vars(case), "tokens_per_second": found} for case, found in rates.items()]


def publishing(results: Results, size: Size, ours: Side) -> None:
    """What a publish takes, idle and under load, and what it takes from another job's requests."""
    rows = []
    for label, busy in (("nothing else runs", 0), ("32 requests of others run", 32)):
        say(f"publishing: {label}")
        found: list[dict[str, float]] = ours.ask(
            "publish", prompt=PROMPT, times=size.publishes, busy=busy, max_tokens=size.max_tokens
        )
        middle = {part: 1000 * median([one[part] for one in found]) for part in found[0]}
        rows.append([label, middle["load"], middle["probe"], middle["first_token"], middle["all"]])
        results.data.setdefault("publish", {})[label] = [one["all"] for one in found]
    results.table(
        "From a committed adapter to its first token, ms", ["", "load", "probe", "first token", "in all"], rows,
        f"Medians of {size.publishes}.",
    )  # fmt: skip
    rates: dict[bool, list[float]] = {False: [], True: []}
    say("a job's token rate while another publishes")
    for _, publish in interleaved([False, True], size.repeats + 1):
        rates[publish].append(
            ours.ask(
                "disturb",
                prompt=PROMPT,
                requests=32,
                max_tokens=size.max_tokens,
                seconds=size.stream_seconds,
                publish=publish,
            )
        )
    alone, disturbed = median(rates[False]), median(rates[True])
    results.table(
        "Token rate of a job while another publishes twice a second", ["", "tokens/s", "% of undisturbed"],
        [["undisturbed", alone, 100.0], ["another publishes", disturbed, 100 * disturbed / alone]],
    )  # fmt: skip
    results.data["disturbed_share"] = disturbed / alone


def worker_settings(model: BaseModelSpec, folder: Path, adapters: int) -> dict[str, Any]:
    config = EngineConfig()
    return {
        "model_dir": str(prepare(model, config.models)),
        "dtype": model.dtype,
        "max_model_len": model.context_length,
        "max_loras": adapters,
        "max_lora_rank": model.max_lora_rank,
        "max_num_seqs": config.max_sequences,
        "kv_cache_gib": config.kv_cache_gib,
        "device": config.device,
        "gpu_memory_utilization": 0.4,  # two workers share a GPU here
        "threads": config.threads,
    }


def main() -> None:
    chosen = options(__doc__)
    size = SIZES[chosen.size]
    results = Results("B", "Rollout", chosen.size)
    with scratch() as folder:
        model = chosen_model(chosen.size, folder)
        count = max(size.adapters) + 1
        say(f"making {count} adapters of {model.id}")
        command = [sys.executable, "-m", "tests.benchmarks.adapters", model.model_dump_json(), str(folder), str(count)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        adapters = json.loads((folder / "adapters.json").read_text())
        settings = worker_settings(model, folder, count)
        with (
            side("tests.benchmarks.rollout_side", log=folder / "ours.log") as ours,
            side("tests.benchmarks.rollout_side", log=folder / "stock.log", VLLM_PLUGINS="") as stock,
        ):
            for name, one in ((OURS, ours), (STOCK, stock)):
                say(f"starting the worker: {name}")
                started = one.ask("start", folders=adapters, stock=name == STOCK, **settings)
                if EngineConfig().device == "cpu" and started["own_kernel"] != (name == OURS):
                    results.note(f"The worker called {name} did not have the LoRA kernel it is named for.")
            report(results, size, measure(size, {OURS: ours, STOCK: stock}))
            publishing(results, size, ours)
    if model.id == "tiny":
        results.note("The base model is tiny: overheads count for more, and arithmetic for less, than with a real one.")
    results.save(chosen.out)


if __name__ == "__main__":
    main()
