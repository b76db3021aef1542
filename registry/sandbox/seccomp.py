"""The system calls that a confined process may make: a seccomp filter, as a program for the kernel's classic BPF.

The filter lists the allowed calls, because every kernel adds new calls. Other calls fail with EPERM. Newer calls, which
no C library requires, fail with ENOSYS: C libraries then use an older call. A call of another architecture (32-bit
calls on a 64-bit machine, x32) kills the process, because its numbers have another meaning.

These calls are not in the list: new processes and programs; ptrace, process_vm_readv and pidfds; mounts and namespaces;
keyrings, bpf, perf_event_open, io_uring and userfaultfd, which expose the kernel itself; chmod, chown, utime and
extended attributes, which Landlock does not check; memory that no limit counts (memfd, System V, message queues);
priorities, limits and scheduling, which root could raise; open_by_handle_at, which opens files without a path.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Mapping, Sequence

from organs.registry.sandbox.landlock import forbid_new_privileges

# Each call has its name and its numbers on x86_64 and aarch64. A dash means that the architecture does not have it.
_ALWAYS = """
# open files, and files that may be opened for reading
read:0:63 readv:19:65 pread64:17:67 preadv:295:69 preadv2:327:286 write:1:64 writev:20:66 pwrite64:18:68
pwritev:296:70 pwritev2:328:287 lseek:8:62 close:3:57 close_range:436:436 dup:32:23 dup2:33:- dup3:292:24 pipe:22:-
pipe2:293:59 stat:4:- lstat:6:- fstat:5:80 newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 access:21:-
faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17
chdir:80:49 fchdir:81:50 umask:95:166 flock:73:32 fadvise64:221:223 readahead:187:213 sendfile:40:71
# memory
mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214 mincore:27:232 msync:26:227
mlock:149:228 mlock2:325:284 munlock:150:229 get_mempolicy:239:236 mseal:462:462
# threads and the process itself
futex:202:98 futex_wait:455:455 futex_wake:454:454 futex_waitv:449:449 futex_requeue:456:456 set_robust_list:273:99
set_tid_address:218:96 rseq:334:293 membarrier:324:283 sched_yield:24:124 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
getcpu:309:168 arch_prctl:158:- exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 restart_syscall:219:128
gettid:186:178 getpid:39:172 getppid:110:173 getpgrp:111:- getpgid:121:155 getsid:124:156 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 capget:125:90
getpriority:140:141 getrlimit:97:163 getrusage:98:165 uname:63:160 sysinfo:99:179 getrandom:318:278
# receiving signals, time, waiting
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sigaltstack:131:132 pause:34:- signalfd:282:- signalfd4:289:74 clock_gettime:228:113
clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201:- times:100:153 alarm:37:-
getitimer:36:102 setitimer:38:103 timer_create:222:107 timer_settime:223:110 timer_gettime:224:108
timer_getoverrun:225:109 timer_delete:226:111 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87
poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19
"""
_WRITING = """
open:2:- openat:257:56 creat:85:- mkdir:83:- mkdirat:258:34 rename:82:- renameat:264:38 renameat2:316:276 unlink:87:-
unlinkat:263:35 rmdir:84:- link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 truncate:76:45 ftruncate:77:46
fallocate:285:47 fsync:74:82 fdatasync:75:83 sync_file_range:277:84 copy_file_range:326:285
"""
_PROCESSES = """
fork:57:- vfork:58:- execve:59:221 execveat:322:281 setpgid:109:154 setsid:112:157 kill:62:129 tgkill:234:131
ioctl:16:29 memfd_create:319:279
"""
_CHECKED = """
clone:56:220 execve:59:221 kill:62:129 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
prctl:157:167 prlimit64:302:261 fcntl:72:25 ioctl:16:29 open:2:- openat:257:56
"""
_NEWER_CALLS = 424
"""From this number, calls have the same number on all architectures, and C libraries can work without them."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The machines whose calls are known here, with the kernel's number for them (`AUDIT_ARCH_...`)."""
_X32_BIT = 0x40000000

ALLOW, KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_CALL_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; each argument has 64 bits."""

_CLONE_THREAD, _CLONE_PTRACE = 0x10000, 0x2000
_CLONE_NAMESPACES = 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_OPEN_TO_WRITE = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | 0o20000000
"""The last number is O_TMPFILE without the bit that it shares with O_DIRECTORY."""
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034)
"""Duplicating, flags and locks; not F_SETOWN and F_SETSIG (signals to other processes), leases, or larger pipes."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Whether it is a terminal, its width, how much can be read, blocking, close on exec."""
_PRCTL = (2, 3, 15, 16, 21, 23, 29, 30, 39, 51, 52, 55, 56, 64, 0x53564D41)
"""Reading settings; names of threads and of memory, and the widths of vector registers."""

_PR_SET_SECCOMP, _FILTER_MODE = 22, 2
_libc = ctypes.CDLL(None, use_errno=True)

_Code = list[tuple[int, int, int, int]]
"""Instructions: operation, instructions to skip if true, instructions to skip if false, operand."""
_Test = tuple[int, int, tuple[int, ...]]
"""The offset of a word of the call, the mask of its tested bits, and the allowed values."""


def machine() -> str | None:
    """Return the architecture of this process if its calls are known here, else None."""
    name = os.uname().machine if sys.platform.startswith("linux") else ""
    return name if name in ARCHITECTURES and sys.maxsize > 1 << 32 and sys.byteorder == "little" else None


