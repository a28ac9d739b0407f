"""``python -m engine.sandbox``: attack this machine's sandbox and say what came of it.

Ends with exit code 0 where a level holds, 1 where none does.
"""

from __future__ import annotations

import argparse
import sys

from engine.config import EngineConfig
from engine.sandbox.level import SandboxReport, detect


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.sandbox", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--save", action="store_true", help="also write it to sandbox.json in MARLAAS_VAR")
    options = parser.parse_args()
    report = detect()
    if options.save:
        report.save(EngineConfig().var)
    print(report.to_json() if options.json else table(report))
    return 0 if report.level != "none" else 1


def table(report: SandboxReport) -> str:
    """The report for people."""
    lines = [f"Sandbox level: {report.level}"]
    lines += [f"  {level} does not count here: {why}" for level, why in report.unusable.items()]
    if report.level == "none":
        lines.append(
            "  Code of tenants is refused. Install bubblewrap on Linux >= 6.2 (x86-64), or allow user namespaces."
        )
    group = ""
    for attack in report.attacks:
        if attack.group != group:
            group = attack.group
            lines.append(f"\n{group}")
        lines.append(f"  {'stopped' if attack.stopped else 'REACHED'}  {attack.name:<44} {attack.outcome}")
    stopped = sum(attack.stopped for attack in report.attacks)
    lines.append(f"\n{stopped} of {len(report.attacks)} attacks stopped.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
