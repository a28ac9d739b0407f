"""Where the wall time of a run goes: calls to the actors, processor time of each process, a step's stages."""

from __future__ import annotations

from collections import defaultdict

import psutil

from tests.benchmarks.live import Run
from tests.benchmarks.results import Results
from tests.benchmarks.spans import covered
from tests.benchmarks.stats import median, quantile


def report(results: Results, title: str, runs: dict[str, Run]) -> None:
    """Three tables, each with all modes side by side."""
    modes = list(runs)
    jobs = len(next(iter(runs.values())).specs)
    cores = psutil.cpu_count() or 1
    used = {mode: sum(run.cpu_seconds.values()) for mode, run in runs.items()}
    results.data.setdefault("cores_busy", {})[title] = {
        mode: used[mode] / cores / run.wall() for mode, run in runs.items()
    }
    results.table(
        f"{title}, {jobs} jobs: processor seconds by process",
        ["process", *modes],
        [
            *(
                [kind, *(run.cpu_seconds.get(kind) for run in runs.values())]
                for kind in sorted({kind for run in runs.values() for kind in run.cpu_seconds})
            ),
            ["all", *used.values()],
            [f"% of {cores} processors", *(100 * used[mode] / cores / run.wall() for mode, run in runs.items())],
            ["wall s, were they all busy", *(seconds / cores for seconds in used.values())],
        ],
        "graders, and actors that ended meanwhile, may be missing. On a machine without an accelerator the processors "
        "are what all stages share: the last line is the bound for each mode's own work.",
    )
    rows = []
    for mode, run in runs.items():
        calls: dict[str, list[float]] = defaultdict(list)
        for method, _, start, end in run.calls:
            calls[method].append(end - start)
        for method, seconds in sorted(calls.items()):
            intervals = run.intervals(method)
            busy = covered(intervals, run.began, run.end())
            rows.append(
                [f"{method}, {mode}", len(seconds), 1000 * median(seconds), 1000 * quantile(seconds, 0.95), busy]
            )
    results.table(
        f"{title}, {jobs} jobs: calls to actors",
        ["call", "calls", "median ms", "95 % ms", "seconds with any in flight"],
        rows,
        "As the controller sees them: the call, the queue in the actor and the way back. generate waits for an adapter "
        "slot and the batch.",
    )
    results.table(f"{title}, {jobs} jobs: a step, median ms", ["", *modes], stages(runs))


def stages(runs: dict[str, Run]) -> list[list[object]]:
    """What a step's stages take."""
    rows: dict[str, list[object]] = defaultdict(list)
    for run in runs.values():
        calls = run.intervals("update")  # one for several jobs is noted once for each
        turns = set(calls)
        commits = [end - start for start, end in run.intervals("commit")]
        loads = [end - start for start, end in run.intervals("load_adapter")]
        probes = [end - start for start, end in run.intervals("score")]
        rows["a turn of the trainer"].append(1000 * median([end - start for start, end in turns] or [0.0]))
        rows["a job's share of it (train_seconds)"].append(1000 * median(run.metrics("train_seconds")))
        rows["jobs in a turn, on average (not ms)"].append(len(calls) / max(1, len(turns)))
        rows["commit, with fsync and the trainer's proof, beside other turns"].append(1000 * median(commits or [0.0]))
        rows["publish (publish_seconds)"].append(1000 * median(run.metrics("publish_seconds")))
        rows["  of it load_adapter"].append(1000 * median(loads or [0.0]))
        rows["  of it score (probe)"].append(1000 * median(probes or [0.0]))
        rows["waiting for the trainer"].append(1000 * median([s.end - s.start for s in run.spans("queue")] or [0.0]))
        rows["preparing a job"].append(1000 * median([s.end - s.start for s in run.spans("prepare")] or [0.0]))
    return [[name, *values] for name, values in rows.items()]
