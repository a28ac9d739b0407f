"""System call filters: allow lists as classic BPF programs, for x86-64 Linux.

Invariant: what is not listed fails with EPERM, also calls that kernels newer than this list bring. A filter binds the
process and all it forks, and filters only ever add up. Calls of another architecture kill the process.

``WORKER`` is what the worker's own code needs to serve calls. ``CALL`` is the rest of it that a stranger's code has:
neither processes nor threads, no signals to others, no sockets but a connected pair, no memory or file shared with
another process, no way to become more than it is.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

ARCH_X86_64 = 0xC000003E
X32_BIT = 0x40000000
ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
EPERM, ENOSYS = 1, 38
LOAD_WORD, JUMP_EQUAL, JUMP_GREATER_EQUAL, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CLONE3 = 435


def low(argument: int) -> int:
    """Offset of the low 32 bits of an argument in ``struct seccomp_data``."""
    return 16 + 8 * argument


def high(argument: int) -> int:
    return low(argument) + 4


@dataclass(frozen=True)
class Condition:
    """A word of the call's data, masked, must be one of the values."""

    offset: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


Rules = dict[int, tuple[Condition, ...]]
"""Conditions of each allowed call by its number; all must hold."""


def zero(argument: int) -> tuple[Condition, ...]:
    return Condition(low(argument), (0,)), Condition(high(argument), (0,))


# Numbers: arch/x86/entry/syscalls/syscall_64.tbl
CALL: Rules = dict.fromkeys(
    [
        *(0, 1, 3, 8, 17, 18, 19, 20),  # read write close lseek pread64 pwrite64 readv writev
        *(2, 257, 4, 5, 6, 262, 332),  # open openat stat fstat lstat newfstatat statx
        *(21, 269, 439, 89, 267),  # access faccessat faccessat2 readlink readlinkat
        *(78, 217, 79, 80, 95),  # getdents getdents64 getcwd chdir umask
        *(74, 75, 77),  # fsync fdatasync ftruncate
        *(82, 264, 316, 83, 258, 84, 87, 263),  # rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat
        *(10, 11, 12, 25, 28),  # mprotect munmap brk mremap madvise
        *(22, 293, 32, 33, 292, 436),  # pipe pipe2 dup dup2 dup3 close_range
        *(7, 271, 23, 270),  # poll ppoll select pselect6
        *(213, 291, 232, 281, 441, 233, 290),  # epoll: create create1 wait pwait pwait2 ctl; eventfd2
        *(45, 48, 51, 52, 55),  # recvfrom shutdown getsockname getpeername getsockopt: of the connected pair
        *(13, 14, 15, 131, 127),  # rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack rt_sigpending
        *(34, 35, 36, 37, 38, 219, 230),  # pause nanosleep getitimer alarm setitimer restart_syscall clock_nanosleep
        *(96, 201, 228, 229, 98, 100),  # gettimeofday time clock_gettime clock_getres getrusage times
        *(39, 110, 186, 102, 104, 107, 108, 115),  # getpid getppid gettid getuid getgid geteuid getegid getgroups
        *(24, 202, 204, 218, 273, 334),  # sched_yield futex sched_getaffinity set_tid_address set_robust_list rseq
        *(63, 97, 318, 60, 231),  # uname getrlimit getrandom exit exit_group
    ],
    (),
)
CALL |= {
    9: (Condition(low(3), (2,), mask=0xF),),  # mmap: MAP_PRIVATE only; shared memory would outlive the call
    16: (Condition(low(1), (0x5401, 0x5450, 0x5451, 0x5421, 0x541B)),),  # TCGETS FION- FIOCLEX FIONBIO FIONREAD
    72: (Condition(low(1), (0, 1, 2, 3, 4, 1030)),),  # fcntl: dup, flags. F_SETOWN would send signals to others
    53: (Condition(low(0), (1,)), Condition(low(1), (1,), mask=0xF)),  # socketpair: unix stream (asyncio needs one)
    44: zero(4),  # sendto without an address
    302: (Condition(low(0), (0,)), *zero(2)),  # prlimit64: read one's own
}  # fmt: skip
WORKER: Rules = CALL | {
    56: (Condition(low(0), (0x01200011,)),),  # clone: plain fork
    61: (),  # wait4
    62: (Condition(low(1), (9,)),),  # kill: SIGKILL
    157: (Condition(low(0), (PR_SET_SECCOMP,)),),  # prctl: a further filter
}


def install(rules: Rules) -> None:
    """Confine this process to the rules. Raises OSError where the kernel refuses."""
    instructions = program(rules)
    libc = ctypes.CDLL(None, use_errno=True)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    filter_program = Program(len(instructions) // 8, instructions)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses the system call filter")


def program(rules: Rules) -> bytes:
    """The BPF program: 8 bytes an instruction."""
    code = [
        _instruction(LOAD_WORD, 4),
        _instruction(JUMP_EQUAL, ARCH_X86_64, 1, 0),
        _instruction(RETURN, KILL_PROCESS),
        _instruction(LOAD_WORD, 0),
        _instruction(JUMP_GREATER_EQUAL, X32_BIT, 0, 1),
        _instruction(RETURN, KILL_PROCESS),
        # libc then falls back to the older call, whose flags can be seen.
        _instruction(JUMP_EQUAL, CLONE3, 0, 1),
        _instruction(RETURN, ERRNO | ENOSYS),
    ]
    for number, conditions in rules.items():
        checks = [instruction for condition in conditions for instruction in _check(condition)]
        code += [_instruction(JUMP_EQUAL, number, 0, len(checks) + 1), *checks, _instruction(RETURN, ALLOW)]
    return b"".join([*code, _instruction(RETURN, ERRNO | EPERM)])


def _check(condition: Condition) -> list[bytes]:
    """Instructions that go on where the condition holds and return EPERM where not."""
    values = condition.values
    return [
        _instruction(LOAD_WORD, condition.offset),
        _instruction(AND, condition.mask),
        *(_instruction(JUMP_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)),
        _instruction(RETURN, ERRNO | EPERM),
    ]


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)
