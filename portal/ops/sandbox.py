"""What the engine's sandbox withstands on this machine, as the portal knows it.

The portal imports none of the engine: it has ``python -m engine.sandbox`` attack the sandbox, and reads the report that
it leaves as ``sandbox.json`` in the installation's folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings

SELF_TEST = [sys.executable, "-m", "engine.sandbox", "--save"]
UNKNOWN = "unknown"
CONFINED = ("bubblewrap", "landlock")
"""Levels at which tenants' Python is run."""


def environment() -> dict[str, str]:
    """Of the self-test: it writes into this installation's folder."""
    return os.environ | {"MARLAAS_VAR": str(settings.MARLAAS_VAR)}


def read_report() -> dict[str, Any] | None:
    """The last report: ``level``, ``attacks``, ``unusable``, ``tested_at``; None before the first self-test."""
    try:
        report = json.loads((settings.MARLAAS_VAR / "sandbox.json").read_text())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def level() -> str:
    """``bubblewrap``, ``landlock``, ``none``, or ``unknown`` before the first self-test."""
    return str((read_report() or {}).get("level", UNKNOWN))


async def run_self_test(say: Callable[[str], None]) -> None:
    """Attack the sandbox, keep the report, and say the level and what follows from it. Ended when cancelled."""
    process = await asyncio.create_subprocess_exec(
        *SELF_TEST, env=environment(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    found = await asyncio.to_thread(level)
    if found in CONFINED:
        say(f"Sandbox for tenants' Python: {found}; its self-test passed.")
    else:
        say("No sandbox for tenants' Python, so it is refused; `manage.py sandbox` says why.")
