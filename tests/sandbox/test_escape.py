"""The short form of the escape test; `make escape` is the long form."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from organs.registry.errors import NoSandbox, OrganError
from organs.registry.sandbox import process, protections
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_confined, run_python
from organs.registry.sandbox.protections import Kernel
from tests.sandbox.escape import ROOT, SECRETS, try_to_escape, world
from tests.sandbox.hostile_program import ATTEMPTS

QUICK_ENDS = ("become a shell", "call the kernel as a 32 bit program")
PYTHON = Sandbox(read=(Path(sys.base_prefix), Path(sys.prefix)))
NOTHING_BUT_LINUX = Kernel(landlock_abi=0, has_seccomp=False, is_linux=True)


def python(code: str, sandbox: Sandbox = PYTHON) -> process.Result:
    """Run `code` in a confined interpreter."""
    return run_confined([sys.executable, "-I", "-c", code], ProcessLimits(wall_seconds=60), sandbox, {}, Path("/"))


def test_every_attempt_of_a_hostile_program_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    with world(tmp_path) as attacked:
        outcomes = try_to_escape(attacked, QUICK_ENDS)
        assert Path(attacked.victim).read_bytes() == Path(attacked.database).read_bytes() == b"some bytes that matter"
    assert {outcome.attempt for outcome in outcomes} == {*ATTEMPTS, *QUICK_ENDS}
    assert [outcome.attempt for outcome in outcomes if outcome.succeeded] == []


@pytest.mark.parametrize("without", ["filter", "refusal"])
def test_a_daemon_dies_with_the_program_that_started_it(
    without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "filter":
        monkeypatch.setattr(process, "kernel", lambda: NOTHING_BUT_LINUX)
    code = f"""
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        open({str(tmp_path / "daemon")!r}, "w").write(str(os.getpid()))
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists({str(tmp_path / "daemon")!r}) or not os.path.getsize({str(tmp_path / "daemon")!r}):
    time.sleep(0.01)
"""
    sandbox = Sandbox(read=PYTHON.read, write=(tmp_path,), processes=without == "refusal")
    result = python(code, sandbox)
    assert result.code == 0, result.log
    assert not Path(f"/proc/{(tmp_path / 'daemon').read_text()}").exists()


def test_a_supervised_program_ends_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "kernel", lambda: NOTHING_BUT_LINUX)
    assert python("raise SystemExit(7)").code == 7
    assert python("import os; os.kill(os.getpid(), 11)").signal_name == "SIGSEGV"
    assert python("import os; os.kill(os.getpid(), 9)").signal_name == "SIGKILL"
    stopped = run_confined(
        [sys.executable, "-I", "-c", "import time; time.sleep(600)"],
        ProcessLimits(wall_seconds=0.5),
        PYTHON,
        {},
        Path("/"),
    ).stopped
    assert stopped == "it took longer than 0.5 s"


@pytest.mark.parametrize("processes", [False, True])
def test_a_program_dies_with_the_process_that_started_it(processes: bool, tmp_path: Path) -> None:
    started = tmp_path / "started"
    inner = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    outer = f"""
import sys
from pathlib import Path
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_confined
sandbox = Sandbox(read={PYTHON.read!r}, write=(Path({str(tmp_path)!r}),), processes={processes})
run_confined([sys.executable, "-I", "-c", {inner!r}], ProcessLimits(), sandbox, {{}}, Path("/"))
""".replace("PosixPath", "Path")
    with subprocess.Popen([sys.executable, "-c", outer], cwd=ROOT) as parent:
        wait_until(lambda: started.exists() and bool(started.read_text()))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(int(started.read_text())))


def wait_until(holds: object) -> None:
    deadline = time.monotonic() + 60
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def test_a_confined_process_uses_only_the_files_that_it_is_granted(tmp_path: Path) -> None:
    (tmp_path / "read").mkdir()
    (tmp_path / "read" / "model").write_bytes(b"GGUF")
    (tmp_path / "write").mkdir()
    code = f"""
