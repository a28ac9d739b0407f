"""How many event streams and WebSockets may be open at once: of one API token, one user, one tenant.

Every open one holds a place of each. A place is a key of the cache that all web processes share; taking it is atomic,
so no two streams share the last one, and it runs out by itself unless its stream keeps it. So a server that dies takes
no place with it for longer than ``LEASE_SECONDS``, and there is no counter that could drift. Without the cache nothing
is counted: reading events does not depend on it.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from redis.exceptions import RedisError

from portal.errors import Limit, TooMany
from portal.tenants.models import ApiToken, Tenant

logger = logging.getLogger(__name__)

LEASE_SECONDS = 90
"""Longer than a waiting stream takes to look whether there is something new."""
RENEW_SECONDS = 10
RETRY_SECONDS = 30
LOOK_AT = 100
"""Places looked at in one request to the cache."""


@dataclass(frozen=True)
class Scope:
    """What may have so many places."""

    kind: str
    """As the error names it."""
    owner: str
    words: str
    """Whose they are, at the beginning of a sentence."""
    limit: int

    def keys(self) -> Iterator[str]:
        return (f"{self.kind}.{self.owner}.{number}" for number in range(self.limit))


class Places:
    """Those one stream or socket holds."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.scopes = scopes
        self._holder = uuid.uuid4().hex
        self._held: dict[Scope, str] = {}
        self._kept_at = time.monotonic()

    def take(self) -> None:
        """Raises TooMany, with none held, where one of the limits is reached."""
        try:
            for scope in self.scopes:
                self._take(scope)
        except TooMany:
            self.release()
            raise
        except RedisError as error:
            logger.warning("Open streams are not counted, because Redis cannot be reached: %s", error)

    def keep(self) -> bool:
        """Call it now and then; False where a place was lost and no other is free, so that the stream has to end."""
        if time.monotonic() - self._kept_at < RENEW_SECONDS:
            return True
        try:
            for scope, key in list(self._held.items()):
                if cache.get(key) != self._holder or not cache.touch(key, LEASE_SECONDS):
                    del self._held[scope]
                    self._take(scope)  # it had run out: the process was stopped, or the cache was emptied
        except TooMany:
            return False
        except RedisError as error:
            logger.warning("Open streams are not counted, because Redis cannot be reached: %s", error)
        self._kept_at = time.monotonic()
        return True

    def release(self) -> None:
        """Give the places back; harmless where that was done."""
        try:
            for key in self._held.values():
                if cache.get(key) == self._holder:
                    cache.delete(key)
        except RedisError as error:
            logger.info("Places of a stream are not given back, they run out by themselves: %s", error)
        self._held.clear()

    def _take(self, scope: Scope) -> None:
        keys = scope.keys()
        while chunk := list(itertools.islice(keys, LOOK_AT)):
            taken = cache.get_many(chunk)
            for key in chunk:
                if key not in taken and cache.add(key, self._holder, LEASE_SECONDS):
                    self._held[scope] = key
                    return
        raise TooMany(
            f"{scope.words} may have {scope.limit} event streams and WebSockets open at once, and so many are.",
            hint=f"Close one, or try again in {RETRY_SECONDS} seconds.",
            limit=Limit(scope.kind, used=scope.limit, limit=scope.limit, retry_after=RETRY_SECONDS),
        )


def places_of_token(token: ApiToken) -> Places:
    """For a stream of the API; its user's and its tenant's count too."""
    of_token = Scope("streams_per_token", str(token.pk), "An API token", settings.MAX_STREAMS_PER_TOKEN)
    return Places([of_token, *_shared(token.tenant, token.user)])


def places_of_member(tenant: Tenant, user: User) -> Places:
    """For a socket of a page."""
    return Places(_shared(tenant, user))


def _shared(tenant: Tenant, user: User) -> list[Scope]:
    return [
        Scope("streams_per_user", str(user.pk), "A user", settings.MAX_STREAMS_PER_USER),
        Scope("streams_per_tenant", str(tenant.pk), "A tenant", settings.MAX_STREAMS_PER_TENANT),
    ]
