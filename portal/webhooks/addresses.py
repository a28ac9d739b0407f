"""HTTP to addresses that tenants name, never into the operator's own network (``engine.spec.addresses``).

Invariant: the address that is checked is the address that is connected to. No redirect is followed, no proxy or netrc
of the environment is used, and of an answer no more is read than is kept.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from engine.spec.addresses import is_public, resolve

LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")
MAX_CONNECTIONS = 100


def fault_of(url: str, *, allow_private: bool) -> str:
    """Why nothing may be sent to ``url``, as far as can be told without DNS; empty where nothing speaks against it.

    Whether a host's addresses are public is checked at every connection.
    """
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        return "is no address; write it like https://example.org/webhooks"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an address that starts with https:// (or http://)"
    if "@" in parts.netloc:
        return "must not hold a user name or password; check the signature of what you receive instead"
    if parts.fragment or any(character.isspace() or not character.isprintable() for character in url):
        return "must hold no spaces and no part after #"
    if not allow_private and _is_local(host):
        return "must be reachable on the public internet: this is a private or local address"
    return ""


def _is_local(host: str) -> bool:
    try:
        return not is_public(host)
    except ValueError:  # a name
        return "." not in host or host.endswith(LOCAL_SUFFIXES)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's way to the network, to checked addresses only. TLS is still for the host's name."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await resolve(host, port, allow_private=self._allow_private)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error.strerror or error}") from error
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.UnsupportedProtocol("Webhooks are not sent to unix sockets.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def make_client(*, allow_private: bool) -> httpx.AsyncClient:
    """A client that connects to checked addresses only. Its time limits are the caller's."""
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    # httpx has no parameter for the backend; its transport only ever uses this pool.
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=_ssl_context(),
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=0,
        network_backend=CheckedBackend(allow_private=allow_private),
    )
    return httpx.AsyncClient(
        transport=transport,
        timeout=None,
        follow_redirects=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "MARLaaS-Webhooks/1"},
    )
