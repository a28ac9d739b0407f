"""What strangers' code may read, and the command that starts a worker at each level."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

ConfiningLevel = Literal["bubblewrap", "landlock"]
Level = Literal["bubblewrap", "landlock", "none"]

PACKAGES = (
    "sympy",
    "mpmath",
    "math_verify",
    "latex2sympy2_extended",
    "antlr4",
    "networkx",
    "dateutil",
    "six",
    "jsonpath",
)
"""Packages beside the standard library that tenant code may import: pure Python, computing only."""

METADATA = ("antlr4-python3-runtime",)
"""Distributions whose version those packages ask for."""

MEMORY_BYTES = 512 * 1024**2
TMP_BYTES = 4 * 1024**2
TMP_FILES = 256
ROOT = Path(__file__).resolve().parents[2]
BASE_UID = 1_900_000_000
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The same order of sets every time. Removed before any call."""
SHARED_LIBRARIES = ("/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
TIME_ZONES = "/usr/share/zoneinfo"


@dataclass(frozen=True)
class Runtime:
    """Files of this machine that a worker can read."""

    python: str
    packages: dict[str, str]
    """Folder or file of each package."""
    metadata: dict[str, str]
    """Folder of each distribution's metadata."""
    paths: tuple[str, ...]
    """All that is readable: interpreter, standard library, shared libraries, packages, the worker's own code."""


@lru_cache
def runtime() -> Runtime:
    python = os.path.realpath(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = {os.path.dirname(os.__file__), f"{sys.base_exec_prefix}/{sys.platlibdir}/{version}"}
    packages = {name: place for name in PACKAGES if (place := _place(name))}
    own = [str(ROOT / path) for path in ("engine/__init__.py", "engine/sandbox/__init__.py", "engine/sandbox/inside")]
    libraries = [*SHARED_LIBRARIES, *glob.glob(f"{sys.base_prefix}/lib/libpython*.so*"), TIME_ZONES]
    metadata = {name: place for name in METADATA if (place := _metadata(name))}
    paths = [python, *sorted(standard), *libraries, *packages.values(), *metadata.values(), *own]
    return Runtime(python, packages, metadata, tuple(path for path in paths if os.path.exists(path)))


def command(level: ConfiningLevel) -> list[str]:
    """What starts a worker; run it with ``ENVIRONMENT`` alone, in ``ROOT``. Raises FileNotFoundError: no bubblewrap."""
    python = runtime().python
    worker = [python, "-B", "-s", "-S", "-m", "engine.sandbox.inside.worker"]
    if level == "landlock":
        return worker
    if (bubblewrap := shutil.which("bwrap")) is None:
        raise FileNotFoundError("bubblewrap (bwrap) is not installed")
    paths = runtime().paths
    # Made beforehand: bubblewrap gives those it makes the rights of the source, which the worker's user may lack.
    parents = sorted(
        {str(parent) for path in (*paths, os.devnull) for parent in Path(path).parents if str(parent) != "/"}
    )
    folders = [option for parent in parents for option in ("--perms", "0755", "--dir", parent)]
    binds = [option for path in paths for option in ("--ro-bind", path, path)]
    if os.getuid() == 0:
        identity = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        identity = ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    return [
        python, "-B", "-I", "-S", str(ROOT / "engine/sandbox/launch.py"),
        bubblewrap, *identity, "--cap-add", "CAP_SYS_ADMIN",
        "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--hostname", "sandbox", "--die-with-parent",
        *folders, *binds, "--dev-bind", os.devnull, os.devnull, "--dir", private_tmp(),
        "--chdir", str(ROOT), "--remount-ro", "/", "--",
        *worker,
    ]  # fmt: skip


def private_tmp() -> str:
    """Where the private folder for temporary files lies: where Python looks for one, but not over the runtime."""
    return "/var/tmp" if any(path.startswith("/tmp/") for path in runtime().paths) else "/tmp"


def confinement(level: ConfiningLevel, launched_uid: int) -> dict[str, Any]:
    """Fields of ``inside.confinement.Confinement``.

    Args:
        launched_uid: a user id that no other process of this machine has; used where the engine is root.
    """
    isolated = level == "bubblewrap"
    root = os.getuid() == 0
    return {
        "tmp": private_tmp() if isolated else "",
        "uid": (1 if isolated else launched_uid) if root else -1,
        "parent": -1 if isolated else os.getpid(),
        "memory_bytes": MEMORY_BYTES,
        "tmp_bytes": TMP_BYTES,
        "tmp_files": TMP_FILES,
        "readable": runtime().paths,
    }


def _place(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin


def _metadata(distribution: str) -> str | None:
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    (entry,) = [file for file in found.files or [] if file.name == "METADATA"]
    return str(Path(str(entry.locate())).resolve().parent)
