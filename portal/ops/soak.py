"""A soak: many jobs of many tenants on a tiny model, disturbed at random, then counted.

The command's process is the installation's supervisor too, so what is killed are its own descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import transaction

from engine.events import TERMINAL_STATUSES
from portal.base_models.models import BaseModel
from portal.ops import soak_processes
from portal.ops.soak_accounts import (
    account_for,
    read_last_seqs,
    read_versions,
    shares,
    stage_seconds,
    unacknowledged,
)
from portal.ops.soak_client import ApiRefused, SoakClient
from portal.ops.soak_plan import KILLED, REWARDS, Disturbance, Plan, PlannedJob, dataset
from portal.ops.soak_report import Outcome
from portal.tenants.models import Role, Scope, Tenant
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user

MODEL = "tiny"
LOOK_SECONDS = 3.0
"""How often the soak looks at a job."""
START_SECONDS = 600.0
"""How long it may take until every tenant has made a step."""
FIND_SECONDS = 30.0
"""How long a kill waits for a process of its kind: it may have been killed just before."""
DELIVERY_SECONDS = 180.0
"""How long it may take, after the last job's end, until the portal has every event."""

Say = Callable[[str], None]


class SoakFailed(RuntimeError):
    """The soak could not be carried out; the message says why."""


@dataclass
class RunningJob:
    """One job of the soak."""

    plan: PlannedJob
    client: SoakClient
    job_id: str
    status: str = "queued"
    step: int = 0
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL_STATUSES

    async def look(self) -> None:
        job = await self.client.job(self.job_id)
        self.status, self.step = job["status"], job["step"]