def is_available() -> bool:
    """Return whether this kernel supports filters and the architecture is known."""
    if machine() is None:
        return False
    # A filter at address 0 always fails. The error is EFAULT only if the kernel supports filters.
    zero = ctypes.c_ulong(0)
    _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), zero, zero, zero)
    return ctypes.get_errno() == errno.EFAULT


def filter_program(machine: str, pid: int, secret: Sequence[int], *, writing: bool, processes: bool) -> bytes:
    """Return the filter for the process `pid`, to pass to `install`.

    `secret` is two random numbers below 2^64. The process may execute another program only by an `execve` that has them
    as its fourth and fifth argument, which the kernel ignores. The code that sets the filter knows them and starts the
    program with them. The memory and the registers of the program do not contain them. `writing` allows calls that
    change files, `processes` new processes and programs.
    """
    column = list(ARCHITECTURES).index(machine)
    allowed = _numbers(_ALWAYS, column)
    for is_allowed, calls in ((writing, _WRITING), (processes, _PROCESSES)):
        allowed |= _numbers(calls, column) if is_allowed else {}
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _CALL_NUMBER),
    ]
    if machine == "x86_64":
        code += [(_IF_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL)]
    for number in sorted(allowed.values()):
        code += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, ALLOW)]
    tests = _tests(pid, secret, processes=processes)
    for name, number in _numbers(_CHECKED, column).items():
        if name not in allowed and name in tests:
            body = _body(tests[name], errno.EACCES if name.startswith("open") else errno.EPERM)
            code += [(_IF_EQUAL, 0, len(body), number), *body]
    code += [(_IF_AT_LEAST, 0, 1, _NEWER_CALLS), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += [(_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Restrict this thread, and everything that it starts, to the calls that `program` allows. Raises OSError."""
    forbid_new_privileges()
    instructions = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions)))
    zero = ctypes.c_ulong(0)
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), header, zero, zero):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def execute(program: str, arguments: Sequence[str], environment: Mapping[bytes, bytes], secret: Sequence[int]) -> None:
    """Execute `program` (a path) in this process, under a filter with `secret`. Does not return; raises OSError."""
    words = [os.fsencode(word) for word in arguments]
    variables = [name + b"=" + value for name, value in environment.items()]
    _libc.syscall(
        ctypes.c_long(_numbers(_CHECKED, list(ARCHITECTURES).index(os.uname().machine))["execve"]),
        os.fsencode(program),
        (ctypes.c_char_p * (len(words) + 1))(*words, None),
        (ctypes.c_char_p * (len(variables) + 1))(*variables, None),
        *(ctypes.c_uint64(word) for word in secret),
    )
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), program)


def _numbers(calls: str, column: int) -> dict[str, int]:
    """Return the numbers of `calls` by name, without the calls that the architecture does not have."""
    lines = (line for line in calls.splitlines() if not line.startswith("#"))
    fields = (call.split(":") for line in lines for call in line.split())
    return {name: int(numbers[column]) for name, *numbers in fields if numbers[column] != "-"}


def _tests(pid: int, secret: Sequence[int], *, processes: bool) -> dict[str, tuple[_Test, ...]]:
    """Return the tests of the arguments for calls that are only allowed with certain arguments."""
    flags = _CLONE_NAMESPACES | _CLONE_PTRACE | (0 if processes else _CLONE_THREAD)
    to_itself = (_word(0), _ALL, (pid,))
    for_reading = ((_word(1), _OPEN_TO_WRITE, (0,)), (_word(2), _OPEN_TO_WRITE, (0,)))
    tests: dict[str, tuple[_Test, ...]] = {
        "clone": ((_word(0), flags, (0 if processes else _CLONE_THREAD,)),),
        "execve": tuple(
            (_word(3 + place, high=high), _ALL, (number >> 32 if high else number & _ALL,))
            for place, number in enumerate(secret)
            for high in (False, True)
        ),
        "prctl": ((_word(0), _ALL, _PRCTL),),
        "prlimit64": ((_word(2), _ALL, (0,)), (_word(2, high=True), _ALL, (0,))),  # no new limit: reading only
        "fcntl": ((_word(1), _ALL, _FCNTL),),
        "ioctl": ((_word(1), _ALL, _IOCTL),),
        "open": for_reading[:1],
        "openat": for_reading[1:],
        **dict.fromkeys(("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), (to_itself,)),
    }
    return tests


_ALL = 0xFFFFFFFF


def _word(argument: int, *, high: bool = False) -> int:
    """Return the offset of the low or high half of an argument. Both architectures are little-endian."""
    return _ARGUMENTS + 8 * argument + (4 if high else 0)


def _body(tests: Sequence[_Test], error: int) -> _Code:
    """Return code that allows the call if it passes all `tests`; otherwise the call fails with `error`."""
    blocks: list[_Code] = []
    for offset, mask, values in tests:
        block: _Code = [(_LOAD, 0, 0, offset), *([] if mask == _ALL else [(_AND, 0, 0, mask)])]
        # A value that matches jumps behind the block. If the last value does not match, it jumps to the end.
        block += [(_IF_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values, start=1)]
        blocks.append(block)
    code: _Code = []
    size = sum(map(len, blocks))
    for block in blocks:
        code += block
        operation, when_true, _, value = code[-1]
        code[-1] = (operation, when_true, size + 1 - len(code), value)  # skips the rest and the RETURN ALLOW
    return [*code, (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, _ERRNO | error)]
