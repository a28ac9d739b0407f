"""Part D: the portal under load: web server, events worker and embedded Redis as ``manage.py up`` starts them.

The engine's end is played: batches of events go into the broker as the engine bridge sends them, and what is measured
is how soon browsers have them by WebSocket. No Ray and no model run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
from asgiref.sync import sync_to_async
from websockets.asyncio.client import connect

from tests.benchmarks.results import Results
from tests.benchmarks.running import options, say, scratch
from tests.benchmarks.stats import median, quantile

if TYPE_CHECKING:
    from tests.benchmarks.service_data import Feed, Seeded

PARTS = ("redis", "web", "events")
BATCH_EVENTS = 500
"""As ``engine.bridge``."""
CATCH_UP_SECONDS = 60.0
TARGET_RATE, TARGET_SECONDS = 2000, 0.2


@dataclass(frozen=True)
class Size:
    tenants: int
    live_jobs: int
    sockets: int
    old_jobs: int
    rates: tuple[int, ...]
    """Events a second."""
    seconds: float
    """Of each rate."""
    flood: int
    """Events sent at once."""
    api_seconds: float
    page_repeats: int


SIZES = {
    "smoke": Size(2, 4, 6, 60, (60,), 2.0, 300, 1.0, 2),
    "quick": Size(8, 32, 100, 10_000, (250, 1000, 2000), 4.0, 6000, 2.0, 5),
    "full": Size(8, 32, 100, 10_000, (100, 250, 500, 1000, 2000, 4000), 15.0, 20_000, 15.0, 25),
}


class Browsers:
    """WebSocket clients: three in four on a job's page, the others on the list of jobs."""

    def __init__(self, port: int, found: list[Seeded], feeds: list[Feed], count: int) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.late: list[float] = []
        """Seconds from an event to a browser that shows it."""
        self.messages = 0
        self.seen: dict[int, int] = defaultdict(int)
        self.wants: dict[int, Feed] = {}
        owners = {job.pk: one for one in found for job in one.jobs}
        for index in range(count):
            feed = feeds[index % len(feeds)]
            owner = owners[feed.job.pk]
            path = f"/ws/jobs/{feed.job.pk}/" if index % 4 else "/ws/jobs/"
            if index % 4:
                self.wants[index] = feed
            self._tasks.append(asyncio.create_task(self._watch(index, f"127.0.0.1:{port}", path, owner.cookie)))

    async def _watch(self, index: int, host: str, path: str, cookie: str) -> None:
        headers = {"Cookie": f"sessionid={cookie}"}
        async with connect(f"ws://{host}{path}", additional_headers=headers, origin=f"http://{host}") as socket:  # type: ignore[arg-type]
            self.seen[index] = 0
            async for message in socket:
                now = time.time()
                content = json.loads(message)
                self.messages += 1
                self.late += [now - event["time"] for event in content.get("events", ())]
                self.seen[index] = content.get("last_seq", self.seen[index])  # a sign of life has none

    async def connected(self, count: int) -> None:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while len(self.seen) < count:
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(self.seen)} of {count} sockets came to be open")
            await asyncio.sleep(0.1)

    async def caught_up(self) -> bool:
        """Wait until every job page shows all that was sent; False where that takes too long."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while any(self.seen[index] < feed.seq for index, feed in self.wants.items()):
            self._check()
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"a socket was closed: {task.exception() or 'by the server'}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def send(feeds: list[Feed], count: int, since: float) -> float:
    """The next ``count`` events of all jobs, which happened evenly from ``since`` until now, in batches as the bridge
    makes them. Returns the processor seconds it took to send what the ledger holds."""
    from engine.celery import app
    from engine.events import EVENTS_QUEUE, INGEST_EVENTS, join_events

    step = (time.time() - since) / count
    events = [feeds[index % len(feeds)].next(since + step * (index + 1)) for index in range(count)]
    ledger = [event.model_dump_json() for event in events]
    began = time.thread_time()
    for start in range(0, count, BATCH_EVENTS):
        app.send_task(INGEST_EVENTS, args=[join_events(ledger[start : start + BATCH_EVENTS])], queue=EVENTS_QUEUE)
    return time.thread_time() - began


async def at_rate(feeds: list[Feed], rate: int, seconds: float) -> tuple[int, float, float]:
    """Send events at a rate, gathered as the bridge gathers them; how many, in how many seconds, and the processor
    seconds of the bridge's part."""
    from engine.bridge import gather

    began, sent, used, last = time.monotonic(), 0, 0.0, time.time()
    while time.monotonic() - began < seconds:
        await asyncio.to_thread(gather, time.sleep)
        due = int(rate * (time.monotonic() - began)) - sent
        if due > 0:
            since, last = last, time.time()
            used += await asyncio.to_thread(send, feeds, due, since)
            sent += due
    return sent, time.monotonic() - began, used


