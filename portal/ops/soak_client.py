"""A tenant's automation during a soak: the REST API, asked again while the installation is being disturbed."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import httpx

PATIENCE_SECONDS = 120.0
"""How long one request is repeated while the web server is down or cannot reach what it needs."""
TRY_AGAIN_SECONDS = 1.0


class Unreachable(RuntimeError):
    """The API did not answer for ``PATIENCE_SECONDS``."""


class ApiRefused(RuntimeError):
    """The API answered with an error of the request; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class SoakClient:
    """One tenant's client. Requests are idempotent, so each is repeated until it is answered."""

    def __init__(self, address: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=f"{address}/api/v1/", headers=headers, timeout=30)

    async def close(self) -> None:
        await self._http.aclose()

    async def upload(self, name: str, content: bytes) -> str:
        """Id of a new dataset version."""
        answer = await self._ask("POST", "datasets/", data={"name": name}, files={"file": ("rows.jsonl", content)})
        return str(answer["id"])

    async def reward(self, name: str, spec: dict[str, Any]) -> str:
        """Id of a new reward version."""
        return str((await self._ask("POST", "reward-functions/", json={"name": name, "spec": spec}))["id"])

    async def start_job(self, name: str, base_model: str, dataset: str, reward: str, settings: dict[str, Any]) -> str:
        """Id of a new job, of one job however often the request had to be repeated."""
        body = {
            "name": name,
            "base_model": base_model,
            "dataset_version": dataset,
            "reward_version": reward,
            "settings": settings,
        }
        return str((await self._ask("POST", "jobs/", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}))["id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        return await self._ask("GET", f"jobs/{job_id}/")

    async def control(self, job_id: str, what: str) -> None:
        """``pause``, ``resume`` or ``cancel``."""
        await self._ask("POST", f"jobs/{job_id}/{what}/")

    async def change(self, job_id: str, **changes: int) -> None:
        """Change ``priority`` or ``steps``."""
        await self._ask("PATCH", f"jobs/{job_id}/", json=changes)

    async def events(self, job_id: str) -> list[dict[str, Any]]:
        """All events of a job, in the order of the API."""
        events: list[dict[str, Any]] = []
        after = 0
        while page := (await self._ask("GET", f"jobs/{job_id}/events/", params={"after": after, "limit": 1000})):
            if not page["events"]:
                break
            events += page["events"]
            after = page["last_seq"]
        return events

    async def _ask(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Raises ApiRefused where repeating would not help, Unreachable where it did not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                response = await self._http.request(method, path, **arguments)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if not response.is_error:
                    answer: dict[str, Any] = response.json()
                    return answer
                trouble = f"{response.status_code}: {response.text[:500]}"
                if not response.is_server_error and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    raise ApiRefused(response.status_code, f"{method} {path}: {trouble}")
            if time.monotonic() > deadline:
                raise Unreachable(f"{method} {path}: {trouble}")
            await asyncio.sleep(TRY_AGAIN_SECONDS)
