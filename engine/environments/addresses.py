"""Connections to addresses that tenants name, never to the operator's own network unless the operator allows it
(``engine.spec.addresses``).

Invariant: the address that is checked is the address that is connected to. Redirects are followed by nobody.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from engine.environments.protocol import EpisodeError
from engine.spec import addresses

CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 10_000


class AddressRefused(EpisodeError):
    """The operator does not allow connections there."""


async def resolve(host: str, port: int, allow_private: bool) -> list[str]:
    """The addresses of a host, all of them allowed. Raises AddressRefused, OSError where the name is not known."""
    try:
        return await addresses.resolve(host, port, allow_private=allow_private)
    except addresses.AddressRefused as refused:
        raise _refusal(refused) from None


def _refusal(refused: addresses.AddressRefused) -> AddressRefused:
    return AddressRefused(
        f"the environment's host {refused.host} has the address {refused.address}, which is not on the public "
        "internet; only the operator can allow such addresses"
    )


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


class CheckedResolver(AbstractResolver):
    """aiohttp's way from names to addresses."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in await resolve(host, port, self._allow_private)
        ]  # fmt: skip

    async def close(self) -> None:
        pass


def make_client(allow_private: bool) -> aiohttp.ClientSession:
    """An HTTP client that connects to checked addresses only, decompresses nothing and reads no settings (proxies,
    netrc) from its environment; requests have to be told to follow no redirect. Its time limits are the caller's, the
    one for connecting apart. Call it in the event loop it is for.

    Its connections are found by the server they go to. httpx looks at every connection for every request, which cost
    most of a core with 250 episodes in flight.
    """

    def open_socket(info: tuple[Any, ...]) -> socket.socket:
        """An address that was written out has come by no resolver."""
        family, kind, protocol, _, (address, *_) = info
        try:
            addresses.require_public(address, address, allow_private=allow_private)
        except addresses.AddressRefused as refused:
            raise _refusal(refused) from None
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=CheckedResolver(allow_private),
        use_dns_cache=False,
        happy_eyeballs_delay=None,
        limit=max_connections(),
        socket_factory=open_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
    )


def max_connections() -> int:
    """Connections at once: half of the files this process may have open, if those are so many. More requests than that
    wait in turn."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(files // 2, MAX_CONNECTIONS)
