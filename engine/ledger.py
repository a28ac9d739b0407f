"""The engine's durable memory in one SQLite file: jobs, the outbox of events, counters.

Invariants: a job's change of state and the event that reports it are one transaction; events of a job are numbered
1, 2, 3, ... without gaps and stay until the portal acknowledges them; a LoRA id is handed out once, for ever.
One process (the controller) writes it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.events import TERMINAL_STATUSES, Event, Payload, StatusChanged
from engine.progress import Progress
from engine.spec import DrainControl, JobControl, JobSpec, PoolControl

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    job_id TEXT PRIMARY KEY, spec TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
    last_seq INTEGER NOT NULL DEFAULT 0, progress TEXT NOT NULL DEFAULT '{}', control TEXT NOT NULL DEFAULT '',
    submitted REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, seq INTEGER NOT NULL, event TEXT NOT NULL,
    UNIQUE (job_id, seq)
);
CREATE TABLE IF NOT EXISTS pools (base_model_id TEXT PRIMARY KEY, control TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS operator (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""

RECORD = "job_id, spec, status, progress, control"


@dataclass
class JobRecord:
    """A job as the ledger has it."""

    job_id: str
    spec: JobSpec
    status: str
    progress: Progress
    control: JobControl | None
    """The tenant's latest wishes; None: as submitted."""


