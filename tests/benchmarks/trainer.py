"""Part C: the trainer against what one would write oneself and, where ``BENCH_TRL_PYTHON`` names a Python that has it,
TRL's own step: on the same batches, from the same adapter, each in a process of its own, measured in turns.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.models import prepare
from engine.spec import BaseModelSpec, TrainingSettings
from engine.store import ADAPTER_FILE, OPTIMIZER_FILE
from engine.training.lora import PEFT_PREFIX
from tests.benchmarks.batches import count_tokens, make_batch
from tests.benchmarks.processes import Side, SideFailed, side
from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.stats import interleaved, median
from tests.benchmarks.workload import chosen_model, tiny_model

OURS, PLAIN, TRL = "ours", "plain PEFT loop", "TRL"
ROWS = 8
"""Of a micro-batch of the others."""
EQUAL = 1e-5
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Shape:
    label: str
    groups: int
    group: int
    prompt: int
    completion: int


@dataclass(frozen=True)
class Size:
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    repeats: int
    jobs: int
    """That take turns."""
    rounds: int


SIZES = {
    "smoke": Size((Shape("short", 2, 4, 12, 16),), ("float32",), 1, 3, 1),
    "quick": Size((Shape("short prompts", 4, 8, 32, 64), Shape("long prompts", 4, 8, 128, 32)), ("float32",), 3, 32, 1),
    "full": Size(
        (Shape("short prompts", 4, 8, 48, 64), Shape("long prompts", 4, 8, 192, 32)), ("float32", "bfloat16"), 2, 32, 1
    ),
}


class Comparison:
    """The sides on one model in one number format."""

    def __init__(self, model: BaseModelSpec, folder: Path, sides: dict[str, Side], results: Results) -> None:
        self.model, self._folder, self._sides, self._results = model, folder, sides, results
        self._config = EngineConfig()
        self.model_dir = prepare(model, self._config.models)
        self.vocabulary = int(json.loads((self.model_dir / "config.json").read_text())["vocab_size"])

    def start(self, group: int) -> None:
        common = {"model_dir": str(self.model_dir), "threads": self._config.threads, "device": self._config.device}
        self._sides[OURS].ask(
            "start", model=self.model.model_dump_json(), folder=str(self._folder / "jobs"),
            token_budget=self._config.trainer_token_budget, **common,
        )  # fmt: skip
        adapter = self._sides[OURS].ask("open", index=0)
        settings = TrainingSettings()
        theirs = {
            **common, "dtype": self.model.dtype, "adapter": adapter, "learning_rate": LEARNING_RATE,
            "max_grad_norm": settings.max_grad_norm,
        }  # fmt: skip
        self._sides[PLAIN].ask("start", cap=settings.importance_cap, **theirs)
        if TRL in self._sides:
            try:
                version = self._sides[TRL].ask("start", group=group, **theirs)
                self._results.note(f"TRL {version}.")
            except SideFailed as error:
                self._results.note(f"TRL was left out: {str(error).splitlines()[-1]}")
                del self._sides[TRL]

    def batch(self, shape: Shape) -> list[dict[str, Any]]:
        return make_batch(
            vocabulary=self.vocabulary, groups=shape.groups, group=shape.group, prompt=shape.prompt,
            completion=shape.completion,
        )  # fmt: skip

    def step(self, name: str, batch: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = self._sides[name].ask("step", batch=batch, **({} if name == OURS else {"rows": ROWS}))
        return found

    def compare_results(self, shape: Shape) -> list[Any]:
        """One step of each side. Equal gradients make an equal step, except where a gradient is next to nothing: Adam
        moves such a weight by its whole rate in either direction, so the weights are counted that differ."""
        from safetensors.numpy import load_file

        batch = self.batch(shape)
        ours, plain = self.step(OURS, batch), self.step(PLAIN, batch)
        saved = self._folder / "plain"
        self._sides[PLAIN].ask("save", folder=str(saved))
        first = load_file(Path(ours["path"]) / ADAPTER_FILE)
        second = load_file(saved / ADAPTER_FILE)
        means = load_file(Path(ours["path"]) / OPTIMIZER_FILE)
        gradients = {name: means[f"exp_avg.{name.removeprefix(PEFT_PREFIX)}"] for name in first}
        theirs = load_file(saved / OPTIMIZER_FILE)
        if not first.keys() == second.keys() == theirs.keys():
            raise SystemExit("the sides' adapters have different tensors")
        largest = max(float(abs(one).max()) for one in theirs.values())
        gap = max(float(abs(gradients[name] - theirs[name]).max()) for name in first) / largest
        norms = abs(ours["grad_norm"] / plain["grad_norm"] - 1)
        apart = sum(int((abs(first[name] - second[name]) > EQUAL).sum()) for name in first)
        count = sum(one.size for one in first.values())
        return [f"{self.model.id}, {self.model.dtype}", gap, norms, f"{count - apart:,} of {count:,}", gap <= EQUAL]

    def measure(self, shape: Shape, repeats: int) -> list[list[Any]]:
        """A row a side."""
        batch = self.batch(shape)
        tokens = count_tokens(batch)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self._sides}
        for name in list(self._sides):
            try:
                self.step(name, batch)
            except SideFailed as error:
                if name != TRL:
                    raise
                self._results.note(f"TRL's step failed: {str(error).splitlines()[-1]}")
                del self._sides[name], found[name]
        for _, name in interleaved(list(self._sides), repeats):
            found[name].append(self.step(name, batch))
        speed = {name: tokens / median([one["update"] for one in of]) for name, of in found.items()}
        self._results.data.setdefault("steps", []).append(
            {"model": self.model.id, "dtype": self.model.dtype, "shape": shape.label, "tokens": tokens, "found": found}
        )
        return [
            [
                f"{self.model.id}, {self.model.dtype}, {shape.label}: {name}", median([one["update"] for one in of]),
                speed[name], speed[name] / speed[PLAIN], max(one["peak"] for one in of) / 2**20,
            ]
            for name, of in found.items()
        ]  # fmt: skip

    def switching(self, size: Size) -> None:
        """What it costs that jobs take turns."""
        ours = self._sides[OURS]
        batch = self.batch(size.shapes[0])[:1]
        for index in range(1, size.jobs):
            ours.ask("open", index=index)
        ways: dict[str, list[dict[str, float]]] = {"one job": [], "all in memory": [], "read back every time": []}
        for _, way in interleaved(list(ways), max(2, size.repeats - 1)):
            if way == "one job":
                ways[way].append(ours.ask("same", batch=batch, steps=size.jobs * size.rounds))
                continue
            resident = way == "all in memory"
            ours.ask("switch", batch=batch, jobs=size.jobs, rounds=1, resident=resident)
            ways[way].append(ours.ask("switch", batch=batch, jobs=size.jobs, rounds=size.rounds, resident=resident))
        seconds = {way: median([one["seconds"] for one in of]) for way, of in ways.items()}
        memory = {way: median([one["memory"] for one in of]) / 2**20 for way, of in ways.items()}
        self._results.table(
            f"{size.jobs} jobs taking turns ({self.model.id}, {self.model.dtype}; {count_tokens(batch)} tokens a step)",
            ["", "ms a step", "% more than one job", "memory MiB"],
            [
                [way, 1000 * seconds[way], 100 * (seconds[way] / seconds["one job"] - 1), memory[way]]
                for way in seconds
            ],
            "The whole call, with its commit. Production keeps jobs in memory up to MARLAAS_TRAINER_RESIDENT_GIB "
            f"({self._config.trainer_resident_gib:g}).",
        )  # fmt: skip
        self._results.data["switching"] = seconds


def main() -> None:
    chosen = options(__doc__)
    size = SIZES[chosen.size]
    results = Results("C", "Trainer", chosen.size)
    equality, speeds = [], []
    with scratch() as folder:
        timed = chosen_model(chosen.size, folder)
        # In fp32 on a model small enough that summing in another order does not show.
        models = [tiny_model(folder / "tiny")] if timed.id != "tiny" else []
        models += [timed.model_copy(update={"dtype": dtype}) for dtype in size.dtypes]
        for number, model in enumerate(models):
            own = folder / str(number)
            own.mkdir()
            with contextlib.ExitStack() as stack:
                sides = {
                    OURS: stack.enter_context(side("tests.benchmarks.trainer_side", log=own / "ours.log")),
                    PLAIN: stack.enter_context(side("tests.benchmarks.plain_side", log=own / "plain.log")),
                }
                if python := os.environ.get("BENCH_TRL_PYTHON"):
                    sides[TRL] = stack.enter_context(
                        side("tests.benchmarks.trl_side", log=own / "trl.log", python=python)
                    )
                one = Comparison(model, own, sides, results)
                say(f"{model.id} in {model.dtype}: starting {len(sides)} sides")
                one.start(size.shapes[0].group)
                if model.dtype == "float32":
                    equality.append(one.compare_results(size.shapes[0]))
                if model.id != timed.id:
                    continue
                for shape in size.shapes:
                    say(f"{model.id} in {model.dtype}: {shape.label}")
                    speeds += one.measure(shape, size.repeats)
                if model is models[-1]:
                    say(f"{size.jobs} jobs taking turns")
                    one.switching(size)
    results.table(
        "Tokens a second", ["", "s a step", "completion tokens/s", "x plain", "peak memory MiB"], speeds,
        "Update alone, without commit: forward and backward passes and the optimizer. "
        f"The others run micro-batches of {ROWS} padded rows.",
    )  # fmt: skip
    results.table(
        "Our step against the plain loop's",
        ["", "gradient", "gradient's norm", f"weights within {EQUAL:g}", f"gradient within {EQUAL:g}"], equality,
        "Gradient: largest difference over the largest gradient; its norm: relative difference. Where a gradient is "
        "next to nothing, Adam moves the weight by its whole rate in either direction.",
    )  # fmt: skip
    results.data["equality"] = equality
    if not os.environ.get("BENCH_TRL_PYTHON"):
        results.note("TRL was not measured: set BENCH_TRL_PYTHON to the Python of an environment that has it.")
    results.save(chosen.out)


if __name__ == "__main__":
    main()
