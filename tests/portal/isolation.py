"""Walks over the routes that name objects: what one tenant owns must be 404 for another, on every one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

METHODS = ("get", "post", "put", "patch", "delete")
ARGUMENT = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass(frozen=True)
class Route:
    """A route that takes ids."""

    pattern: str
    arguments: tuple[str, ...]

    def path(self, ids: dict[str, Any]) -> str:
        """The address for these ids; KeyError names an argument no id is known for: add it to ``Owned.ids``."""
        return "/" + ARGUMENT.sub(lambda match: str(ids[match[1]]), self.pattern)


def routes_with_ids(*, under: str = "", without: tuple[str, ...] = ()) -> list[Route]:
    """Every route below ``under`` that takes an id, those starting with any of ``without`` left out."""
    return [
        Route(pattern, arguments)
        for pattern in _patterns(get_resolver(), "")
        if pattern.startswith(under)
        and not pattern.startswith(without)
        and (arguments := tuple(ARGUMENT.findall(pattern)))
        and not pattern.endswith("<path:rest>")
    ]


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
