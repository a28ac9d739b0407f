"""A tool server that takes its time: ``python -m tests.benchmarks.slow_tool PORT TURNS SCALE``.

It speaks the protocol of ``engine.environments.remote``. Each step answers after a log-normal time, between 0.5 and 4 s
and about 1.2 s in the median, times SCALE. The time follows from the episode's seed, its turn and the model's reply, so
every mode of a benchmark meets the same waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sys
from statistics import NormalDist
from typing import Any

import uvicorn

MEDIAN, SIGMA, SHORTEST, LONGEST = 1.2, 0.6, 0.5, 4.0


def waiting_time(*of: object) -> float:
    """Log-normal seconds, cut to [SHORTEST, LONGEST], a function of what it is the time of."""
    digest = hashlib.sha256(repr(of).encode()).digest()
    place = (int.from_bytes(digest[:7]) + 0.5) / 2**56
    return min(LONGEST, max(SHORTEST, MEDIAN * math.exp(SIGMA * NormalDist().inv_cdf(place))))


class SlowTool:
    """The ASGI application."""

    def __init__(self, turns: int, scale: float) -> None:
        self._turns = turns
        self._scale = scale
        self._seeds: dict[str, int] = {}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = scope["method"] == "POST"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = await self._answer(scope["path"], json.loads(body) if body else {})
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        episode = body.get("episode", "")
        if path.endswith("/start"):
            self._seeds[episode] = body["seed"]
        elif path.endswith("/close"):
            self._seeds.pop(episode, None)
        elif path.endswith("/step"):
            turn, text = body["turn"], body["text"]
            await asyncio.sleep(self._scale * waiting_time(self._seeds[episode], turn, text))
            if turn >= self._turns:
                return {"done": True}
            return {"messages": [{"role": "user", "content": f"And {turn}+{len(text) % 7}?"}]}
        return {}


if __name__ == "__main__":
    port, turns, scale = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    uvicorn.run(SlowTool(turns, scale), host="127.0.0.1", port=port, log_level="error", access_log=False)