async def live(results: Results, size: Size, browsers: Browsers, feeds: list[Feed], processes: Processes) -> None:
    """Latency at each rate, then what is ingested at most."""
    rows, costs = [], []
    for rate in size.rates:
        browsers.late, browsers.messages = [], 0
        used, began = processes.cpu(), time.monotonic()
        events, took, bridge = await at_rate(feeds, rate, size.seconds)
        really = events / took
        complete = await browsers.caught_up()
        behind = time.monotonic() - began - size.seconds
        spent = {name: after - used[name] for name, after in processes.cpu().items()}
        share = {name: seconds / (time.monotonic() - began) for name, seconds in spent.items()}
        costs.append(
            [f"{rate} events/s", *(1e6 * each / events for each in (bridge, *(spent[name] for name in PARTS)))]
        )
        late = [1000 * one for one in browsers.late] or [float("nan")]
        rows.append(
            [
                f"{rate} events/s", really, quantile(late, 0.5), quantile(late, 0.95), quantile(late, 0.99),
                len(late), max(0.0, behind) if complete else None, 100 * share["events"], 100 * share["web"],
                100 * share["redis"],
            ]
        )  # fmt: skip
        results.data.setdefault("rates", []).append({"rate": rate, "p95_ms": quantile(late, 0.95), "sent": really})
        say(f"{rate} events/s: p95 {quantile(late, 0.95):.0f} ms")
        if not complete:
            say("the browsers did not catch up: higher rates are left out")
            break
    results.table(
        f"From the engine's batch to {size.sockets} browsers, {size.live_jobs} live jobs",
        ["rate", "sent/s", "p50 ms", "p95 ms", "p99 ms", "deliveries", "behind s", "events %", "web %", "redis %"],
        rows,
        "Behind: how long the browsers took to catch up after the last event. The last columns: processor time of the "
        f"events worker, the web server and Redis, in percent of a core. Target: p95 under {1000 * TARGET_SECONDS:.0f} "
        f"ms at {TARGET_RATE} events/s.",
    )  # fmt: skip
    results.table(
        "Processor microseconds for an event", ["rate", "bridge", *PARTS], costs,
        "What limits the rate: the events worker and the web server are one process each, so each does at most a "
        "million microseconds' work a second; all together have the machine's processors. Bridge: from the ledger's "
        "text to the broker.",
    )  # fmt: skip
    results.data["microseconds_per_event"] = {
        row[0]: dict(zip(("bridge", *PARTS), row[1:], strict=True)) for row in costs
    }
    results.chart(
        "lines", "Event to browser by rate",
        series={f"p{p}": [[row[1], row[column]] for row in rows] for p, column in ((50, 2), (95, 3), (99, 4))},
        x="events a second", y="ms", log_x=True, log_y=True,
    )  # fmt: skip
    await browsers.caught_up()
    began = time.monotonic()
    await asyncio.to_thread(send, feeds, size.flood, time.time())
    sent = time.monotonic() - began
    stored = await sync_to_async(until_stored)(feeds)
    complete = await browsers.caught_up()
    results.table(
        f"{size.flood} events at once", ["", "events/s"],
        [
            ["put into the broker", size.flood / sent],
            ["stored by the events worker", size.flood / stored(began) if stored else None],
            ["shown by every browser", size.flood / (time.monotonic() - began) if complete else None],
        ],
    )  # fmt: skip
    if stored:
        results.data["ingested_per_second"] = size.flood / stored(began)


