"""Which sandbox this machine has: found by attacking it.

Invariant: a level counts only where honest code ran in it and not one attack reached anything. The report is kept as
``sandbox.json`` in the installation's folder, where the portal reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.sandbox import attack_code
from engine.sandbox.attack_code import ATTACKS
from engine.sandbox.inside import landlock
from engine.sandbox.pool import SandboxPool
from engine.sandbox.runtime import ConfiningLevel, Level
from engine.spec import DatasetRow, Message, Python
from engine.types import Sample, Score

LEVELS: tuple[ConfiningLevel, ...] = ("bubblewrap", "landlock")
"""The strongest first."""
REPORT_FILE = "sandbox.json"
ATTACK_SECONDS = 0.5
ATTACK_CODE = Path(attack_code.__file__).read_text()
SECRET = "another tenant's secret"
HOSTILE, BYSTANDER = "hostile", "bystander"


@dataclass(frozen=True)
class AttackResult:
    """One attack on one level."""

    name: str
    group: str
    stopped: bool
    outcome: str
    """What the attacker got, in a line."""


@dataclass(frozen=True)
class SandboxReport:
    """What the self-test found."""

    level: Level
    attacks: list[AttackResult] = field(default_factory=list)
    """On that level; where there is none, on the last one that ran at all."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Levels stronger than ``level`` and why they do not count."""
    tested_at: str = ""
    """UTC, ISO 8601."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def save(self, var: Path) -> None:
        """Write it into the installation's folder, whole or not at all."""
        var.mkdir(parents=True, exist_ok=True)
        aside = var / f".{REPORT_FILE}.{os.getpid()}"
        aside.write_text(self.to_json())
        aside.replace(var / REPORT_FILE)


def detect() -> SandboxReport:
    """Attack each level, the strongest first, until one holds. Takes some seconds."""
    attacks: list[AttackResult] = []
    unusable: dict[str, str] = {}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for level in LEVELS:
        try:
            attacks = asyncio.run(attack_level(level))
        except (OSError, RuntimeError) as failure:
            unusable[level] = str(failure)
            continue
        reached = [attack.name for attack in attacks if not attack.stopped]
        if not reached:
            return SandboxReport(level, attacks, unusable, now)
        unusable[level] = f"attacks that were not stopped: {', '.join(reached)}"
    return SandboxReport("none", attacks, unusable, now)


async def attack_level(level: ConfiningLevel) -> list[AttackResult]:
    """Run every attack on one level, with a bystander beside it.

    Raises:
        OSError, RuntimeError: the level does not even run honest code; the message says why.
    """
    if landlock.version() < landlock.OLDEST:
        raise OSError(f"the kernel has no Landlock, or an older one than ABI {landlock.OLDEST}")
    pool = SandboxPool(2, level=level)
    try:
        with targets() as target:
            honest = await run_attack(pool, "", target)
            if honest.total != 1.0:
                raise RuntimeError(f"honest code does not run: {honest.reason}")
            worker = await bystander(pool)
            target |= {"other_worker": worker}
            results = [judge(name, await run_attack(pool, name, target)) for name in ATTACKS]
            reached = await bystander(pool) != worker or was_contacted(target)
            results.append(
                AttackResult("disturb a bystander", "all of them", not reached, "" if reached else "undisturbed")
            )
            return results
    finally:
        await pool.close()


def judge(name: str, score: Score) -> AttackResult:
    """Whether the attack was stopped."""
    outcome: str = score.error_kind or "nothing reached"
    if score.error_kind == "exception":
        outcome = score.reason.removesuffix(")")[:120]
    return AttackResult(name, ATTACKS[name].group, score.error or score.total == 0.0, outcome)


async def run_attack(pool: SandboxPool, name: str, target: dict[str, Any]) -> Score:
    plain = {key: value for key, value in target.items() if isinstance(value, str | int)}
    row = DatasetRow(messages=[Message(role="user", content="")], metadata=plain | {"attack": name})
    grader = Python(code=ATTACK_CODE)
    return await pool.score(grader, Sample(row, ""), tenant=HOSTILE, owner=HOSTILE, timeout=ATTACK_SECONDS)


async def bystander(pool: SandboxPool) -> int:
    """Have an honest tenant's code run; returns the process id of its worker. Raises RuntimeError where it cannot."""
    grader = Python(code=f"KEPT = {SECRET!r}\ndef reward():\n    return 1")
    row = DatasetRow(messages=[Message(role="user", content="")])
    score = await pool.score(grader, Sample(row, ""), tenant=BYSTANDER, owner=BYSTANDER, timeout=10)
    worker = pool.worker_id(BYSTANDER, grader)
    if score.total != 1.0 or worker is None:
        raise RuntimeError(f"another tenant's code does not run: {score.reason}")
    return worker


@contextlib.contextmanager
def targets() -> Iterator[dict[str, Any]]:
    """What attacks aim at: files with a secret, listening sockets, this process."""
    abstract = f"marlaas-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marlaas-sandbox-")))
        folder.chmod(0o777)  # so that only the sandbox keeps others out
        for name in ("secret", "db.sqlite3"):
            (folder / name).write_text(SECRET)
            (folder / name).chmod(0o666)
        sockets = {
            "tcp": stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            "udp": stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
            "unix": stack.enter_context(socket.socket(socket.AF_UNIX)),
            "abstract": stack.enter_context(socket.socket(socket.AF_UNIX)),
        }
        sockets["udp"].bind(("127.0.0.1", 0))
        sockets["unix"].bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        sockets["abstract"].bind("\0" + abstract)
        for name in ("unix", "abstract"):
            sockets[name].listen()
        for one in sockets.values():
            one.setblocking(False)
        yield {
            "folder": str(folder),
            "secret_file": str(folder / "secret"),
            "database": str(folder / "db.sqlite3"),
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "tcp": sockets["tcp"].getsockname()[1],
            "udp": sockets["udp"].getsockname()[1],
            "engine": os.getpid(),
            "sockets": sockets,
        }


def was_contacted(target: dict[str, Any]) -> bool:
    """Whether anything arrived at the targets, or was left beside them."""
    for name, one in target["sockets"].items():
        with contextlib.suppress(BlockingIOError):
            if name == "udp":
                one.recv(1)
            else:
                one.accept()[0].close()
            return True
    return (Path(target["folder"]) / "planted").exists()
