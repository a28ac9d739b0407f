"""Which addresses on the network tenants may have the service connect to: the public internet, nothing of the
operator's. Engine (remote environments) and portal (webhooks) go by this one check; neither follows a redirect.

Invariant: the address that is checked is the address that is connected to. A host name is resolved once for each
connection, every address it has is checked, and the connection is made to one of those, so a name that resolves
otherwise the next moment (DNS rebinding) gains nothing. Callers connect to what ``resolve``
returned, never to the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is routed on the internet (RFC 4291, IANA). Outside of it lie, among others, loopback, local and
multicast addresses, and IPv4 addresses in IPv6 form: compatible (``::/96``), translated (``::ffff:0:0:0/96``), and
those a gateway of NAT64 would reach (``64:ff9b::/96``, ``64:ff9b:1::/48``)."""
REFUSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "2002::/16",  # 6to4: stands for an IPv4 address, which a relay would reach
        "2001::/23",  # protocol assignments, Teredo among them, which embeds IPv4 addresses too
        "2001:db8::/32",
        "3fff::/20",  # both: documentation
        "192.0.0.0/24",  # protocol assignments; a cloud keeps metadata at .192
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's metadata and wire server: public by its number, local to the machine
    )
)
"""Beside what ``ipaddress`` knows to be no part of the internet, e.g. 169.254.169.254 and 100.100.100.200, where other
clouds keep a machine's metadata."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(Exception):
    """A host has an address that is not on the public internet."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} has the address {address}, which is not on the public internet.")
        self.host, self.address = host, address


def is_public(address: str) -> bool:
    """Whether an IP address is on the public internet: not private, loopback, link-local, shared, reserved, multicast,
    of a cloud's metadata, nor one that a gateway turns into such a one. Raises ValueError for what is no IP address."""
    ip: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip not in GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not any(ip in network for network in REFUSED)


def require_public(host: str, address: str, *, allow_private: bool) -> None:
    """Raises AddressRefused for an address of ``host`` that is not public, unless private ones are allowed."""
    if not allow_private and not is_public(address):
        raise AddressRefused(host, address)


async def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, all of them allowed.

    Raises:
        AddressRefused: one of them is not on the public internet, and private ones are not allowed.
        OSError: the name is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        require_public(host, address, allow_private=allow_private)
    return addresses
