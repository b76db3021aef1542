"""The escape test: a hostile program in place of a confined one, as this user and, for root, as another user.

`World` has its targets: a registry's folder, tokens, sockets, and the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, run_python
from tests.sandbox.hostile_program import ENDS

ROOT = Path(__file__).parents[2]
SECRETS = {"ORGAN_TOKEN": "organ_secret", "DATABASE_URL": "postgresql://u:secret@db/x"}
CPU_SECONDS = 2
LIMITS = ProcessLimits(wall_seconds=60, cpu_seconds=CPU_SECONDS, address_space_bytes=4 * 2**30, niceness=5)
"""No limit on the size of files, because nothing may be written."""
_MARK = ctypes.create_string_buffer(b"a secret")


@dataclass(frozen=True, slots=True)
class World:
    """The targets of the attack."""

    home: str
    database: str
    upload: str
    tokens: str
    own: str
    """A file that the confined process may read, such as a model."""
    victim: str
    renamed: str
    removed: str
    listening: int
    udp: int
    unix: str
    abstract: str
    parent: int
    address: int
    """The address of eight bytes in the memory of the parent."""
    descriptors: tuple[int, ...] = ()
    cpu_seconds: int = CPU_SECONDS
    daemon_seconds: int = 120


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt."""

    attempt: str
    succeeded: bool
    detail: str


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Yield a world in the empty `folder`, with listening sockets."""
    home, settings = folder / "home", folder / "settings"
    for place in (home / "uploads", home / "mounted", settings):
        place.mkdir(parents=True)
    files = {
        "database": home / "registry.sqlite3",
        "upload": home / "uploads" / "of-another",
        "tokens": settings / "tokens.json",
        "own": home / "uploads" / "own",
        **{name: home / name for name in ("victim", "renamed", "removed")},
    }
    for path in files.values():
        path.write_bytes(b"some bytes that matter")
    with ExitStack() as opened:
        tcp = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        abstract = f"organ-escape-{os.getpid()}"
        for address in (str(folder / "unix"), "\0" + abstract):
            listening = opened.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(address)
            listening.listen()
        yield World(
            home=str(home),
            **{name: str(path) for name, path in files.items()},
            listening=tcp.getsockname()[1],
            udp=udp.getsockname()[1],
            unix=str(folder / "unix"),
            abstract=abstract,
            parent=os.getpid(),
            address=ctypes.addressof(_MARK),
        )


def try_to_escape(attacked: World, ends: Sequence[str] = tuple(ENDS)) -> list[Outcome]:
    """Run the hostile program as a confined process; return the outcome of every attempt."""
    outcomes, daemons = _outcomes(_run(attacked))
    for daemon in daemons:
        outcomes.append(Outcome("outlive the run as a daemon", _is_alive(daemon), ""))
        if outcomes[-1].succeeded:
            os.kill(daemon, signal.SIGKILL)
    for name in ends:
        result = _run(attacked, name)
        outcomes_of_end, _ = _outcomes(result)
        outcomes += outcomes_of_end or [Outcome(name, False, result.stopped or f"ended by {result.signal_name}")]
    return outcomes


def search_path() -> str:
    """Return the import path of the hostile program: its own package and the product."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return os.pathsep.join([str(ROOT), str(ROOT / "src"), *packages])


def _run(attacked: World, *arguments: str) -> Result:
    """Run the program with the grants of all confined programs: a file to read, and two pipes."""
    tests = (ROOT / "tests" / "__init__.py", ROOT / "tests" / "sandbox")
    pipes = os.pipe()
    try:
        targets = json.dumps(asdict(replace(attacked, descriptors=pipes))).encode() + b"\n"
        return run_python(
            "tests.sandbox.hostile_program",
            LIMITS,
            Sandbox(read=(*tests, Path(attacked.own)), listed=(ROOT,)),
            targets,
            arguments=arguments,
            variables={"PYTHONPATH": search_path()},
            descriptors=pipes,
        )
    finally:
        for descriptor in pipes:
            os.close(descriptor)


def _outcomes(result: Result) -> tuple[list[Outcome], list[int]]:
    lines = [json.loads(line) for line in result.output.splitlines() if line.startswith(b"{")]
    outcomes = [Outcome(**line) for line in lines if "attempt" in line]
    return outcomes, [int(line["daemon"]) for line in lines if "daemon" in line]


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            return status.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def try_in(folder: Path) -> list[Outcome]:
    with world(folder / "world") as attacked:
        return try_to_escape(attacked)