import os, socket
read, write = {str(tmp_path / "read")!r}, {str(tmp_path / "write")!r}
assert open(read + "/model", "rb").read() == b"GGUF"
open(write + "/one", "w").write("1")
os.rename(write + "/one", write + "/two")
os.truncate(write + "/two", 0)
attempts = [
    lambda: open(read + "/model", "r+b"),
    lambda: open({str(tmp_path / "other")!r}, "w"),
    lambda: os.link(read + "/model", write + "/model"),
    lambda: socket.create_server(("127.0.0.1", 0)),
]
for refused in attempts:
    try:
        refused()
    except OSError:
        continue
    raise AssertionError
"""
    sandbox = Sandbox((*PYTHON.read, tmp_path / "read"), (tmp_path / "write",))
    result = python(code, sandbox)
    assert result.code == 0, result.log
    assert os.listdir(tmp_path / "write") == ["two"]


def test_modules_of_the_project_run_with_their_installed_packages() -> None:
    result = run_python(
        "timeit",
        ProcessLimits(),
        Sandbox(),
        arguments=["-n1", "-r1", "import numpy, organs.registry.gguf; numpy.ones((99, 99)) @ numpy.ones(99)"],
    )
    assert result.code == 0, result.log


def test_a_process_is_not_started_if_the_required_sandbox_is_missing() -> None:
    bare = protections.protections(NOTHING_BUT_LINUX, writing=False, processes=False)
    with pytest.raises(
        NoSandbox, match=r"ORGAN_SANDBOX is `require`.* files: It can read and write every file"
    ) as raised:
        protections.check_protections(bare, required=True)
    assert [fault.detail.partition(":")[0] for fault in raised.value.errors] == [
        *("files", "truncation", "network", "system calls", "signals"),
    ]


@pytest.mark.parametrize(
    ("abi", "writing", "processes", "missing"),
    [
        (7, True, False, []),
        (5, True, True, ["signals"]),
        (2, False, False, []),
        (2, True, False, ["truncation"]),
        (0, True, False, ["files", "truncation"]),
    ],
)
def test_missing_protections_depend_on_the_kernel_and_the_grants(
    abi: int, writing: bool, processes: bool, missing: list[str]
) -> None:
    system = Kernel(landlock_abi=abi, has_seccomp=True, is_linux=True)
    offered = protections.protections(system, writing=writing, processes=processes)
    assert [protection.name for protection in offered if not protection.is_there] == missing


def test_a_system_that_kills_the_probe_has_no_landlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "confine.py"
    killed = "import os\nos.write(1, b'{\"has_seccomp\": true}\\n')\nos.kill(os.getpid(), 31)\n"
    program.write_text(killed)
    monkeypatch.setattr(protections, "CONFINE", program)
    assert protections.kernel.__wrapped__() == Kernel(0, has_seccomp=True, is_linux=True)


@pytest.mark.parametrize("failing", ["os.kill(os.getpid(), 9)", "os._exit(126)", "raise MemoryError"])
def test_a_failed_probe_is_not_cached_and_is_repeated(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = protections.kernel()
    program = tmp_path / "confine.py"
    program.write_text(f"import os\nos.write(1, b'{{\"has_seccomp\": true}}\\n')\n{failing}\n")
    protections.kernel.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(protections, "CONFINE", program)
            for _ in range(2):
                with pytest.raises(OrganError, match="the probe of the sandbox failed"):
                    python("pass")
        assert protections.kernel() == actual
    finally:
        protections.kernel.cache_clear()


def test_a_process_that_cannot_be_supervised_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    protections.kernel()
    monkeypatch.setattr(process.subprocess, "Popen", noted)
    monkeypatch.setattr(process.selectors, "DefaultSelector", none_left)
    with pytest.raises(OrganError, match="cannot be watched: Too many open files"):
        python("import time; time.sleep(600)")
    assert [child.returncode for child in started] == [-signal.SIGKILL]
