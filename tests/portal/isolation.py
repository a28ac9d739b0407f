"""Walks over all addresses: what one tenant owns must be 404 for another, on every route, method, socket and file.

A new route is walked as soon as it exists. One that names an object by a new kind of id fails until ``Owned.ids`` knows
such an id; one that takes something else fails until it is listed here, with what guards it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

METHODS = ("get", "post", "put", "patch", "delete")
ARGUMENT = re.compile(r"<(?:\w+:)?(\w+)>")

OUTSIDE = {
    "admin/": "operators only; Django's own permissions",
    "engine/": "operators only, 404 for everybody else",
    "metrics": "operators and their Prometheus only, 404 for everybody else",
    "accounts/": "the signed-in user's own account; allauth",
    "impersonation/": "admins only, 404 for everybody else",
}
"""Addresses that show nothing of a tenant to its members, by prefix."""

CAPABILITIES = {
    "download/<str:token>": "signed link to an adapter",
    "download/export/<str:token>": "signed link to an export",
    "invitations/<str:secret>/": "secret link of an invitation",
    "api/v1/<path:rest>": "whatever is no address of the API",
}
"""Routes whose argument is itself the permission."""


@dataclass(frozen=True)
class Route:
    """A route; ``arguments`` are empty for one that names no object."""

    pattern: str
    arguments: tuple[str, ...]

    def path(self, ids: dict[str, Any]) -> str:
        """The address for these ids; KeyError names an argument no id is known for: add it to ``Owned.ids``."""
        return "/" + ARGUMENT.sub(lambda match: str(ids[match[1]]), self.pattern)


def all_routes() -> list[Route]:
    """Every HTTP route of the portal."""
    return [Route(pattern, tuple(ARGUMENT.findall(pattern))) for pattern in _patterns(get_resolver(), "")]


def routes_with_ids(*, under: str = "", without: tuple[str, ...] = ()) -> list[Route]:
    """Every route below ``under`` that takes an id, those starting with any of ``without`` left out."""
    return [
        route
        for route in all_routes()
        if route.pattern.startswith(under)
        and not route.pattern.startswith(without)
        and route.arguments
        and not route.pattern.endswith("<path:rest>")
    ]


def object_routes() -> list[Route]:
    """Every route that names an object of a tenant by an id."""
    return [
        route
        for route in all_routes()
        if route.arguments and not route.pattern.startswith(tuple(OUTSIDE)) and route.pattern not in CAPABILITIES
    ]


def plain_routes() -> list[Route]:
    """Every route that names nothing, and so must show the own tenant's objects only."""
    return [route for route in all_routes() if not route.arguments and not route.pattern.startswith(tuple(OUTSIDE))]


def socket_patterns() -> list[str]:
    """The addresses of every WebSocket."""
    from portal.live.routing import websocket_urlpatterns

    return [str(entry.pattern) for entry in websocket_urlpatterns]


def _patterns(resolver: URLResolver, prefix: str) -> Iterator[str]:
    for entry in resolver.url_patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLPattern):
            yield pattern
        else:
            yield from _patterns(entry, pattern)


def assert_foreign(client: Client, route: Route, foreign_ids: dict[str, Any]) -> None:
    """Every method the route has answers 404, and at least one does."""
    path = route.path(foreign_ids)
    answers = {method: getattr(client, method)(path).status_code for method in METHODS}
    assert set(answers.values()) <= {404, 405}, f"{path} answered {answers}"
    assert 404 in answers.values(), f"{path} answered {answers}"