def until_stored(feeds: list[Feed]) -> Any:
    """Wait until the portal has every event; a function of the beginning that gives the seconds, or None."""
    from django.db.models import Sum

    from portal.jobs.models import Job

    deadline = time.monotonic() + 2 * CATCH_UP_SECONDS
    wanted = sum(feed.seq for feed in feeds)
    jobs = Job.objects.filter(pk__in=[feed.job.pk for feed in feeds])
    while (jobs.aggregate(total=Sum("last_seq"))["total"] or 0) < wanted:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    end = time.monotonic()
    return lambda began: end - began


async def api(results: Results, size: Size, base: str, owner: Seeded, processes: Processes) -> None:
    """Requests a second with 16 clients of one token."""
    job = owner.jobs[0].pk
    rows = []
    async with httpx.AsyncClient(
        base_url=f"{base}/api/v1/", headers={"Authorization": f"Bearer {owner.token}"}, timeout=60
    ) as client:
        for path in (f"jobs/{job}/", "jobs/?page_size=50", f"jobs/{job}/events/?limit=200", "datasets/"):
            took: list[float] = []
            until = time.monotonic() + size.api_seconds

            async def ask(path: str = path, took: list[float] = took, until: float = until) -> None:
                while time.monotonic() < until:
                    began = time.perf_counter()
                    (await client.get(path)).raise_for_status()
                    took.append(1000 * (time.perf_counter() - began))

            began, used = time.monotonic(), processes.cpu()["web"]
            await asyncio.gather(*(ask() for _ in range(16)))
            rate = len(took) / (time.monotonic() - began)
            cost = 1000 * (processes.cpu()["web"] - used) / len(took)
            rows.append([path.replace(str(job), "<job>"), rate, quantile(took, 0.5), quantile(took, 0.95), cost])
            say(f"API {rows[-1][0]}: {rate:.0f} requests/s")
    results.table("REST API, 16 clients", ["GET", "requests/s", "p50 ms", "p95 ms", "CPU ms"], rows)
    results.data["api"] = {row[0]: row[1] for row in rows}


async def pages(results: Results, size: Size, base: str, owner: Seeded, processes: Processes) -> None:
    """Pages of the tenant with the many jobs, one request at a time."""
    last = size.old_jobs // 25
    found = {
        "overview": "/",
        "jobs, first page": "/jobs/",
        "jobs, last page": f"/jobs/?page={last}",
        "jobs that failed": "/jobs/?status=failed",
        "a job": f"/jobs/{owner.jobs[0].pk}/",
        "new job": "/jobs/new/",
        "datasets": "/datasets/",
        "rewards": "/rewards/",
        "adapters": "/adapters/",
    }
    rows = []
    async with httpx.AsyncClient(base_url=base, cookies={"sessionid": owner.cookie}, timeout=60) as client:
        for name, path in found.items():
            took, length, used = [], 0, processes.cpu()["web"]
            for _ in range(size.page_repeats + 1):
                began = time.perf_counter()
                answer = await client.get(path)
                took.append(1000 * (time.perf_counter() - began))
                if answer.status_code != 200:
                    break
                length = len(answer.content)
            if length:  # a page that does not exist (any more) is left out
                cost = 1000 * (processes.cpu()["web"] - used) / len(took)
                rows.append([name, median(took[1:]), max(took[1:]), cost, length / 1024])
    results.table(
        f"Pages, {size.old_jobs:,} jobs in the tenant", ["page", "median ms", "longest ms", "CPU ms", "KiB"], rows
    )
    results.data["pages"] = {row[0]: row[1] for row in rows}


