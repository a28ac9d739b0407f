"""Landlock: the file tree and the network a process may use, by the kernel, without privileges.

Source: Documentation/userspace-api/landlock.rst of Linux. Invariant: everything the running kernel's Landlock can
handle is denied but what ``prepare`` names.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
GET_VERSION = 1
PR_SET_NO_NEW_PRIVS = 38
EXECUTE, READ_FILE, READ_DIR = 1 << 0, 1 << 2, 1 << 3
READ = READ_FILE | READ_DIR
WRITE = READ | sum(1 << bit for bit in (1, 4, 5, 7, 8, 13, 14))
"""Write, remove and make plain files and folders, move them, truncate: no devices, sockets, pipes or links."""
FILE_RIGHTS = EXECUTE | READ_FILE | 1 << 1 | 1 << 14
HANDLED_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many file rights each ABI version knows."""
OLDEST = 3
"""Before it truncation was not handled."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """ABI version of the running kernel, 0 where it has no Landlock."""
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, GET_VERSION)))


def prepare(*, readable: Iterable[str], writable: Iterable[str] = ()) -> int:
    """A ruleset, as a descriptor for ``enter``: no files but those beneath the paths, no TCP, and, where the kernel
    can, no signals and abstract sockets to processes outside. Nothing may be executed. Paths that do not exist are
    left out.

    Raises:
        OSError: the kernel's Landlock is too old, or it has none.
    """
    abi = version()
    if abi < OLDEST:
        raise OSError(f"Landlock ABI {abi} is older than {OLDEST}")
    libc = ctypes.CDLL(None, use_errno=True)
    handled = (1 << HANDLED_FILE_RIGHTS.get(abi, 16)) - 1
    rules = _Ruleset(handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _checked(libc.syscall(CREATE_RULESET, ctypes.byref(rules), size, 0))
    for paths, rights in ((readable, READ), (writable, WRITE & handled)):
        for path in paths:
            _allow(libc, ruleset, path, rights)
    return ruleset


def enter(ruleset: int) -> None:
    """Confine this process to the ruleset, for good. Raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # else CAP_SYS_ADMIN is needed
    _checked(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = rights if os.path.isdir(path) else rights & FILE_RIGHTS
        beneath = _PathBeneath(allowed, parent)
        _checked(libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(beneath), 0))
    finally:
        os.close(parent)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return int(result)
