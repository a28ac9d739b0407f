"""What a tenant's automation does, over the REST API: upload, start a job, follow it, download the adapter."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx

from engine.events import TERMINAL_STATUSES
from portal.ops.demo_tasks import DemoTask


class ApiRefused(RuntimeError):
    """The API answered with an error; the message is the API's own."""


class DemoClient:
    """One tenant's client. Use it in ``async with``."""

    def __init__(self, address: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=f"{address}/api/v1/", headers=headers, timeout=60)

    async def __aenter__(self) -> DemoClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def start_job(self, task: DemoTask) -> str:
        """Upload the task's dataset and reward, start its job, return the job's id."""
        file = {"file": ("demo.jsonl", task.jsonl())}
        dataset = await self._post("datasets/", data={"name": task.dataset}, files=file)
        reward = await self._post("reward-functions/", json={"name": task.reward, "spec": task.reward_spec})
        base_models = await self._get("base-models/")
        job = await self._post(
            "jobs/",
            json={
                "name": task.job,
                "base_model": base_models["results"][0]["id"],
                "dataset_version": dataset["id"],
                "reward_version": reward["id"],
                "settings": task.settings,
            },
        )
        return str(job["id"])

    async def cancel_jobs(self) -> None:
        """Cancel what an earlier, interrupted demo left running."""
        for job in (await self._get("jobs/"))["results"]:
            if job["status"] not in TERMINAL_STATUSES:
                await self._post(f"jobs/{job['id']}/cancel/")

    async def job(self, job_id: str) -> dict[str, Any]:
        return await self._get(f"jobs/{job_id}/")

    async def step_metrics(self, job_id: str) -> list[dict[str, float]]:
        """Metrics of every step, in order."""
        metrics, after, finished = [], 0, False
        while not finished:
            page = await self._get(f"jobs/{job_id}/events/", params={"type": "step", "after": after, "limit": 1000})
            metrics += [event["payload"]["metrics"] for event in page["events"]]
            finished, after = not page["events"], page["last_seq"]
        return metrics

    async def download_adapter(self, job_id: str, folder: Path) -> tuple[Path, str] | None:
        """Download the job's final adapter by its signed link into ``folder``; its path and sha256, checked."""
        adapters = (await self._get(f"jobs/{job_id}/adapters/"))["results"]
        final = next((adapter for adapter in adapters if adapter["final"]), None)
        if final is None:
            return None
        link = await self._post(f"adapters/{final['id']}/link/")
        async with httpx.AsyncClient(timeout=60) as anyone:  # the link needs no token
            content = (await anyone.get(link["url"])).raise_for_status().content
        weights, digest = await asyncio.to_thread(_unpack, content, folder)
        if digest != final["sha256"]:
            raise ApiRefused(f"{weights} has sha256 {digest}, the portal says {final['sha256']}")
        return weights, digest

    async def _get(self, path: str, **arguments: Any) -> dict[str, Any]:
        return self._read(await self._http.get(path, **arguments))

    async def _post(self, path: str, **arguments: Any) -> dict[str, Any]:
        return self._read(await self._http.post(path, **arguments))

    @staticmethod
    def _read(response: httpx.Response) -> dict[str, Any]:
        if response.is_error:
            raise ApiRefused(f"{response.request.method} {response.request.url.path}: {response.text[:1000]}")
        content: dict[str, Any] = response.json()
        return content


def _unpack(content: bytes, folder: Path) -> tuple[Path, str]:
    """Extract the downloaded zip; path and sha256 of the weights in it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
    (weights,) = folder.rglob("adapter_model.safetensors")
    return weights, hashlib.sha256(weights.read_bytes()).hexdigest()
