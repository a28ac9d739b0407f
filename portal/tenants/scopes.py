"""What the scopes of API tokens cover, and whose tokens may have them."""

from __future__ import annotations

from collections.abc import Iterable

from portal.tenants.models import Role, Scope

NEEDED_ROLE = {
    Scope.READ: Role.VIEWER,
    Scope.ADAPTERS_READ: Role.VIEWER,
    Scope.JOBS_WRITE: Role.DEVELOPER,
    Scope.DATASETS_WRITE: Role.DEVELOPER,
    Scope.REWARDS_WRITE: Role.DEVELOPER,
    Scope.ADMIN: Role.OWNER,
}
"""The least role whose tokens may have a scope."""

WRITING = {Scope.JOBS_WRITE, Scope.DATASETS_WRITE, Scope.REWARDS_WRITE}


def covered_scopes(scopes: Iterable[str]) -> set[str]:
    """``scopes`` and those they include: whoever may write may read, ``admin`` may all."""
    held = set(scopes)
    if Scope.ADMIN in held:
        return set(Scope.values)
    return held | ({Scope.READ.value} if held & WRITING else set())
