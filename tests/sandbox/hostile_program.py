"""A hostile program: tries forbidden actions in a confined process, and prints the results.

One line of JSON on stdin names the targets (`escape.World`). For each attempt it prints a line `{"attempt": NAME,
"succeeded": BOOLEAN, "detail": WORDS}`. It imports only the standard library, and also runs without a sandbox, which
shows that the attempts are real.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BIG = 1 << 36
HERE = "127.0.0.1"
SECRETS = {"ORGAN_TOKEN", "DATABASE_URL", "ORGAN_DATABASE_URL", "HOME"}
World = dict[str, Any]
"""The targets, by the names of `escape.World`."""

_libc = ctypes.CDLL(None, use_errno=True)
_X86 = platform.machine() == "x86_64"
_CALLS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clone3": (435, 435),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "setns": (308, 268),
    "shmget": (29, 194),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_PTRACE_SEIZE, _KEYCTL_JOIN, _NEWUSER, _NEWNET = 0x4206, 1, 0x10000000, 0x40000000
_MFD_BYTES, _FASTOPEN, _MPTCP = 64 * 2**20, 0x20000000, 262


def call(name: str, *arguments: Any) -> int:
    """Make a system call by its number. Raises OSError."""
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = int(_libc.syscall(ctypes.c_long(_CALLS[name][0 if _X86 else 1]), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> bytes:
    """Return the first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(64)


def write(path: str, mode: str = "r+b") -> int:
    with open(path, mode) as file:
        return int(file.write(b"changed"))


def connect(address: Any, family: int = socket.AF_INET, protocol: int = 0) -> bool:
    with socket.socket(family, socket.SOCK_STREAM, protocol) as connection:
        connection.settimeout(5)
        connection.connect(address)
    return True


def send(kind: int, flags: int, address: Any) -> int:
    with socket.socket(socket.AF_INET, kind) as sender:
        return sender.sendto(b"x", flags, address)


def open_process(world: World) -> int:
    """Return a descriptor of the process that started this one."""
    return call("pidfd_open", world["parent"], 0)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def read_the_database_by_a_symlink(world: World) -> object:
    link = Path(_somewhere(world), "link")
    link.symlink_to(world["database"])
    return read(str(link))


def read_the_database_by_a_hard_link(world: World) -> object:
    link = Path(_somewhere(world), "hard")
    os.link(world["database"], link)
    return read(str(link))


def read_the_database_by_a_hard_link_through_a_descriptor(world: World) -> object:
    descriptor = os.open(world["database"], os.O_PATH)
    link = Path(_somewhere(world), "through")
    os.link(f"/proc/self/fd/{descriptor}", link, src_dir_fd=1, follow_symlinks=True)
    return read(str(link))


def read_the_database_by_opening_a_path_descriptor_again(world: World) -> object:
    descriptor = os.open(world["database"], os.O_PATH)
    return read(f"/proc/self/fd/{descriptor}")


def open_a_file_by_its_handle(world: World) -> object:
    handle = ctypes.create_string_buffer(256)  # a struct file_handle: room for 128 bytes
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
    mount = ctypes.c_int()
    if _libc.name_to_handle_at(-100, world["database"].encode(), handle, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "no handle")
    return call("open_by_handle_at", -100, handle, os.O_RDONLY) >= 0


def _somewhere(world: World) -> str:
    """Return a writable folder, if there is any."""
    for place in (world["home"], tempfile.gettempdir(), "/dev/shm"):
        try:
            return tempfile.mkdtemp(dir=place)
        except OSError as error:
            refusal = error
    raise refusal


def change_the_mode_of_a_file_that_it_may_read(world: World) -> object:
    descriptor = os.open(world["own"], os.O_RDONLY)
    os.fchmod(descriptor, 0o777)
    return True


def make_a_file_in_tmp(_: World) -> object:
    with tempfile.NamedTemporaryFile() as file:
        return file.name


def make_a_file_in_shared_memory(_: World) -> object:
    Path("/dev/shm/organ-escape").write_bytes(b"1")
    os.unlink("/dev/shm/organ-escape")
    return True


def listen_on_a_port_of_its_choice(_: World) -> object:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        return server.getsockname()


def make_a_pair_of_unix_sockets(_: World) -> object:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    first.close()
    second.close()
    return True


def fork_a_process(_: World) -> object:
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)


def make_a_process_by_clone3(_: World) -> object:
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD)
    pid = call("clone3", arguments, 88)
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)


def leave_a_daemon_behind(world: World) -> object:
    reads, writes = os.pipe()
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        os.write(writes, f"{os.getpid()}\n".encode())
        time.sleep(world["daemon_seconds"])
        os._exit(0)
    os.wait()
    print(json.dumps({"daemon": int(os.read(reads, 20))}), flush=True)
    return True


def signal_its_parent_when_a_pipe_is_ready(world: World) -> object:
    import fcntl

    reads, _ = os.pipe()
    fcntl.fcntl(reads, 8, world["parent"])  # F_SETOWN
    return fcntl.fcntl(reads, 9) == world["parent"]  # F_GETOWN


