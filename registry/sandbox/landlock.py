"""Landlock: access control of Linux that a process sets on itself and cannot remove.

The numbers are from the kernel's `include/uapi/linux/landlock.h`. A right that the kernel knows is denied unless a rule
grants it. A right that only later kernels know is not restricted.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Mapping

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG = (
    1 << bit for bit in range(9)
)
MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV, RESOLVE_UNIX = (
    1 << bit for bit in range(9, 17)
)
BIND_TCP, CONNECT_TCP, BIND_UDP, CONNECT_SEND_UDP = (1 << bit for bit in range(4))
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2

ABI_REFER, ABI_TRUNCATE, ABI_TCP, ABI_IOCTL, ABI_SCOPES, ABI_UNIX, ABI_UDP = 2, 3, 4, 5, 6, 9, 10
"""The version of the kernel's interface that added each feature. 1 is Linux 5.13, 4 is 6.7, 6 is 6.12."""

READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = READ | WRITE_FILE | TRUNCATE | REFER | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM
"""Creating devices, sockets and named pipes is not included."""
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
_OF_FILES = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule for a file can grant; the kernel only accepts other rights for folders."""

# The numbers of these calls are the same on all architectures that `seccomp` knows.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Return the version of Landlock that can be used; 0 without Landlock, or if the call is refused."""
    if not sys.platform.startswith("linux"):
        return 0
    version = int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION)))
    return max(version, 0)


def handled(version: int) -> tuple[int, int, int]:
    """Return the rights to files, the rights to the network, and the scopes in the ABI `version`."""
    files = (1 << 13) - 1
    for since, right in (
        (ABI_REFER, REFER),
        (ABI_TRUNCATE, TRUNCATE),
        (ABI_IOCTL, IOCTL_DEV),
        (ABI_UNIX, RESOLVE_UNIX),
    ):
        files |= right if version >= since else 0
    network = BIND_TCP | CONNECT_TCP if version >= ABI_TCP else 0
    network |= BIND_UDP | CONNECT_SEND_UDP if version >= ABI_UDP else 0
    return files, network, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= ABI_SCOPES else 0


def restrict(version: int, paths: Mapping[int, Iterable[str]]) -> None:
    """Restrict this thread, and everything that it starts, to `paths` (grouped by the rights), without network.

    `version` is the result of `abi`. A path that does not exist is ignored. Raises OSError.
    """
    files, network, scopes = handled(version)
    attributes = struct.pack("=QQQ", files, network, scopes)[
        : 8 if version < ABI_TCP else 16 if version < ABI_SCOPES else 24
    ]
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for rights, paths_of_rights in paths.items():
            for path in paths_of_rights:
                _grant(ruleset, path, rights & files)
        forbid_new_privileges()
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def forbid_new_privileges() -> None:
    """Prevent programs that this process executes from getting more rights than it has, for example by set-user-ID."""
    zero = ctypes.c_ulong(0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
