"""ASGI: a dataset larger than the tenant may send is refused before its bytes are received.

Django writes a request's body to disk before any of its code runs. Where Content-Length says that the body is above the
limit, or where there is none, this stands before it: the body of whoever may not send it is withheld (the view then
refuses by the length, or the sign-in), and one of unknown length is cut off at the limit.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from typing import Any

from channels.db import database_sync_to_async
from django.contrib.auth import get_user
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse

from portal.tenants.selectors import find_api_token, get_current_membership

PATHS = ("/api/v1/datasets/", "/api/v1/dataset-uploads/", "/datasets/")
FREE_BYTES = 1 << 20
"""Bodies up to this size are not looked at; also what a form adds to its file."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Application = Callable[[Scope, Receive, Any], Awaitable[None]]


class BodyLimit:
    """Wraps Django's application."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] in {"POST", "PUT"} and scope["path"].startswith(PATHS):
            length = _content_length(scope)
            if length is None or length > FREE_BYTES:
                limit = await database_sync_to_async(_find_limit)(scope)
                receive = _cut(receive, limit) if length is None else receive
                if length is not None and length > limit:
                    if not scope["path"].startswith("/api/"):
                        await _refuse(scope, send, limit)
                        return
                    receive = _nothing
        await self.application(scope, receive, send)


def _content_length(scope: Scope) -> int | None:
    """None for a body of unknown length."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    value = headers.get(b"content-length", b"0")
    return int(value) if value.isdigit() else None


def _find_limit(scope: Scope) -> int:
    """Bytes that whoever asks may send; ``FREE_BYTES`` for the signed out."""
    request = ASGIRequest(scope, io.BytesIO())
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        found = find_api_token(secret.strip())
        return found[0].tenant.max_dataset_bytes + FREE_BYTES if found else FREE_BYTES
    SessionMiddleware(lambda _: HttpResponse()).process_request(request)
    membership = get_current_membership(user=get_user(request), session=request.session)
    return membership.tenant.max_dataset_bytes + FREE_BYTES if membership else FREE_BYTES


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _cut(receive: Receive, limit: int) -> Receive:
    """The same body, ended as if the client had gone where it is above ``limit`` bytes."""
    received = 0

    async def receive_some() -> dict[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= limit else {"type": "http.disconnect"}

    return receive_some


async def _refuse(scope: Scope, send: Any, limit: int) -> None:
    text = f"The file is larger than your tenant's limit of {limit - FREE_BYTES:,} bytes."
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
