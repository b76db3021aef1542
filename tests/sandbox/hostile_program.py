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
ATTEMPTS: dict[str, Callable[[dict[str, Any]], object]] = {}
ENDS: dict[str, Callable[[dict[str, Any]], object]] = {}
"""Attempts that can end the process: each has a run of its own."""

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


def attempt(function: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    """Run one attempt by the name of its function: it succeeds unless it returns a false value or raises OSError."""
    ATTEMPTS[_words(function)] = function
    return function


def ending(function: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    """Run an attempt that may end the process."""
    ENDS[_words(function)] = function
    return function


def _words(function: Callable[[dict[str, Any]], object]) -> str:
    return function.__name__.replace("_", " ")


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


# --- inherited resources


@attempt
def find_a_secret_in_its_environment(_: dict[str, Any]) -> object:
    return [name for name in os.environ if name in ("ORGAN_TOKEN", "DATABASE_URL", "ORGAN_DATABASE_URL", "HOME")]


@attempt
def find_a_descriptor_that_was_left_open(world: dict[str, Any]) -> object:
    return [number for number in range(3, 256) if number not in world["descriptors"] and _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


# --- files: reading


@attempt
def read_the_database(world: dict[str, Any]) -> object:
    return read(world["database"])


@attempt
def read_the_upload_of_another(world: dict[str, Any]) -> object:
    return read(world["upload"])


@attempt
def read_the_tokens_of_the_command(world: dict[str, Any]) -> object:
    return read(world["tokens"])


@attempt
def read_etc_shadow(_: dict[str, Any]) -> object:
    return read("/etc/shadow")


@attempt
def read_etc_passwd(_: dict[str, Any]) -> object:
    return read("/etc/passwd")


@attempt
def list_the_home(world: dict[str, Any]) -> object:
    return os.listdir(world["home"])


@attempt
def list_the_root(_: dict[str, Any]) -> object:
    return os.listdir("/")


@attempt
def read_the_database_by_proc_self_root(world: dict[str, Any]) -> object:
    return read(f"/proc/self/root{world['database']}")


@attempt
def read_the_database_by_a_relative_path(world: dict[str, Any]) -> object:
    return read(os.path.relpath(world["database"]))


@attempt
def read_the_database_by_a_symlink(world: dict[str, Any]) -> object:
    link = Path(_somewhere(world), "link")
    link.symlink_to(world["database"])
    return read(str(link))


@attempt
def read_the_database_by_a_hard_link(world: dict[str, Any]) -> object:
    link = Path(_somewhere(world), "hard")
    os.link(world["database"], link)
    return read(str(link))


@attempt
def read_the_database_by_a_hard_link_through_a_descriptor(world: dict[str, Any]) -> object:
    descriptor = os.open(world["database"], os.O_PATH)
    link = Path(_somewhere(world), "through")
    os.link(f"/proc/self/fd/{descriptor}", link, src_dir_fd=1, follow_symlinks=True)
    return read(str(link))


@attempt
def read_the_database_by_opening_a_path_descriptor_again(world: dict[str, Any]) -> object:
    descriptor = os.open(world["database"], os.O_PATH)
    return read(f"/proc/self/fd/{descriptor}")


@attempt
def open_a_file_by_its_handle(world: dict[str, Any]) -> object:
    handle = ctypes.create_string_buffer(256)  # a struct file_handle: room for 128 bytes
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
    mount = ctypes.c_int()
    if _libc.name_to_handle_at(-100, world["database"].encode(), handle, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "no handle")
    return call("open_by_handle_at", -100, handle, os.O_RDONLY) >= 0


# --- files: changing


def _somewhere(world: dict[str, Any]) -> str:
    """Return a writable folder, if there is any."""
    for place in (world["home"], tempfile.gettempdir(), "/dev/shm"):
        try:
            return tempfile.mkdtemp(dir=place)
        except OSError as error:
            refusal = error
    raise refusal


@attempt
def write_into_a_file_of_the_home(world: dict[str, Any]) -> object:
    with open(world["victim"], "r+b") as file:
        return file.write(b"changed")


@attempt
def append_to_the_database(world: dict[str, Any]) -> object:
    with open(world["database"], "ab") as file:
        return file.write(b"!")


@attempt
def truncate_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.truncate(world["victim"], 1)
    return True


@attempt
def rename_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.rename(world["renamed"], world["renamed"] + ".mine")
    return True


@attempt
def remove_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.unlink(world["removed"])
    return True


@attempt
def change_the_mode_of_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.chmod(world["victim"], 0o777)
    return True


@attempt
def change_the_owner_of_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.chown(world["victim"], os.getuid(), os.getgid())
    return True


@attempt
def change_the_times_of_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.utime(world["victim"], (1, 1))
    return True


@attempt
def set_an_attribute_of_a_file_of_the_home(world: dict[str, Any]) -> object:
    os.setxattr(world["victim"], "user.organ", b"1")
    return True


@attempt
def change_the_mode_of_a_file_that_it_may_read(world: dict[str, Any]) -> object:
    descriptor = os.open(world["own"], os.O_RDONLY)
    os.fchmod(descriptor, 0o777)
    return True


@attempt
def write_into_a_file_that_it_may_read(world: dict[str, Any]) -> object:
    with open(world["own"], "r+b") as file:
        return file.write(b"changed")


@attempt
def make_a_file_in_the_home(world: dict[str, Any]) -> object:
    Path(world["home"], "made").write_bytes(b"1")
    return True


@attempt
def make_a_file_in_tmp(_: dict[str, Any]) -> object:
    with tempfile.NamedTemporaryFile() as file:
        return file.name


@attempt
def make_a_file_without_a_name(_: dict[str, Any]) -> object:
    return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)


@attempt
def make_a_file_in_shared_memory(_: dict[str, Any]) -> object:
    Path("/dev/shm/organ-escape").write_bytes(b"1")
    os.unlink("/dev/shm/organ-escape")
    return True


@attempt
def make_a_device(world: dict[str, Any]) -> object:
    os.mknod(Path(world["home"], "device"), 0o600 | 0o20000, os.makedev(1, 5))
    return True


@attempt
def make_a_named_pipe(world: dict[str, Any]) -> object:
    os.mkfifo(Path(world["home"], "pipe"))
    return True


# --- network


@attempt
def connect_to_a_port_that_listens(world: dict[str, Any]) -> object:
    with socket.create_connection(("127.0.0.1", world["listening"]), timeout=5):
        return True


@attempt
def connect_by_fast_open(world: dict[str, Any]) -> object:
    with socket.socket() as connection:
        return connection.sendto(b"x", _FASTOPEN, ("127.0.0.1", world["listening"]))


@attempt
def connect_by_multipath_tcp(world: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, _MPTCP) as connection:
        connection.connect(("127.0.0.1", world["listening"]))
    return True


@attempt
def connect_over_ipv6(world: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as connection:
        connection.connect(("::ffff:127.0.0.1", world["listening"]))
    return True


@attempt
def listen_on_a_port_of_its_choice(_: dict[str, Any]) -> object:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        return server.getsockname()


@attempt
def send_by_udp(world: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"x", ("127.0.0.1", world["udp"]))


@attempt
def open_a_raw_socket(_: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return True


@attempt
def open_a_netlink_socket(_: dict[str, Any]) -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        return True


@attempt
def connect_to_a_unix_socket(world: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(world["unix"])
    return True


@attempt
def connect_to_an_abstract_unix_socket(world: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + world["abstract"])
    return True


@attempt
def make_a_pair_of_unix_sockets(_: dict[str, Any]) -> object:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    first.close()
    second.close()
    return True


# --- processes


@attempt
def fork_a_process(_: dict[str, Any]) -> object:
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)


@attempt
def make_a_process_by_clone3(_: dict[str, Any]) -> object:
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD)
    pid = call("clone3", arguments, 88)
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)


@attempt
def run_a_shell(_: dict[str, Any]) -> object:
    return subprocess.run(["/bin/sh", "-c", "exit 0"], check=True, close_fds=False)


@attempt
def spawn_a_shell(_: dict[str, Any]) -> object:
    return os.posix_spawn("/bin/sh", ["/bin/sh", "-c", "exit 0"], {})


@attempt
def leave_a_daemon_behind(world: dict[str, Any]) -> object:
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


@attempt
def signal_its_parent(world: dict[str, Any]) -> object:
    os.kill(world["parent"], signal.SIGCONT)
    return True


@attempt
def signal_everybody(_: dict[str, Any]) -> object:
    os.kill(-1, 0)
    return True


@attempt
def signal_its_parent_when_a_pipe_is_ready(world: dict[str, Any]) -> object:
    import fcntl

    reads, _ = os.pipe()
    fcntl.fcntl(reads, 8, world["parent"])  # F_SETOWN
    return fcntl.fcntl(reads, 9) == world["parent"]  # F_GETOWN


@attempt
def trace_its_parent(world: dict[str, Any]) -> object:
    return call("ptrace", _PTRACE_SEIZE, world["parent"], 0, 0) == 0


@attempt
def read_the_memory_of_its_parent(world: dict[str, Any]) -> object:
    with open(f"/proc/{world['parent']}/mem", "rb"):
        return True


@attempt
def read_the_memory_of_its_parent_by_a_call(world: dict[str, Any]) -> object:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_uint64 * 2)(world["address"], 8)
    return call("process_vm_readv", world["parent"], local, 1, remote, 1, 0) == 8


@attempt
def read_the_environment_of_its_parent(world: dict[str, Any]) -> object:
    return read(f"/proc/{world['parent']}/environ")


@attempt
def take_a_descriptor_of_its_parent(world: dict[str, Any]) -> object:
    return call("pidfd_getfd", call("pidfd_open", world["parent"], 0), 0, 0) >= 0


@attempt
def list_the_descriptors_of_its_parent(world: dict[str, Any]) -> object:
    return os.listdir(f"/proc/{world['parent']}/fd")


# --- limits, and the kernel


@attempt
def raise_its_limits(_: dict[str, Any]) -> object:
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


@attempt
def raise_its_priority(_: dict[str, Any]) -> object:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before - 1)
    return os.getpriority(os.PRIO_PROCESS, 0) < before


