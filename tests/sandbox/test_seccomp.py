"""Tests of the filter of system calls, run by an interpreter here, for every known architecture."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from organs.registry.sandbox.seccomp import ALLOW, ARCHITECTURES, KILL, filter_program

PID = 4711
SECRET = (0x1234567890ABCDEF, 0xFEDCBA0987654321)
MACHINES = sorted(ARCHITECTURES)
CLONE_THREAD, CLONE_NEWUSER, SIGCHLD = 0x10000, 0x10000000, 17
CALLS = {
    "read": (0, 63),
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "clone": (56, 220),
    "execve": (59, 221),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "mount": (165, 40),
    "openat": (257, 56),
    "unshare": (272, 97),
    "prlimit64": (302, 261),
    "tkill": (200, 130),
    "process_vm_readv": (310, 270),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "clone3": (435, 435),
    "landlock_restrict_self": (446, 446),
    "unlinkat": (263, 35),
    "a later call": (900, 900),
}
WITH = {"writing": False, "processes": False}


def answer(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """Return the action of the kernel for a call: the return value of the filter."""
    padded = [argument & (1 << 64) - 1 for argument in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number, ARCHITECTURES[machine], 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    place, word = 0, 0
    while True:
        operation, when_true, when_false, operand = code[place]
        place += 1
        if operation == 0x06:
            return int(operand)
        if operation == 0x20:
            (word,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            word &= operand
        else:
            holds = {0x15: word == operand, 0x35: word >= operand}[operation]
            place += when_true if holds else when_false


def failing(number: int) -> int:
    return 0x00050000 | number


NOT_PERMITTED, NO_ACCESS, UNKNOWN = failing(errno.EPERM), failing(errno.EACCES), failing(errno.ENOSYS)
WRITING, PROCESSES = {"writing": True}, {"processes": True}
WRITES = (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_CREAT, os.O_TMPFILE)
OF_THE_KERNEL = ("ptrace", "process_vm_readv", "mount", "unshare", "bpf", "memfd_create", "tkill")
GUESSES = [
    [half ^ (1 << bit if place == guessed else 0) for place, half in enumerate(SECRET)]
    for guessed in range(2)
    for bit in (0, 31, 32, 63)
]
Rule = tuple[str, tuple[int, ...], dict[str, bool], int]
RULES: list[Rule] = [
    # the call, its arguments, the grants, the answer
    ("clone", (CLONE_THREAD | 0x3D0F00,), {}, ALLOW),
    ("clone", (SIGCHLD,), {}, NOT_PERMITTED),
    ("clone", (CLONE_THREAD | CLONE_NEWUSER,), {}, NOT_PERMITTED),
    ("clone3", (), {}, UNKNOWN),
    ("clone", (SIGCHLD,), PROCESSES, ALLOW),
    ("clone", (SIGCHLD | CLONE_NEWUSER,), PROCESSES, NOT_PERMITTED),
    ("execve", (1, 2, 3, *SECRET), {}, ALLOW),
    *(("execve", (1, 2, 3, *guess), {}, NOT_PERMITTED) for guess in GUESSES),
    ("execve", (1, 2, 3), {}, NOT_PERMITTED),
    ("execve", (1, 2, 3), PROCESSES, ALLOW),
    ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC), {}, ALLOW),
    *(("openat", (0, 0, flags), {}, NO_ACCESS) for flags in WRITES),
    *(("openat", (0, 0, flags), WRITING, ALLOW) for flags in WRITES),
    ("unlinkat", (), {}, NOT_PERMITTED),
    ("unlinkat", (), WRITING, ALLOW),
    *((name, (2, 1, 6), WRITING, NOT_PERMITTED) for name in ("socket", "connect", "sendto")),
    ("kill", (PID, 6), {}, ALLOW),
    ("kill", (PID + 1, 0), {}, NOT_PERMITTED),
    ("kill", (-1, 9), {}, NOT_PERMITTED),
    ("prlimit64", (0, 7, 0, 1 << 47), {}, ALLOW),
    ("prlimit64", (0, 7, 1 << 47), {}, NOT_PERMITTED),
    *((name, (), WRITING, NOT_PERMITTED) for name in OF_THE_KERNEL),
    ("io_uring_setup", (), {}, UNKNOWN),  # newer than what libraries need
    ("landlock_restrict_self", (), {}, UNKNOWN),
    ("a later call", (), {}, UNKNOWN),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join([rule[0], *rule[2]]))
def test_a_call_is_answered_by_its_arguments_and_the_grants(rule: Rule, machine: str) -> None:
    name, arguments, grants, expected = rule
    number = CALLS[name][MACHINES[::-1].index(machine)]
    program = filter_program(machine, PID, SECRET, **WITH | grants)
    assert answer(program, machine, number, *arguments) == expected


def test_calls_of_another_architecture_end_the_process() -> None:
    for machine, other in zip(MACHINES, MACHINES[::-1], strict=True):
        program = filter_program(machine, PID, SECRET, **WITH)
        assert answer(program, machine, CALLS["read"][MACHINES[::-1].index(machine)]) == ALLOW
        assert answer(program, other, 0) == KILL
    program = filter_program("x86_64", PID, SECRET, **WITH)
    assert answer(program, "x86_64", 0x40000000 | 0) == KILL, "x32"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_within_the_size_limit_of_the_kernel(machine: str) -> None:
    for processes in (False, True):
        program = filter_program(machine, PID, SECRET, writing=True, processes=processes)
        assert len(program) // 8 <= 4096