class Soak:
    """See the module's docstring. ``run`` once."""

    def __init__(self, plan: Plan, address: str, finish_seconds: float, say: Say) -> None:
        """``finish_seconds``: how long the jobs may take to end after the last disturbance."""
        self._plan = plan
        self._address = address
        self._finish_seconds = finish_seconds
        self._say = say
        self._jobs: list[RunningJob] = []
        self._kills: Counter[str] = Counter()
        self._controls: Counter[str] = Counter()
        self._trouble: list[str] = []

    async def run(self) -> Outcome:
        """Start every job, disturb, let everything end, count."""
        began = time.monotonic()
        await make_model(settings.MARLAAS_VAR / "tiny-model")
        tokens = await sync_to_async(prepare_tenants)(self._plan)
        clients = [SoakClient(self._address, token) for token in tokens]
        await self._start_jobs(clients)
        watcher = asyncio.create_task(self._watch())
        await self._until_all_have_begun()
        memory_at_start = soak_processes.resident_bytes()
        await self._disturb()
        await self._finish()
        watcher.cancel()
        delivered = await self._until_delivered()
        memory_at_end = soak_processes.resident_bytes()
        outcome = await self._count(memory_at_start, memory_at_end, delivered, time.monotonic() - began)
        for client in clients:
            await client.close()
        return outcome

    # --- start ---

    async def _start_jobs(self, clients: list[SoakClient]) -> None:
        content = dataset(self._plan.seed)
        datasets = await asyncio.gather(*(client.upload("sums", content) for client in clients))
        rewards = [{name: await client.reward(name, spec) for name, spec in REWARDS.items()} for client in clients]
        for job in self._plan.jobs:
            client = clients[job.tenant]
            reward = rewards[job.tenant][job.reward]
            job_id = await client.start_job(job.name, MODEL, datasets[job.tenant], reward, job.settings)
            self._jobs.append(RunningJob(job, client, job_id))
        self._say(f"{len(self._jobs)} jobs of {len(clients)} tenants are submitted")

    async def _watch(self) -> None:
        """Keep what is known of the jobs up to date."""
        while True:
            for job in self._jobs:
                if not job.ended:
                    await job.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _until_all_have_begun(self) -> None:
        """Every tenant has made a step: from here on it counts."""
        tenants = range(len(self._plan.weights))
        deadline = time.monotonic() + START_SECONDS
        while not all(any(job.step or job.ended for job in self._jobs if job.plan.tenant == one) for one in tenants):
            if time.monotonic() > deadline:
                states = Counter(job.status for job in self._jobs)
                raise SoakFailed(f"not every tenant has made a step within {START_SECONDS:g} s; jobs: {dict(states)}")
            await asyncio.sleep(1)
        self._say("Every tenant has made a step; disturbing them from now on")

    # --- disturbances ---

    async def _disturb(self) -> None:
        began = time.monotonic()
        doing: list[asyncio.Task[None]] = []
        for disturbance in self._plan.disturbances:
            await asyncio.sleep(max(0.0, began + disturbance.at - time.monotonic()))
            act = self._kill if disturbance.what in KILLED else self._control
            doing.append(asyncio.create_task(act(disturbance)))
        for result in await asyncio.gather(*doing, return_exceptions=True):
            if isinstance(result, BaseException):
                self._trouble.append(f"{type(result).__name__}: {result}")

    async def _kill(self, disturbance: Disturbance) -> None:
        deadline = time.monotonic() + FIND_SECONDS
        while (pid := soak_processes.kill_one(disturbance.what, disturbance.draw)) is None:
            if time.monotonic() > deadline:
                self._say(f"{disturbance.at:6.1f} s  no {disturbance.what} ran within {FIND_SECONDS:g} s: none killed")
                return
            await asyncio.sleep(0.5)
        self._kills[disturbance.what] += 1
        self._say(f"{disturbance.at:6.1f} s  killed {disturbance.what} (pid {pid})")

    async def _control(self, disturbance: Disturbance) -> None:
        """Pause for a while, cancel, or change the priority of a job that has not ended."""
        cancels, changes = disturbance.what == "cancel", disturbance.what == "priority"
        jobs = [
            job
            for job in self._jobs
            if not (job.ended or job.cancelled)
            and (changes or not job.plan.steady)
            and (not cancels or job.plan.may_be_cancelled)
        ]
        if not jobs:
            return
        job = jobs[int(disturbance.draw * len(jobs))]
        self._say(f"{disturbance.at:6.1f} s  {disturbance.what} {job.plan.name}")
        self._controls[disturbance.what] += 1
        with contextlib.suppress(Ended):
            if cancels:
                job.cancelled = True
                await ask(job.client.control(job.job_id, "cancel"))
            elif disturbance.what == "pause":
                await ask(job.client.control(job.job_id, "pause"))
                await asyncio.sleep(disturbance.seconds)
                await ask(job.client.control(job.job_id, "resume"))
            else:
                await ask(job.client.change(job.job_id, priority=math.floor(disturbance.draw * 21) - 10))

    # --- end ---

    async def _finish(self) -> None:
        """Shorten the endless jobs and wait until all have ended, but not for ever."""
        self._say("No more disturbances; letting every job end")
        deadline = time.monotonic() + self._finish_seconds
        for job in self._jobs:
            if job.plan.endless and not job.cancelled:
                await self._shorten(job)
        while not all(job.ended for job in self._jobs):
            if time.monotonic() > deadline:
                self._trouble.append(f"not every job ended within {self._finish_seconds:g} s of the last disturbance")
                return
            await asyncio.sleep(1)
        self._say("Every job has ended")

    async def _shorten(self, job: RunningJob) -> None:
        """Let a job end two steps from now."""
        while not job.ended:
            await job.look()
            try:
                await ask(job.client.change(job.job_id, steps=job.step + 2))
            except Ended:
                return
            except ApiRefused:  # it has made more steps meanwhile
                continue
            return

    async def _until_delivered(self) -> bool:
        """Whether the portal came to have every event."""
        deadline = time.monotonic() + DELIVERY_SECONDS
        while await asyncio.to_thread(unacknowledged, settings.MARLAAS_VAR):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(1)
        return True

    async def _count(self, memory_at_start: int, memory_at_end: int, delivered: bool, seconds: float) -> Outcome:
        var: Path = settings.MARLAAS_VAR
        if not delivered:
            self._trouble.append(
                f"the portal had not stored every event {DELIVERY_SECONDS:g} s after the last job's end"
            )
        events = [await job.client.events(job.job_id) for job in self._jobs]
        ids = [job.job_id.replace("-", "") for job in self._jobs]
        last_seqs = await asyncio.to_thread(read_last_seqs, var)
        accounts = [
            account_for(
                job.plan.name,
                job.plan.tenant,
                # A cancellation may come too late.
                ("cancelled", "succeeded") if job.cancelled else ("succeeded",),
                of_job,
                last_seqs.get(job_id, 0),
                await asyncio.to_thread(read_versions, var, job_id),
            )
            for job, job_id, of_job in zip(self._jobs, ids, events, strict=True)
        ]
        by_tenant = [(job.plan.tenant, of_job) for job, of_job in zip(self._jobs, events, strict=True)]
        given, busy_seconds = shares(self._plan.weights, by_tenant)
        return Outcome(
            seed=self._plan.seed,
            seconds=seconds,
            accounts=accounts,
            events=sum(len(of_job) for of_job in events),
            stages=stage_seconds(
                (" of a hanging reward" if job.plan.reward == "hanging" else "", of_job)
                for job, of_job in zip(self._jobs, events, strict=True)
            ),
            shares=given,
            busy_seconds=busy_seconds,
            memory_at_start=memory_at_start,
            memory_at_end=memory_at_end,
            kills=dict(self._kills),
            controls=dict(self._controls),
            trouble=self._trouble,
        )


class Ended(Exception):
    """The job had ended before it could be controlled."""


async def ask(request: Any) -> None:
    """Await a request that controls a job. Raises Ended where the portal says that it is too late."""
    try:
        await request
    except ApiRefused as error:
        if error.status == 409:
            raise Ended from error
        raise


async def make_model(folder: Path) -> None:
    """Write the tiny random model; the engine does it, because the portal has no torch."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine", "tiny", str(folder), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    if process.returncode:
        raise SoakFailed(f"the tiny model cannot be made:\n{output.decode(errors='replace')}")


@transaction.atomic
def prepare_tenants(plan: Plan) -> list[str]:
    """Offer the model and make every tenant with one user; an API token of each."""
    BaseModel.objects.create(
        id=MODEL,
        source=BaseModel.Source.LOCAL,
        location=str(settings.MARLAAS_VAR / "tiny-model"),
        context_length=192,
        max_lora_rank=8,
        dtype=BaseModel.Dtype.FLOAT32,
    )
    tokens = []
    for index, weight in enumerate(plan.weights):
        slug = f"tenant-{index}"
        tenant = create_tenant(name=slug, slug=slug)
        Tenant.objects.filter(pk=tenant.pk).update(weight=weight, max_active_jobs=len(plan.jobs))
        user = create_user(username=slug, email=f"{slug}@example.org", password=secrets.token_urlsafe(12))
        add_member(tenant=tenant, user=user, role=Role.OWNER)
        tokens.append(create_api_token(tenant=tenant, user=user, name="soak", scopes=[Scope.ADMIN])[1])
    return tokens
