"""`organ` on a terminal: a process of its own whose streams are those of a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

from tests import postgres
from tests.cli.in_process import CommandResult


def on_a_pseudo_terminal(
    home: Path, *arguments: object, typed: str = "", columns: int = 160, out_is_piped: bool = False
) -> CommandResult:
    """Run the command; what the terminal shows is `err`, with a piped stdout beside it."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    running = subprocess.Popen(
        [sys.executable, "-m", "organs.cli", *map(str, arguments)],
        stdin=terminal,
        stdout=subprocess.PIPE if out_is_piped else terminal,
        stderr=terminal,
        env={**environment, "TERM": "xterm", "NO_COLOR": "1", **postgres.environment(home)},
        text=True,
    )
    os.close(terminal)
    os.write(controller, typed.encode())
    shown = b""
    with suppress(OSError):  # Linux ends it with EIO when the command has ended
        while data := os.read(controller, 65536):
            shown += data
    out = running.communicate(timeout=60)[0] or ""
    os.close(controller)
    return CommandResult(running.returncode, out, shown.decode().replace("\r\n", "\n"))
