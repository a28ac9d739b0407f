"""``python -m tests.benchmarks [--parts A,B] [--size quick]``: run parts one after another and make the report.

A: many jobs at once. B: rollout. C: trainer. D: service. E: scale on paper, from the figures of A. F: against TRL. Each
part is a process of its own, so one that fails stops no other, and writes ``var/bench/<letter>.json``. Run again with
the parts that are missing; ``report.html`` is made from all there are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from portal.ops.supervisor import die_with_parent
from tests.benchmarks import report
from tests.benchmarks.results import load, show
from tests.benchmarks.running import SIZES

PARTS = {
    "A": ("Many jobs at once", "tests.benchmarks.concurrency"),
    "B": ("Rollout", "tests.benchmarks.rollout"),
    "C": ("Trainer", "tests.benchmarks.trainer"),
    "D": ("Service", "tests.benchmarks.service"),
    "E": ("Scale on paper", "tests.benchmarks.scale"),
    "F": ("Whole jobs against TRL", "tests.benchmarks.peers"),
}

QUIET = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="letters, separated by commas; '' only reports")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    found = parser.parse_args()
    letters = [letter for letter in found.parts.upper().split(",") if letter]
    if unknown := [letter for letter in letters if letter not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; choose from {', '.join(PARTS)}")

    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    failed = []
    for letter in letters:
        title, module = PARTS[letter]
        console.rule(f"{letter}. {title} ({found.size})")
        began = time.monotonic()
        command = [sys.executable, "-m", module, "--size", found.size, "--out", str(found.out)]
        code = subprocess.run(command, check=False, env={**os.environ, **QUIET}, preexec_fn=die_with_parent).returncode
        if code:
            failed.append(letter)
            console.print(f"Part {letter} failed with exit code {code} after {time.monotonic() - began:.0f} s")
        elif content := load(found.out, letter):
            show(content, console)
        report.write(found.out, list(PARTS))
    path = report.write(found.out, list(PARTS))
    console.print(f"Report: {path}")
    if failed:
        console.print(f"Failed: {', '.join(failed)}. Once mended: make bench PARTS={','.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
