"""Connections to addresses that tenants name, never to the operator's own network unless the operator allows it.

Invariant: the address that is checked is the address that is connected to. A host name is resolved once, every address
it has is checked, and the connection is made to one of those, so a name that resolves otherwise the next moment (DNS
rebinding) gains nothing. Redirects are followed by nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from engine.environments.protocol import EpisodeError

CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 10_000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

EMBEDDING = [
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("64:ff9b:1::/48"),
    ipaddress.ip_network("2002::/16"),
]
"""IPv6 ranges (NAT64, 6to4) that stand for IPv4 addresses, which a gateway would reach."""


class AddressRefused(EpisodeError):
    """The operator does not allow connections there."""


def is_public(address: str) -> bool:
    """Whether an address is on the public internet: not private, loopback, link-local, shared, reserved or
    multicast."""
    ip: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif any(ip in network for network in EMBEDDING):
            return False
    return ip.is_global and not ip.is_multicast


async def resolve(host: str, port: int, allow_private: bool) -> list[str]:
    """The addresses of a host, all of them allowed.

    Raises:
        AddressRefused: one of them is not on the public internet, and the operator allows no other.
        OSError: the name is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not allow_private and not is_public(address):
            raise AddressRefused(
                f"the environment's host {host} has the address {address}, which is not on the public internet; only "
                "the operator can allow such addresses"
            )
    return addresses


async def connect(host: str, port: int, allow_private: bool) -> socket.socket:
    """A connected TCP socket to an allowed address of the host. Raises AddressRefused, OSError."""
    last = OSError(f"{host} has no address")
    for address in await resolve(host, port, allow_private):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
            return connection
        except OSError as error:  # TimeoutError is one
            connection.close()
            last = error
        except BaseException:
            connection.close()
            raise
    raise last


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's way to the network, to checked addresses only."""

    def __init__(self, allow_private: bool) -> None:
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
            addresses = await resolve(host, port, self._allow_private)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error.strerror or error}") from error
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("environments are not reached through unix sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def make_client(allow_private: bool) -> httpx.AsyncClient:
    """An HTTP client that connects to checked addresses only, follows no redirect and reads no settings (proxies,
    netrc) from its environment. Its time limits are the caller's, the one for connecting apart."""
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    # httpx has no parameter for the backend; its transport only ever uses this pool.
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=ssl.create_default_context(),
        max_connections=max_connections(),
        max_keepalive_connections=64,
        network_backend=CheckedBackend(allow_private),
    )
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        follow_redirects=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
    )


def max_connections() -> int:
    """Connections at once: half of the files this process may have open, if those are so many. More requests than that
    wait in turn."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(files // 2, MAX_CONNECTIONS)
