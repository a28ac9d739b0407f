"""A WebSocket client of the whole ASGI application, session and origin check included."""

from __future__ import annotations

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

from portal.asgi import application


class Socket(ApplicationCommunicator):
    """One connection; ``client`` lends its session."""

    def __init__(self, path: str, client: Client | None, origin: str = "http://localhost") -> None:
        headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
        if client:
            session = client.cookies[settings.SESSION_COOKIE_NAME].value
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={session}".encode()))
        address, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "path": address,
            "query_string": query.encode(),
            "headers": headers,
            "subprotocols": [],
        }
        super().__init__(application, scope)

    async def connect(self) -> bool:
        """Whether the application accepted."""
        await self.send_input({"type": "websocket.connect"})
        return (await self.receive_output(timeout=10))["type"] == "websocket.accept"

    async def receive(self, timeout: float = 10) -> Any:
        """The next message with something in it, which must be JSON."""
        message = await self._receive_past_beats(timeout)
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def receive_close(self, timeout: float = 10) -> int:
        """The code the application closes with."""
        message = await self._receive_past_beats(timeout)
        assert message["type"] == "websocket.close", message
        await self.disconnect()
        return int(message["code"])

    async def _receive_past_beats(self, timeout: float) -> Any:
        while True:
            message = await self.receive_output(timeout)
            if message["type"] != "websocket.send" or json.loads(message["text"]) != {"alive": True}:
                return message

    async def disconnect(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(10)
