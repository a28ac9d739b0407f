"""Starts a worker: ``python engine/sandbox/launch.py UID COMMAND...``, executed in the place of the command.

Where the engine is root, the sandbox still runs as nobody: in a user namespace in which 0 is root of this machine,
without its privileges, only while bubblewrap lays out the files, and 1 is ``UID``, a user that owns nothing and is no
other worker's. Only a process outside that is privileged can write such a map, hence the helper. Standard library
alone; needs no import of this project.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000
BASE_UID = 1_900_000_000


def main() -> None:
    command = sys.argv[1:]
    if os.getuid() == 0:
        _enter_user_namespace(BASE_UID + os.getpid())
    os.execve(command[0], command, dict(os.environ))


def _enter_user_namespace(uid: int) -> None:
    entered_read, entered_write = os.pipe()
    me = os.getpid()
    helper = os.fork()
    if helper == 0:
        _write_maps(me, uid, entered_read)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        sys.exit("this process may not make a user namespace")
    os.write(entered_write, b"\n")
    os.close(entered_write)
    os.close(entered_read)
    _, status = os.waitpid(helper, 0)
    if status != 0:
        sys.exit("the map of the user namespace was refused")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _write_maps(process: int, uid: int, entered: int) -> None:
    try:
        os.read(entered, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{process}/{name}", "w") as file:
                file.write(f"0 0 1\n1 {uid} 1\n")
        os._exit(0)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
