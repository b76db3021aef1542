"""A program that confines itself, then executes the program of its command line.

    python -I -S confine.py '{"limits": {...}, "sandbox": {...}, "parent": 1234}' PROGRAM ARGUMENT ...
    python -I -S confine.py '{"probe": true}'       prints what this system allows

`process` starts it and writes its orders. A separate program does this work, because Python code between fork and exec
is not safe with threads. It imports little, so that it starts in a few milliseconds. Its settings stay after the exec:
limits, an alarm, death with its parent, Landlock, the loss of capabilities, and the filter of system calls. An order
that is absent or null is ignored. It exits with 126 if a setting fails, and with 127 if the program cannot start.

If new processes are possible (they are allowed, or there is no filter), it stays as a supervisor: it adopts every
descendant, including those in other sessions, and kills them all when the program ends, when it gets SIGTERM, and when
its parent dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # type checkers treat this name as True; importing `typing` takes as long as all imports above
if TYPE_CHECKING:
    from typing import Any, NoReturn

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])

from organs.registry.sandbox import landlock, seccomp  # noqa: E402 - found by the line before

CANNOT_CONFINE = 126
CANNOT_START = 127
HARD_GRACE_SECONDS = 5
KILL_SECONDS = 0.01
"""Seconds between two rounds of killing descendants of the program."""

_LIMITS = {
    "address_space_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "file_size_bytes": resource.RLIMIT_FSIZE,
}
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 24, 36
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Execute the orders of the command line; does not return."""
    orders = json.loads(sys.argv[1])
    if orders.get("probe"):
        _probe()
    program, *arguments = sys.argv[2:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain the model, and take minutes to write
    if orders.get("supervise"):
        _supervise(orders)
    try:
        secret = _confine(orders)
    except (OSError, ValueError) as error:
        _end(f"the process cannot be confined: {error}", CANNOT_CONFINE)
    try:
        if secret is None:
            os.execv(program, [program, *arguments])  # noqa: S606 - no shell on purpose
        seccomp.execute(program, [program, *arguments], os.environb, secret)
    except OSError as error:
        _end(f"{program}: {error.strerror}", CANNOT_START)


def _probe() -> NoReturn:
    """Print each feature as a line of JSON before the next test, for which a filter may kill the process."""
    for name, test in (("has_seccomp", seccomp.is_available), ("landlock_abi", landlock.abi)):
        os.write(1, json.dumps({name: test()}).encode() + b"\n")
    os._exit(0)


def _confine(orders: dict[str, Any]) -> tuple[int, int] | None:
    """Confine this process; return the secret that `execve` needs, or None."""
    _limit(orders.get("limits") or {})
    _die_with(orders.get("parent"))
    sandbox = orders.get("sandbox")
    if sandbox is None:
        return None
    if sandbox["landlock"]:
        paths = {landlock.READ: sandbox["read"], landlock.RUN: sandbox["run"], landlock.WRITE: sandbox["write"]}
        paths |= {landlock.DEVICE: sandbox["devices"], landlock.READ_DIR: sandbox["listed"]}
        landlock.restrict(sandbox["landlock"], paths)
    landlock.forbid_new_privileges()
    _drop_capabilities((_CAP_DAC_READ_SEARCH, *([_CAP_DAC_OVERRIDE] if sandbox["write"] else [])))
    if not sandbox["seccomp"]:
        return None
    first, second = struct.unpack("=QQ", os.urandom(16))
    seccomp.install(
        seccomp.filter_program(
            os.uname().machine,
            os.getpid(),
            (first, second),
            writing=bool(sandbox["write"]),
            processes=sandbox["processes"],
        )
    )
    return first, second


def _limit(limits: dict[str, int | None]) -> None:
    for name, limit in _LIMITS.items():
        value = limits.get(name)
        if value is None:
            continue
        _, hard = resource.getrlimit(limit)
        # Processor time at the hard limit ends with SIGKILL, which does not say why; a little below it, with SIGXCPU.
        highest = value + (HARD_GRACE_SECONDS if limit == resource.RLIMIT_CPU else 0)
        lowered = highest if hard == resource.RLIM_INFINITY else min(highest, hard)  # a limit may be lower already
        resource.setrlimit(limit, (min(value, lowered), lowered))
    with suppress(OSError):  # some containers forbid it, and nothing depends on it
        os.nice(limits.get("niceness") or 0)
    alarm_seconds = limits.get("alarm_seconds")
    if alarm_seconds is not None:
        signal.alarm(alarm_seconds)


def _die_with(parent: int | None, number: int = signal.SIGKILL) -> None:
    """Request the signal `number` for the death of the parent; exit now if it has died already. Linux only."""
    if parent is None or not sys.platform.startswith("linux"):
        return
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(CANNOT_CONFINE)


def _drop_capabilities(allowed: tuple[int, ...]) -> None:
    """Drop all capabilities of root except `allowed`.

    These are capabilities to read (and write) files of other users, which Landlock still limits. They are needed if
    root works on a registry of another user, or with an interpreter in a folder of another user.
    """
    header, data = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    if _libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    _, permitted, *_ = struct.unpack("=6I", data.raw)
    for capability in range(_CAPABILITIES):
        if capability not in allowed:
            _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3)  # only root may
    permitted &= sum(1 << capability for capability in allowed)
    if _libc.capset(header, struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def _supervise(orders: dict[str, Any]) -> None:
    """Return in a new process, which executes the program; wait in this one until all descendants are dead."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    _die_with(orders.get("parent"), signal.SIGTERM)
    supervisor, child = os.getpid(), os.fork()
    if not child:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        orders["parent"] = supervisor
        return
    try:
        signal.alarm((orders.get("limits") or {}).get("alarm_seconds") or 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # only the program keeps them, so that its caller sees when they are closed
            os.dup2(null, descriptor)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        _, status = os.waitpid(child, 0)
    finally:
        _kill_descendants()
    if os.WIFSIGNALED(status):  # end by the signal that ended the program, so that the caller sees it
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
        os._exit(128 + ended_by)
    os._exit(os.waitstatus_to_exitcode(status))


def _kill_descendants() -> None:
    """Kill and reap all descendants. Orphans become children of this process, because it is the subreaper."""
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        parents: dict[int, int] = {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as status:
                parents[int(name)] = int(status.read().rpartition(b")")[2].split()[1])
        family = [os.getpid()]
        for ancestor in family:  # grows during the loop
            family += [pid for pid, parent in parents.items() if parent == ancestor]
        for pid in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(KILL_SECONDS)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero):
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _end(sentence: str, code: int) -> NoReturn:
    os.write(2, f"{sentence}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