@attempt
def take_more_memory_than_its_limit(_: dict[str, Any]) -> object:
    mmap.mmap(-1, BIG).close()
    return True


@attempt
def fill_memory_that_no_limit_counts(_: dict[str, Any]) -> object:
    descriptor = call("memfd_create", ctypes.c_char_p(b"x"), 0)
    os.ftruncate(descriptor, BIG)
    return os.write(descriptor, bytes(_MFD_BYTES))


@attempt
def take_shared_memory_that_outlives_it(_: dict[str, Any]) -> object:
    segment = call("shmget", 0, 4096, 0o600)
    _libc.shmctl(segment, 0, None)
    return segment >= 0


@attempt
def enter_the_namespaces_of_its_parent(world: dict[str, Any]) -> object:
    return call("setns", call("pidfd_open", world["parent"], 0), _NEWNET) == 0


@attempt
def mount_a_file_system(world: dict[str, Any]) -> object:
    target = world["home"].encode() + b"/mounted"
    if _libc.mount(b"none", target, b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    return _libc.umount2(target, 0) == 0


@attempt
def use_keyrings(_: dict[str, Any]) -> object:
    return call("keyctl", _KEYCTL_JOIN, 0) >= 0 or call("add_key", 0, 0, 0, 0, 0)


@attempt
def use_bpf(_: dict[str, Any]) -> object:
    attributes = (ctypes.c_uint32 * 16)(2, 4, 4, 1)  # an array of one number
    return call("bpf", 0, attributes, 64) >= 0


@attempt
def use_performance_counters(_: dict[str, Any]) -> object:
    attributes = (ctypes.c_uint32 * 32)(1, 128, 0, 0)
    return call("perf_event_open", attributes, 0, -1, -1, 0) >= 0


@attempt
def use_io_uring(_: dict[str, Any]) -> object:
    return call("io_uring_setup", 1, ctypes.create_string_buffer(120)) >= 0


@attempt
def use_userfaultfd(_: dict[str, Any]) -> object:
    return call("userfaultfd", 1) >= 0


@attempt
def change_its_personality(_: dict[str, Any]) -> object:
    return call("personality", 0x0040000) >= 0  # addresses that are not random


@attempt
def load_a_module_into_the_kernel(_: dict[str, Any]) -> object:
    try:
        call("init_module", ctypes.create_string_buffer(8), 8, ctypes.c_char_p(b""))
    except OSError as error:
        return error.errno == 8  # ENOEXEC: the kernel has read it
    return True


# --- last, because their changes are permanent


@attempt
def make_a_user_namespace(_: dict[str, Any]) -> object:
    return call("unshare", _NEWUSER | _NEWNET) == 0


@attempt
def change_its_root(world: dict[str, Any]) -> object:
    os.chroot(world["home"])
    return True


# --- each in a run of its own


@ending
def become_a_shell(_: dict[str, Any]) -> object:
    sys.stdout.flush()
    os.execv("/bin/sh", ["/bin/sh", "-c", 'echo \'{"attempt": "become a shell", "succeeded": true, "detail": ""}\''])
    return True


@ending
def call_the_kernel_as_a_32_bit_program(_: dict[str, Any]) -> object:
    if not _X86:
        return False
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, getpid of 32 bits; int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    return function() == os.getpid()


@ending
def burn_more_processor_time_than_its_limit(world: dict[str, Any]) -> object:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < world["cpu_seconds"] + 7:
        pass
    return True


@ending
def print_without_end(_: dict[str, Any]) -> object:
    for _ in range(64):
        os.write(1, b"x" * 2**20)
    time.sleep(1)
    return True


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
