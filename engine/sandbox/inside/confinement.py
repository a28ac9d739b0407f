"""What a worker does to itself before a stranger's code is near: identity, limits, files, system calls.

Order matters: imports first (files may be out of reach afterwards), then the private /tmp (needs the capabilities that
go next), the Landlock rules while all files can be
named, the identity, Landlock itself, and the system call filter last, as it forbids all of the former.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass

from engine.sandbox.inside import landlock, seccomp

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPSET = 126
CAPABILITY_VERSION_3 = 0x20080522
MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8


@dataclass(frozen=True)
class Confinement:
    """How one worker is confined."""

    tmp: str
    """Put a private, small file system there; needs a mount namespace of one's own. Empty: nothing at all is
    writable."""
    uid: int
    """Change to this user and group; -1: stay, the launcher has seen to it."""
    parent: int
    """Process id of the parent; -1 where it cannot be seen. The worker dies with it."""
    memory_bytes: int
    tmp_bytes: int
    tmp_files: int
    readable: tuple[str, ...]
    """The runtime: files and folders that may be read."""

    def enter(self) -> None:
        """Confine this process, for good. Raises OSError where the kernel refuses."""
        libc = ctypes.CDLL(None, use_errno=True)
        if self.tmp:
            options = f"size={self.tmp_bytes},nr_inodes={self.tmp_files},mode=1777".encode()
            if libc.mount(b"tmpfs", self.tmp.encode(), b"tmpfs", MS_NOSUID_NODEV_NOEXEC, options) != 0:
                raise OSError(ctypes.get_errno(), f"cannot mount a private {self.tmp}")
        writable = [os.devnull, self.tmp] if self.tmp else [os.devnull]
        ruleset = landlock.prepare(readable=self.readable, writable=writable)
        if self.uid >= 0:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        _drop_capabilities(libc)
        if self.parent >= 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.parent:  # it died before the line above
                sys.exit(1)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        self._limit()
        landlock.enter(ruleset)
        seccomp.install(seccomp.WORKER)

    def _limit(self) -> None:
        for limit, value in (
            (resource.RLIMIT_AS, self.memory_bytes),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, self.tmp_bytes),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, 64),
        ):
            resource.setrlimit(limit, (value, value))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if libc.syscall(CAPSET, header, none) != 0:
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")
