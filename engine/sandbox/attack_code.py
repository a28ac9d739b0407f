"""Attacks, as a reward function: what the self-test and the tests send into the sandbox.

This file's text is the tenant's code; the engine itself imports it for the list alone. An attack returns True where it
reached what it was after. Most end in an exception; some return False, and some do not return.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Attack:
    """One attack and the errors (kinds) that are the right answer to it; "" is a harmless return."""

    name: str
    group: str
    run: Callable[[dict[str, Any]], Any]
    kinds: tuple[str, ...]


ATTACKS: dict[str, Attack] = {}


def attack(group: str, name: str, *kinds: str) -> Callable[[Callable[[dict[str, Any]], Any]], None]:
    def register(function: Callable[[dict[str, Any]], Any]) -> None:
        ATTACKS[name] = Attack(name, group, function, kinds or ("exception",))

    return register


def reward(row: dict[str, Any]) -> Any:
    target = row["metadata"]
    if target["attack"] == "":
        return 1.0  # nothing hostile: shows that the sandbox runs code at all
    reached = ATTACKS[target["attack"]].run(target)
    return float(reached) if isinstance(reached, bool) else reached


# Files and environment


@attack("files", "read a host file")
def _(target: dict[str, Any]) -> bool:
    return bool(open(target["secret_file"]).read())


@attack("files", "read the database file")
def _(target: dict[str, Any]) -> bool:
    return bool(open(target["database"], "rb").read())


@attack("files", "read /etc/passwd")
def _(target: dict[str, Any]) -> bool:
    return bool(open("/etc/passwd").read())


@attack("files", "list a host folder")
def _(target: dict[str, Any]) -> bool:
    return bool(os.listdir(target["folder"]))


@attack("files", "write a host file")
def _(target: dict[str, Any]) -> bool:
    return open(target["folder"] + "/planted", "w").write("x") == 1


@attack("files", "write into the runtime")
def _(target: dict[str, Any]) -> bool:
    return open(os.path.dirname(os.__file__) + "/planted.py", "w").write("x") == 1


@attack("files", "write at the root")
def _(target: dict[str, Any]) -> bool:
    return open("/planted", "w").write("x") == 1


@attack("files", "link a host file into /tmp")
def _(target: dict[str, Any]) -> bool:
    os.symlink(target["secret_file"], "/tmp/link")
    return bool(open("/tmp/link").read())


@attack("files", "read its own environment", "")
def _(target: dict[str, Any]) -> bool:
    return bool(os.environ) or bool(_libc().getenv(b"SECRET")) or bool(_libc().getenv(b"PATH"))


@attack("files", "read its own environment in /proc")
def _(target: dict[str, Any]) -> bool:
    return open("/proc/self/environ", "rb").read() is not None


@attack("files", "read the parent's environment")
def _(target: dict[str, Any]) -> bool:
    return open(f"/proc/{os.getppid()}/environ", "rb").read() is not None


@attack("files", "read the engine's environment")
def _(target: dict[str, Any]) -> bool:
    return open(f"/proc/{target['engine']}/environ", "rb").read() is not None


@attack("files", "read the environment of process 1")
def _(target: dict[str, Any]) -> bool:
    return open("/proc/1/environ", "rb").read() is not None


@attack("files", "read another tenant's worker's memory")
def _(target: dict[str, Any]) -> bool:
    return open(f"/proc/{target['other_worker']}/mem", "rb") is not None


# Network


def _connect(family: str, kind: str, address: Any) -> bool:
    import socket

    with socket.socket(getattr(socket, family), getattr(socket, kind)) as connection:
        connection.connect(address)
        connection.send(b"x")
    return True


@attack("network", "TCP to loopback")
def _(target: dict[str, Any]) -> bool:
    return _connect("AF_INET", "SOCK_STREAM", ("127.0.0.1", target["tcp"]))


@attack("network", "UDP to loopback")
def _(target: dict[str, Any]) -> bool:
    return _connect("AF_INET", "SOCK_DGRAM", ("127.0.0.1", target["udp"]))


@attack("network", "the broker's unix socket")
def _(target: dict[str, Any]) -> bool:
    return _connect("AF_UNIX", "SOCK_STREAM", target["unix"])


@attack("network", "an abstract unix socket")
def _(target: dict[str, Any]) -> bool:
    return _connect("AF_UNIX", "SOCK_STREAM", "\0" + target["abstract"])


@attack("network", "an address through a socket pair")
def _(target: dict[str, Any]) -> bool:
    import socket

    mine, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return mine.sendto(b"x", "\0" + target["abstract"]) == 1


@attack("network", "listen on a port")
def _(target: dict[str, Any]) -> bool:
    import socket

    return socket.create_server(("127.0.0.1", 0)) is not None


# Processes


@attack("processes", "fork bomb")
def _(target: dict[str, Any]) -> bool:
    while True:
        os.fork()


@attack("processes", "thread bomb")
def _(target: dict[str, Any]) -> bool:
    import threading

    while True:
        threading.Thread(target=lambda: None).start()


@attack("processes", "run a program")
def _(target: dict[str, Any]) -> bool:
    import subprocess

    return bool(subprocess.run(["/bin/sh", "-c", "true"], check=True))


@attack("processes", "become another program")
def _(target: dict[str, Any]) -> bool:
    os.execv(sys.executable, [sys.executable, "-c", "while True: pass"])


@attack("processes", "spawn without fork")
def _(target: dict[str, Any]) -> bool:
    return os.posix_spawn(sys.executable, [sys.executable], {}) > 0


@attack("processes", "kill its parent")
def _(target: dict[str, Any]) -> bool:
    os.kill(os.getppid(), 9)
    return True


@attack("processes", "kill the engine")
def _(target: dict[str, Any]) -> bool:
    os.kill(target["engine"], 9)
    return True


@attack("processes", "kill another tenant's worker")
def _(target: dict[str, Any]) -> bool:
    os.kill(target["other_worker"], 9)
    return True


@attack("processes", "kill everything")
def _(target: dict[str, Any]) -> bool:
    os.kill(-1, 9)
    return True


@attack("processes", "have the kernel signal its parent")
def _(target: dict[str, Any]) -> bool:
    import fcntl

    reading, _writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, os.getppid())
    return True


@attack("processes", "ignore signals and go on", "timed_out")
def _(target: dict[str, Any]) -> bool:
    import signal

    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    while True:
        pass


# System calls, made directly: (name, number, arguments)

SYSTEM_CALLS = [
    ("vfork", 58, ()),
    ("clone", 56, (0x11, 0, 0, 0, 0)),
    ("clone3", 435, (0, 88)),
    ("clone into new namespaces", 56, (0x7E020011, 0, 0, 0, 0)),
    ("ptrace", 101, (0, 0, 0, 0)),
    ("process_vm_readv", 310, (1, 0, 0, 0, 0, 0)),
    ("process_vm_writev", 311, (1, 0, 0, 0, 0, 0)),
    ("pidfd_open", 434, (1, 0)),
    ("pidfd_getfd", 438, (0, 0, 0)),
    ("tgkill", 234, (1, 1, 0)),
    ("unshare", 272, (0x10000000,)),
    ("setns", 308, (0, 0)),
    ("mount", 165, (0, 0, 0, 0, 0)),
    ("umount", 166, (0, 0)),
    ("pivot_root", 155, (0, 0)),
    ("chroot", 161, (0,)),
    ("open_tree", 428, (-100, 0, 0)),
    ("open_by_handle_at", 304, (0, 0, 0)),
    ("mknod", 133, (0, 0, 0)),
    ("io_uring_setup", 425, (8, 0)),
    ("userfaultfd", 323, (1,)),
    ("perf_event_open", 298, (0, 0, -1, -1, 0)),
    ("bpf", 321, (0, 0, 0)),
    ("keyctl", 250, (0, -3, 1)),
    ("add_key", 248, (0, 0, 0, 0, -3)),
    ("memfd_create", 319, (0, 0)),
    ("shmget", 29, (0, 4096, 0o1600)),
    ("msgget", 68, (0, 0o1600)),
    ("mq_open", 240, (0, 64, 0, 0)),
    ("socket (netlink)", 41, (16, 3, 0)),
    ("setuid", 105, (0,)),
    ("capset", 126, (0, 0)),
    ("prctl", 157, (4, 1, 0, 0, 0)),
    ("seccomp", 317, (1, 0, 0)),
    ("setrlimit", 160, (9, 0)),
    ("setsid", 112, ()),
    ("personality", 135, (0x0040000,)),
    ("modify_ldt", 154, (0, 0, 0)),
    ("init_module", 175, (0, 0, 0)),
    ("kexec_load", 246, (0, 0, 0, 0)),
    ("reboot", 169, (0, 0, 0, 0)),
    ("a call no kernel has", 1000, ()),
]


def _system_call(number: int, arguments: tuple[int, ...]) -> bool:
    """Whether the kernel so much as looks at the call: anything but a refusal."""
    import ctypes

    libc = _libc()
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    code = ctypes.get_errno()
    if result == -1 and code in (1, 38):  # EPERM, ENOSYS
        raise PermissionError(code, os.strerror(code))
    return True


def _register_system_call(name: str, number: int, arguments: tuple[int, ...]) -> None:
    attack("system calls", name)(lambda target: _system_call(number, arguments))


for _call in SYSTEM_CALLS:
    _register_system_call(*_call)


@attack("system calls", "memory shared with others")
def _(target: dict[str, Any]) -> bool:
    import mmap

    return mmap.mmap(-1, 4096, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) is not None


@attack("system calls", "the 32-bit way in", "killed")
def _(target: dict[str, Any]) -> bool:
    return _machine_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3") > 0  # mov eax, 20 (getpid); int 0x80; ret


@attack("system calls", "the x32 way in", "killed")
def _(target: dict[str, Any]) -> bool:
    return _system_call(0x40000000 + 39, ())


def _machine_code(code: bytes) -> int:
    import ctypes
    import mmap

    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())


# Floods and endless work


@attack("resources", "memory flood", "out_of_memory")
def _(target: dict[str, Any]) -> bool:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


@attack("resources", "disk flood", "exception", "")
def _(target: dict[str, Any]) -> bool:
    written = 0
    for number in range(64):
        with open(f"/tmp/{number}", "wb") as file:
            written += file.write(bytes(1 << 20))
    return written > 16 << 20


@attack("resources", "flood of files")
def _(target: dict[str, Any]) -> bool:
    for number in range(10_000):
        open(f"/tmp/{number}", "w").close()
    return True


@attack("resources", "flood of descriptors")
def _(target: dict[str, Any]) -> bool:
    for _ in range(10_000):
        os.open("/dev/null", os.O_RDONLY)
    return True


@attack("resources", "output flood", "too_much_output")
def _(target: dict[str, Any]) -> bool:
    while True:
        try:
            print("x" * 10_000)
        except BaseException:
            break
    return True


@attack("resources", "log flood", "too_much_output")
def _(target: dict[str, Any]) -> bool:
    import logging

    while True:
        logging.warning("x" * 10_000)


@attack("resources", "reply flood", "too_much_output")
def _(target: dict[str, Any]) -> Any:
    while True:
        os.write(3, b"x" * 10_000)


@attack("resources", "endless loop", "timed_out")
def _(target: dict[str, Any]) -> bool:
    while True:
        pass


@attack("resources", "endless sleep", "timed_out")
def _(target: dict[str, Any]) -> bool:
    import time

    while True:
        time.sleep(1000)


@attack("resources", "catastrophic regular expression", "timed_out")
def _(target: dict[str, Any]) -> bool:
    import re

    return bool(re.match(r"(a+)+$", "a" * 64 + "b"))


@attack("resources", "huge integer power", "timed_out", "out_of_memory")
def _(target: dict[str, Any]) -> bool:
    return 7 ** (7 ** (7**7)) > 0


@attack("resources", "deep recursion", "exception")
def _(target: dict[str, Any]) -> bool:
    def deeper() -> Any:
        return deeper()

    return bool(deeper())


@attack("resources", "recursion beyond the stack", "killed", "out_of_memory", "exception", "timed_out")
def _(target: dict[str, Any]) -> bool:
    sys.setrecursionlimit(1 << 30)
    nested: list[Any] = []
    for _ in range(1_000_000):
        nested = [nested]
    return repr(nested) == ""


# Lies: what a function may say, and through which door


@attack("lies", "write to the result channel", "killed", "wrong_return")
def _(target: dict[str, Any]) -> bool:
    os.write(3, b'{"results": [{"total": 1.0, "parts": {}, "reason": "forged"}], "console": ""}\n')
    return False


@attack("lies", "forge a reply with the token found", "out_of_range")
def _(target: dict[str, Any]) -> bool:
    frame: Any = sys._getframe()
    while "token" not in frame.f_locals:
        frame = frame.f_back
    os.write(3, frame.f_locals["token"] + b'{"results": [{"total": 99, "parts": {}}], "console": ""}\n')
    os._exit(0)


@attack("lies", "a reply nested without end", "wrong_return")
def _(target: dict[str, Any]) -> bool:
    frame: Any = sys._getframe()
    while "token" not in frame.f_locals:
        frame = frame.f_back
    os.write(3, frame.f_locals["token"] + b"[" * 50_000 + b"\n")
    os._exit(0)


@attack("lies", "replace the runner's functions", "out_of_range", "wrong_return")
def _(target: dict[str, Any]) -> bool:
    import json

    json.dumps = lambda *a, **k: '{"results": [{"total": 1e9, "parts": {}}], "console": ""}'
    return False


@attack("lies", "look for other calls in memory", "")
def _(target: dict[str, Any]) -> bool:
    import gc

    wanted = "".join(["another tenant's ", "secret"])
    return any(isinstance(thing, str) and wanted in thing for thing in gc.get_objects()) or any(
        wanted in str(vars(module)) for module in list(sys.modules.values()) if module.__name__ != "__main__"
    )


@attack("lies", "act when it ends (__del__, atexit)", "")
def _(target: dict[str, Any]) -> bool:
    import atexit

    class Late:
        def __del__(self) -> None:
            os.write(3, b"late\n" * 10_000)

    sys.modules["late"] = Late()  # type: ignore[assignment]
    atexit.register(lambda: os.write(3, b"late\n" * 10_000))
    return False


@attack("lies", "a float that lies", "wrong_return")
def _(target: dict[str, Any]) -> Any:
    class Liar(float):
        def __float__(self) -> float:
            return 1.0

        def __le__(self, other: Any) -> bool:
            return True

    return Liar(7)


@attack("lies", "an object that runs code when unpickled", "wrong_return")
def _(target: dict[str, Any]) -> Any:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    return Bomb()


@attack("lies", "not a number", "not_finite")
def _(target: dict[str, Any]) -> Any:
    return float("nan")


@attack("lies", "infinity", "not_finite")
def _(target: dict[str, Any]) -> Any:
    return {"total": 0.5, "part": float("inf")}


@attack("lies", "a number too large to send", "out_of_range")
def _(target: dict[str, Any]) -> Any:
    return 10**100_000


@attack("lies", "an error message that fails", "exception")
def _(target: dict[str, Any]) -> Any:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Hostile


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
