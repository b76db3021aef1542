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
    "open": (2, None),
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "clone": (56, 220),
    "fork": (57, None),
    "execve": (59, 221),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "prctl": (157, 167),
    "mount": (165, 40),
    "openat": (257, 56),
    "unshare": (272, 97),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "clone3": (435, 435),
    "landlock_restrict_self": (446, 446),
    "unlinkat": (263, 35),
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


def ask(machine: str, name: str, *arguments: int, **allowed: bool) -> int:
    """Return the action for the call `name`, with these arguments allowed."""
    number = CALLS[name][MACHINES[::-1].index(machine)]
    assert number is not None
    program = filter_program(machine, PID, SECRET, **WITH | allowed)
    return answer(program, machine, number, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_are_allowed_and_new_processes_are_not(machine: str) -> None:
    assert ask(machine, "clone", CLONE_THREAD | 0x3D0F00) == ALLOW
    assert ask(machine, "clone", SIGCHLD) == failing(errno.EPERM)
    assert ask(machine, "clone", CLONE_THREAD | CLONE_NEWUSER) == failing(errno.EPERM)
    assert ask(machine, "clone3") == failing(errno.ENOSYS)
    assert ask(machine, "clone", SIGCHLD, processes=True) == ALLOW
    assert ask(machine, "clone", SIGCHLD | CLONE_NEWUSER, processes=True) == failing(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_is_started_once_and_only_with_the_secret(machine: str) -> None:
    assert ask(machine, "execve", 1, 2, 3, *SECRET) == ALLOW
    for place in range(2):
        for bit in (0, 31, 32, 63):
            guess = list(SECRET)
            guess[place] ^= 1 << bit
            assert ask(machine, "execve", 1, 2, 3, *guess) == failing(errno.EPERM)
    assert ask(machine, "execve", 1, 2, 3) == failing(errno.EPERM)
    assert ask(machine, "execve", 1, 2, 3, processes=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_files_are_opened_for_writing_only_where_something_may_be_written(machine: str) -> None:
    assert ask(machine, "openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_CREAT, os.O_TMPFILE):
        assert ask(machine, "openat", 0, 0, flags) == failing(errno.EACCES)
        assert ask(machine, "openat", 0, 0, flags, writing=True) == ALLOW
    assert ask(machine, "unlinkat") == failing(errno.EPERM)
    assert ask(machine, "unlinkat", writing=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_no_sockets_are_opened(machine: str) -> None:
    for name in ("socket", "connect", "sendto"):
        assert ask(machine, name, 2, 1, 6, writing=True) == failing(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_go_to_the_process_itself_and_limits_are_only_read(machine: str) -> None:
    assert ask(machine, "kill", PID, 6) == ALLOW
    assert ask(machine, "kill", PID + 1, 0) == failing(errno.EPERM)
    assert ask(machine, "kill", -1, 9) == failing(errno.EPERM)
    assert ask(machine, "prlimit64", 0, 7, 0, 1 << 47) == ALLOW
    assert ask(machine, "prlimit64", 0, 7, 1 << 47) == failing(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["ptrace", "process_vm_readv", "mount", "unshare", "bpf", "memfd_create"])
def test_calls_on_the_kernel_or_other_processes_are_refused(machine: str, name: str) -> None:
    assert ask(machine, name, writing=True) == failing(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_newer_calls_than_libraries_need_fail_with_enosys(machine: str) -> None:
    for name in ("io_uring_setup", "landlock_restrict_self"):
        assert ask(machine, name) == failing(errno.ENOSYS)
    program = filter_program(machine, PID, SECRET, **WITH)
    assert answer(program, machine, 900) == failing(errno.ENOSYS)


def test_calls_of_another_architecture_end_the_process() -> None:
    for machine, other in zip(MACHINES, MACHINES[::-1], strict=True):
        program = filter_program(machine, PID, SECRET, **WITH)
        assert answer(program, machine, CALLS["read"][MACHINES[::-1].index(machine)]) == ALLOW
        assert answer(program, other, 0) == KILL
    assert ask("x86_64", "read") == ALLOW
    program = filter_program("x86_64", PID, SECRET, **WITH)
    assert answer(program, "x86_64", 0x40000000 | 0) == KILL, "x32"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_within_the_size_limit_of_the_kernel(machine: str) -> None:
    for processes in (False, True):
        program = filter_program(machine, PID, SECRET, writing=True, processes=processes)
        assert len(program) // 8 <= 4096
