"""Fixtures of the sandbox's tests: every level that this machine can be expected to have."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.sandbox.inside import landlock
from engine.sandbox.pool import SandboxPool
from engine.sandbox.runtime import ConfiningLevel

HAVE_LANDLOCK = landlock.version() >= landlock.OLDEST


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param(
            "bubblewrap",
            marks=pytest.mark.skipif(not (shutil.which("bwrap") and HAVE_LANDLOCK), reason="no bubblewrap here"),
        ),
        pytest.param("landlock", marks=pytest.mark.skipif(not HAVE_LANDLOCK, reason="no Landlock here")),
    ],
)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    """A pool on each level, one for all tests of a module."""
    level: ConfiningLevel = request.param
    pool = SandboxPool(3, level=level)
    yield pool
    await asyncio.wait_for(pool.close(), 60)