class Processes:
    """The installation's processes by name, their own children included."""

    def __init__(self) -> None:
        from portal.ops.installation import redis_server

        self._found: dict[str, psutil.Process] = {}
        for process in psutil.Process().children():
            command = " ".join(process.cmdline())  # Redis makes one word of its own
            for name, word in (("web", "uvicorn"), ("events", "celery"), ("redis", redis_server())):
                if word in command:
                    self._found[name] = process

    def _each(self, name: str) -> list[psutil.Process]:
        return [self._found[name], *self._found[name].children(recursive=True)]

    def cpu(self) -> dict[str, float]:
        """Processor seconds."""
        return {name: sum(sum(one.cpu_times()[:2]) for one in self._each(name)) for name in self._found}

    def memory(self) -> dict[str, float]:
        """MiB."""
        return {name: sum(one.memory_info().rss for one in self._each(name)) / 2**20 for name in self._found}


async def measure(results: Results, size: Size, port: int, children: list[Any], var: Path) -> None:
    from portal.ops.running import prepare
    from portal.ops.supervisor import Supervisor
    from tests.benchmarks.service_data import Feed, seed

    say("Preparing the database")
    await sync_to_async(prepare)()
    found = await sync_to_async(seed)(size.tenants, size.live_jobs, size.old_jobs)
    say(f"{size.old_jobs} jobs in the database; starting web, events worker and Redis")
    supervisor = Supervisor(children, var / "log", say)
    try:
        await supervisor.start()
        processes = Processes()
        feeds = [Feed(job) for one in found for job in one.jobs]
        browsers = Browsers(port, found, feeds, size.sockets)
        await browsers.connected(size.sockets)
        await asyncio.to_thread(send, feeds, len(feeds), time.time())
        if not await browsers.caught_up():
            raise RuntimeError(f"the events worker does not store anything; see {var / 'log'}")
        before = processes.memory()
        await live(results, size, browsers, feeds, processes)
        busy = processes.memory()
        await browsers.close()
        base = f"http://127.0.0.1:{port}"
        await api(results, size, base, found[0], processes)
        await pages(results, size, base, found[0], processes)
        after = processes.memory()
    finally:
        await supervisor.stop()
    results.table(
        "Resident memory, MiB", ["process", f"{size.sockets} sockets", "after the events", "after API and pages"],
        [[name, before[name], busy[name], after[name]] for name in before],
    )  # fmt: skip
    results.data["memory"] = after


def main() -> None:
    chosen = options(__doc__)
    size = SIZES[chosen.size]
    results = Results("D", "Service", chosen.size)
    with scratch() as var:
        for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "SECRET_KEY"):
            os.environ.pop(name, None)
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "MARLAAS_VAR": str(var),
            "RAY_ADDRESS": "none",  # no Ray is started
            "API_READ_RATE": "1000000/min",
            "MAX_STREAMS_PER_USER": "10000",
            "MAX_STREAMS_PER_TENANT": "10000",
            "LOG_LEVEL": "WARNING",
        }
        import django

        django.setup()
        from portal.ops.installation import children, free_port, private_folder

        port = free_port()
        started = [child for child in children("127.0.0.1", port) if child.name in PARTS]
        # This process sends to the same broker.
        os.environ |= {name: value for name, value in started[-1].env.items() if name.endswith("_URL")}
        try:
            asyncio.run(measure(results, size, port, started, var))
        finally:
            for path in private_folder(var).glob("*"):
                path.unlink(missing_ok=True)
            private_folder(var).rmdir()
    results.note(
        "As from the engine bridge: what happened since the last message goes out in messages of at most 500 events; "
        "the time an event waits for that counts."
    )
    results.save(chosen.out)


if __name__ == "__main__":
    main()