def read_the_memory_of_its_parent_by_a_call(world: World) -> object:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_uint64 * 2)(world["address"], 8)
    return call("process_vm_readv", world["parent"], local, 1, remote, 1, 0) == 8


def raise_its_limits(_: World) -> object:
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


def raise_its_priority(_: World) -> object:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before - 1)
    return os.getpriority(os.PRIO_PROCESS, 0) < before


def fill_memory_that_no_limit_counts(_: World) -> object:
    descriptor = call("memfd_create", ctypes.c_char_p(b"x"), 0)
    os.ftruncate(descriptor, BIG)
    return os.write(descriptor, bytes(_MFD_BYTES))


def take_shared_memory_that_outlives_it(_: World) -> object:
    segment = call("shmget", 0, 4096, 0o600)
    _libc.shmctl(segment, 0, None)
    return segment >= 0


def mount_a_file_system(world: World) -> object:
    target = world["home"].encode() + b"/mounted"
    if _libc.mount(b"none", target, b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    return _libc.umount2(target, 0) == 0


def use_bpf(_: World) -> object:
    attributes = (ctypes.c_uint32 * 16)(2, 4, 4, 1)  # an array of one number
    return call("bpf", 0, attributes, 64) >= 0


def use_performance_counters(_: World) -> object:
    attributes = (ctypes.c_uint32 * 32)(1, 128, 0, 0)
    return call("perf_event_open", attributes, 0, -1, -1, 0) >= 0


def load_a_module_into_the_kernel(_: World) -> object:
    try:
        call("init_module", ctypes.create_string_buffer(8), 8, ctypes.c_char_p(b""))
    except OSError as error:
        return error.errno == 8  # ENOEXEC: the kernel has read it
    return True


def become_a_shell(_: World) -> object:
    sys.stdout.flush()
    os.execv("/bin/sh", ["/bin/sh", "-c", 'echo \'{"attempt": "become a shell", "succeeded": true, "detail": ""}\''])
    return True


def call_the_kernel_as_a_32_bit_program(_: World) -> object:
    if not _X86:
        return False
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, getpid of 32 bits; int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    return function() == os.getpid()


def burn_more_processor_time_than_its_limit(world: World) -> object:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < world["cpu_seconds"] + 7:
        pass
    return True


def print_without_end(_: World) -> object:
    for _ in range(64):
        os.write(1, b"x" * 2**20)
    time.sleep(1)
    return True


ATTEMPTS: dict[str, Callable[[World], object]] = {
    # inherited resources
    "find a secret in its environment": lambda _: SECRETS & os.environ.keys(),
    "find a descriptor that was left open": lambda world: [
        one for one in range(3, 256) if one not in world["descriptors"] and _is_open(one)
    ],
    # files: reading
    "read the database": lambda world: read(world["database"]),
    "read the upload of another": lambda world: read(world["upload"]),
    "read the tokens of the command": lambda world: read(world["tokens"]),
    "read etc shadow": lambda _: read("/etc/shadow"),
    "read etc passwd": lambda _: read("/etc/passwd"),
    "list the home": lambda world: os.listdir(world["home"]),
    "list the root": lambda _: os.listdir("/"),
    "read the database by proc self root": lambda world: read(f"/proc/self/root{world['database']}"),
    "read the database by a relative path": lambda world: read(os.path.relpath(world["database"])),
    "read the database by a symlink": read_the_database_by_a_symlink,
    "read the database by a hard link": read_the_database_by_a_hard_link,
    "read the database by a hard link through a descriptor": read_the_database_by_a_hard_link_through_a_descriptor,
    "read the database by opening a path descriptor again": read_the_database_by_opening_a_path_descriptor_again,
    "open a file by its handle": open_a_file_by_its_handle,
    # files: changing
    "write into a file of the home": lambda world: write(world["victim"]),
    "append to the database": lambda world: write(world["database"], "ab"),
    "truncate a file of the home": lambda world: os.truncate(world["victim"], 1) is None,
    "rename a file of the home": lambda world: os.rename(world["renamed"], world["renamed"] + ".mine") is None,
    "remove a file of the home": lambda world: os.unlink(world["removed"]) is None,
    "change the mode of a file of the home": lambda world: os.chmod(world["victim"], 0o777) is None,
    "change the owner of a file of the home": lambda world: os.chown(world["victim"], os.getuid(), os.getgid()) is None,
    "change the times of a file of the home": lambda world: os.utime(world["victim"], (1, 1)) is None,
    "set an attribute of a file of the home": lambda world: os.setxattr(world["victim"], "user.organ", b"1") is None,
    "change the mode of a file that it may read": change_the_mode_of_a_file_that_it_may_read,
    "write into a file that it may read": lambda world: write(world["own"]),
    "make a file in the home": lambda world: Path(world["home"], "made").write_bytes(b"1"),
    "make a file in tmp": make_a_file_in_tmp,
    "make a file without a name": lambda _: os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600),
    "make a file in shared memory": make_a_file_in_shared_memory,
    "make a device": lambda world: os.mknod(Path(world["home"], "device"), 0o600 | 0o20000, os.makedev(1, 5)) is None,
    "make a named pipe": lambda world: os.mkfifo(Path(world["home"], "pipe")) is None,
    # network
    "connect to a port that listens": lambda world: connect((HERE, world["listening"])),
    "connect by fast open": lambda world: send(socket.SOCK_STREAM, _FASTOPEN, (HERE, world["listening"])),
    "connect by multipath tcp": lambda world: connect((HERE, world["listening"]), protocol=_MPTCP),
    "connect over ipv6": lambda world: connect(("::ffff:127.0.0.1", world["listening"]), socket.AF_INET6),
    "listen on a port of its choice": listen_on_a_port_of_its_choice,
    "send by udp": lambda world: send(socket.SOCK_DGRAM, 0, (HERE, world["udp"])),
    "open a raw socket": lambda _: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "open a netlink socket": lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "connect to a unix socket": lambda world: connect(world["unix"], socket.AF_UNIX),
    "connect to an abstract unix socket": lambda world: connect("\0" + world["abstract"], socket.AF_UNIX),
    "make a pair of unix sockets": make_a_pair_of_unix_sockets,
    # processes
    "fork a process": fork_a_process,
    "make a process by clone3": make_a_process_by_clone3,
    "run a shell": lambda _: subprocess.run(["/bin/sh", "-c", "exit 0"], check=True, close_fds=False),
    "spawn a shell": lambda _: os.posix_spawn("/bin/sh", ["/bin/sh", "-c", "exit 0"], {}),
    "leave a daemon behind": leave_a_daemon_behind,
    "signal its parent": lambda world: os.kill(world["parent"], signal.SIGCONT) is None,
    "signal everybody": lambda _: os.kill(-1, 0) is None,
    "signal its parent when a pipe is ready": signal_its_parent_when_a_pipe_is_ready,
    "trace its parent": lambda world: call("ptrace", _PTRACE_SEIZE, world["parent"], 0, 0) == 0,
    "read the memory of its parent": lambda world: os.open(f"/proc/{world['parent']}/mem", os.O_RDONLY),
    "read the memory of its parent by a call": read_the_memory_of_its_parent_by_a_call,
    "read the environment of its parent": lambda world: read(f"/proc/{world['parent']}/environ"),
    "take a descriptor of its parent": lambda world: call("pidfd_getfd", open_process(world), 0, 0) >= 0,
    "list the descriptors of its parent": lambda world: os.listdir(f"/proc/{world['parent']}/fd"),
    # limits, and the kernel
    "raise its limits": raise_its_limits,
    "raise its priority": raise_its_priority,
    "take more memory than its limit": lambda _: mmap.mmap(-1, BIG).close() is None,
    "fill memory that no limit counts": fill_memory_that_no_limit_counts,
    "take shared memory that outlives it": take_shared_memory_that_outlives_it,
    "enter the namespaces of its parent": lambda world: call("setns", open_process(world), _NEWNET) == 0,
    "mount a file system": mount_a_file_system,
    "use keyrings": lambda _: call("keyctl", _KEYCTL_JOIN, 0) >= 0 or call("add_key", 0, 0, 0, 0, 0),
    "use bpf": use_bpf,
    "use performance counters": use_performance_counters,
    "use io uring": lambda _: call("io_uring_setup", 1, ctypes.create_string_buffer(120)) >= 0,
    "use userfaultfd": lambda _: call("userfaultfd", 1) >= 0,
    "change its personality": lambda _: call("personality", 0x0040000) >= 0,  # addresses that are not random
    "load a module into the kernel": load_a_module_into_the_kernel,
    # last, because their changes are permanent
    "make a user namespace": lambda _: call("unshare", _NEWUSER | _NEWNET) == 0,
    "change its root": lambda world: os.chroot(world["home"]) is None,
}
"""Each attempt succeeds unless it returns a false value or raises an error of the system."""
ENDS: dict[str, Callable[[World], object]] = {
    "become a shell": become_a_shell,
    "call the kernel as a 32 bit program": call_the_kernel_as_a_32_bit_program,
    "burn more processor time than its limit": burn_more_processor_time_than_its_limit,
    "print without end": print_without_end,
}
"""Attempts that can end the process: each has a run of its own."""


def main() -> None:
    """Make the attempt that the command line names, or all that leave the process alive."""
    world = json.loads(sys.stdin.readline())
    chosen = {sys.argv[1]: ENDS[sys.argv[1]]} if len(sys.argv) > 1 else ATTEMPTS
    for name, function in chosen.items():
        try:
            result = function(world)
            succeeded, detail = bool(result), ""
        except (OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
            succeeded, detail = False, f"{type(error).__name__}: {error}"
        print(json.dumps({"attempt": name, "succeeded": succeeded, "detail": detail}), flush=True)


if __name__ == "__main__":
    main()
