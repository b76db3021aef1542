"""An `organ` that starts quickly: a process with all modules loaded forks for each command.

Loading takes most of the time of a short command, and the documents have a hundred of them. A command has the folder,
environment, the three streams and the exit status of its caller. Other tests check that the real program loads by
itself (tests/cli/test_main.py, tests/journeys/test_wheel.py).
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).resolve().parents[1]
CALL = """#!{python} -ISs
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [b"organ"], [0, 1, 2])
    connection.sendall(marshal.dumps((os.getcwd(), sys.argv[1:], dict(os.environ))))
    connection.shutdown(socket.SHUT_WR)
    status = connection.recv(1)
sys.exit(status[0] if status else 1)
"""


@contextmanager
def preloaded() -> Iterator[Path]:
    """Yield a program that works like `organ` during the block."""
    with TemporaryDirectory(prefix="organ-") as name:
        program, address = Path(name, "organ"), str(Path(name, "socket"))
        program.write_text(CALL.format(python=sys.executable, address=address))
        program.chmod(0o755)
        command = [sys.executable, "-m", "tests.preloaded_command", address]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield program
            server.communicate()  # its stdin is closed by that, and it ends


def serve(address: str) -> None:
    """Fork for each connection to `address`, until stdin is closed."""
    from organs.cli.main import organ

    context = click.Context(organ)
    for name in organ.list_commands(context):
        organ.get_command(context, name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the server need not wait for a child
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Run the requested command; never returns."""
    status = 1
    try:
        _become(connection)
        status = _status_of_command()
        sys.stdout.flush()
    except BaseException:  # after any exception, the child must not continue as the server
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        connection.send(bytes([status]))
        os._exit(status)


def _become(connection: socket.socket) -> None:
    """Take over the folder, arguments, environment and streams of the caller."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, len(b"organ"), 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115  # they stay open until the end
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1)  # noqa: SIM115
    given = b""
    while part := connection.recv(1 << 16):
        given += part
    folder, words, environment = marshal.loads(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["organ", *words]


def _status_of_command() -> int:
    from organs.cli.main import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