class Ledger:
    """See the module's docstring. Times are seconds since the epoch."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=20)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    # --- jobs ---

    def add_job(self, job_id: str, spec: dict[str, Any], first: StatusChanged) -> bool:
        """Store a submitted job with its first event, in one transaction; False where the job is known already."""
        with self._transaction():
            cursor = self._db.execute(
                "INSERT OR IGNORE INTO jobs (job_id, spec, status, reason, submitted) VALUES (?, ?, '', '', ?)",
                (job_id, json.dumps(spec), time.time()),
            )
            if cursor.rowcount == 0:
                return False
            self._append(job_id, first)
        return True

    def unfinished_jobs(self) -> list[JobRecord]:
        """In the order of submission."""
        rows = self._db.execute(f"SELECT {RECORD} FROM jobs ORDER BY submitted").fetchall()
        return [self._record(row) for row in rows if row[2] not in TERMINAL_STATUSES]

    def job(self, job_id: str) -> JobRecord | None:
        """An unfinished job, or None."""
        row = self._db.execute(f"SELECT {RECORD} FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return self._record(row) if row and row[2] not in TERMINAL_STATUSES else None

    @staticmethod
    def _record(row: tuple[str, str, str, str, str]) -> JobRecord:
        job_id, spec, status, progress, control = row
        return JobRecord(
            job_id,
            JobSpec.model_validate_json(spec),
            status,
            Progress(**json.loads(progress)),
            JobControl.model_validate_json(control) if control else None,
        )

    def versions_started_from(self, job_id: str) -> set[int]:
        """Versions of a job that unfinished jobs start from."""
        rows = self._db.execute(
            "SELECT json_extract(spec, '$.start_from.version'), status FROM jobs"
            " WHERE json_extract(spec, '$.start_from.job_id') = ?",
            (job_id,),
        )
        return {version for version, status in rows if status not in TERMINAL_STATUSES}

    # --- pools ---

    def pool_control(self, base_model_id: str) -> PoolControl | None:
        """What the operator wants of a pool; None: nothing was said."""
        row = self._db.execute("SELECT control FROM pools WHERE base_model_id = ?", (base_model_id,)).fetchone()
        return PoolControl.model_validate_json(row[0]) if row else None

    def store_pool_control(self, base_model_id: str, control: PoolControl) -> bool:
        """Store it; False where it is no newer than what is stored."""
        with self._transaction():
            known = self.pool_control(base_model_id)
            if known is not None and known.revision >= control.revision:
                return False
            self._db.execute(
                "INSERT OR REPLACE INTO pools (base_model_id, control) VALUES (?, ?)",
                (base_model_id, control.model_dump_json()),
            )
        return True

    # --- the engine as a whole ---

    def drain_control(self) -> DrainControl | None:
        """Whether the operator wants work to be taken; None: nothing was said."""
        row = self._db.execute("SELECT value FROM operator WHERE name = 'drain'").fetchone()
        return DrainControl.model_validate_json(row[0]) if row else None

    def store_drain_control(self, control: DrainControl) -> bool:
        """Store it; False where it is no newer than what is stored."""
        with self._transaction():
            known = self.drain_control()
            if known is not None and known.revision >= control.revision:
                return False
            self._db.execute("INSERT OR REPLACE INTO operator VALUES ('drain', ?)", (control.model_dump_json(),))
        return True

    def pool_revisions(self) -> dict[str, int]:
        """Of the ``PoolControl`` stored, by base model."""
        rows = self._db.execute("SELECT base_model_id, json_extract(control, '$.revision') FROM pools")
        return dict(rows.fetchall())

    def count_unfinished(self) -> dict[str, int]:
        """Jobs that have not ended, by state."""
        rows = self._db.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall()
        return {status: count for status, count in rows if status not in TERMINAL_STATUSES}

    def count_pending(self) -> int:
        """Events the portal has not acknowledged."""
        return int(self._db.execute("SELECT count(*) FROM outbox").fetchone()[0])

    # --- events ---

    def report(
        self, job_id: str, *payloads: Payload, progress: Progress | None = None, control: JobControl | None = None
    ) -> None:
        """Append events of a job to the outbox and store its progress or control, in one transaction."""
        with self._transaction():
            self._append(job_id, *payloads)
            if control is not None:
                self._db.execute("UPDATE jobs SET control = ? WHERE job_id = ?", (control.model_dump_json(), job_id))
            if progress is not None:
                self._db.execute("UPDATE jobs SET progress = ? WHERE job_id = ?", (json.dumps(vars(progress)), job_id))

    def _append(self, job_id: str, *payloads: Payload) -> None:
        (last,) = self._db.execute("SELECT last_seq FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        for seq, payload in enumerate(payloads, start=last + 1):
            event = Event(job_id=job_id, seq=seq, time=time.time(), payload=payload)
            self._db.execute(
                "INSERT INTO outbox (job_id, seq, event) VALUES (?, ?, ?)", (job_id, seq, event.model_dump_json())
            )
            if isinstance(payload, StatusChanged):
                self._db.execute(
                    "UPDATE jobs SET status = ?, reason = ? WHERE job_id = ?", (payload.status, payload.reason, job_id)
                )
        self._db.execute("UPDATE jobs SET last_seq = ? WHERE job_id = ?", (last + len(payloads), job_id))

    def pending(self, after: int, limit: int) -> tuple[int, list[str]]:
        """Unacknowledged events (``Event`` as JSON) with an outbox id above ``after``, oldest first, and the id of the
        last of them."""
        rows = self._db.execute(
            "SELECT id, event FROM outbox WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
        ).fetchall()
        return (rows[-1][0] if rows else after), [event for _, event in rows]

    def oldest_pending(self) -> int | None:
        """Outbox id of the oldest unacknowledged event."""
        return self._db.execute("SELECT min(id) FROM outbox").fetchone()[0]

    def acknowledge(self, acknowledged: dict[str, int]) -> None:
        """Forget the events of each job up to the given sequence number: the portal has stored them."""
        with self._transaction():
            self._db.executemany("DELETE FROM outbox WHERE job_id = ? AND seq <= ?", list(acknowledged.items()))

    # --- counters ---

    def next_lora_id(self) -> int:
        """A positive integer never handed out before."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO counters VALUES ('lora_id', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
            )
            return int(self._db.execute("SELECT value FROM counters WHERE name = 'lora_id'").fetchone()[0])

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("ROLLBACK" if kind else "COMMIT")
