"""What a soak says at its end: a table for the terminal, the same as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from portal.ops.soak_accounts import Account, Share

FAULTS = ("steps lost", "steps doubled", "events missing", "events doubled", "wrong end")
SHOWN_FAULTS = 10
"""At most so many faults of a job are written out."""


@dataclass(frozen=True)
class Outcome:
    """How a soak went."""

    seed: int
    seconds: float
    accounts: list[Account]
    events: int
    stages: dict[str, dict[str, float]]
    shares: list[Share]
    busy_seconds: float
    """How long every tenant had a job running."""
    memory_at_start: int
    """Bytes."""
    memory_at_end: int
    kills: dict[str, int]
    controls: dict[str, int]
    trouble: list[str]
    """What else went wrong, in words."""

    @property
    def succeeded(self) -> bool:
        """Nothing was lost or doubled, and every job ended as it should."""
        return not self.trouble and not any(any(account.faults.values()) for account in self.accounts)

    def faults(self) -> dict[str, int]:
        """How many of each kind."""
        return {kind: sum(len(account.faults[kind]) for account in self.accounts) for kind in FAULTS}


def report(outcome: Outcome) -> str:
    """The outcome as lines for a terminal."""
    accounts, faults = outcome.accounts, outcome.faults()
    states = Counter(account.status for account in accounts)
    lines = [
        f"Soak with seed {outcome.seed}: {len(accounts)} jobs of {len(outcome.shares)} tenants, "
        f"{outcome.seconds:.0f} s in all",
        "",
        _row("jobs by final state", _counts(states)),
        _row("steps", f"{sum(account.committed for account in accounts)} committed, {faults['steps lost']} lost, "
                      f"{faults['steps doubled']} doubled"),
        _row("events", f"{outcome.events} stored, {faults['events missing']} missing, "
                       f"{faults['events doubled']} doubled"),
        _row("killed (-9)", _counts(outcome.kills)),
        _row("controls", _counts(outcome.controls)),
        _row("memory (RSS of all)", f"{_gib(outcome.memory_at_start)} at start, {_gib(outcome.memory_at_end)} at end"),
        "",
        f"{'stage':<34}{'spans':>8}{'median s':>12}{'longest s':>12}",
        *(
            f"{stage:<34}{values['spans']:>8.0f}{values['median']:>12.2f}{values['longest']:>12.2f}"
            for stage, values in sorted(outcome.stages.items())
        ),
        "",
        f"While every tenant had a job running ({outcome.busy_seconds:.0f} s):",
        f"{'tenant':<10}{'weight':>8}{'due %':>8}{'tokens %':>10}{'time %':>8}",
        *_share_rows(outcome.shares),
    ]  # fmt: skip
    for account in accounts:
        for kind, words in account.faults.items():
            shown = ", ".join(words[:SHOWN_FAULTS]) + (", ..." if len(words) > SHOWN_FAULTS else "")
            lines += [f"FAULT {account.name}: {kind}: {shown}"] if words else []
    lines += [f"FAULT {trouble}" for trouble in outcome.trouble]
    lines += ["", "Nothing lost, nothing doubled, every job ended as it should." if outcome.succeeded else "FAILED"]
    return "\n".join(lines)


def _share_rows(shares: list[Share]) -> list[str]:
    weights = sum(share.weight for share in shares)
    tokens = sum(share.tokens for share in shares) or 1
    seconds = sum(share.accelerator_seconds for share in shares) or 1
    return [
        f"{index:<10}{share.weight:>8g}{100 * share.weight / weights:>8.1f}{100 * share.tokens / tokens:>10.1f}"
        f"{100 * share.accelerator_seconds / seconds:>8.1f}"
        for index, share in enumerate(shares)
    ]


def _row(name: str, value: str) -> str:
    return f"{name:<22}{value}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def as_json(outcome: Outcome) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "succeeded": outcome.succeeded,
        "jobs": dict(Counter(account.status for account in outcome.accounts)),
        "steps_committed": sum(account.committed for account in outcome.accounts),
        "events": outcome.events,
        "faults": {
            account.name: {kind: words for kind, words in account.faults.items() if words}
            for account in outcome.accounts
            if any(account.faults.values())
        },
        "trouble": outcome.trouble,
        "stages": outcome.stages,
        "busy_seconds": round(outcome.busy_seconds, 1),
        "shares": [vars(share) for share in outcome.shares],
        "memory_at_start": outcome.memory_at_start,
        "memory_at_end": outcome.memory_at_end,
        "kills": outcome.kills,
        "controls": outcome.controls,
    }
