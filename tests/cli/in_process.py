"""`organ` as a shell starts it, but in this process: its arguments, its environment, what it prints, how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from organs.cli.main import main
from organs.registry.settings import HOME_VARIABLE
from tests.token_leaks import check_command_output


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def values(self) -> Any:
        """The printed JSON, parsed."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class OrganCommand:
    """The command, with a registry of its own in `home`."""

    home: Path

    def __call__(self, *arguments: object, environment: Mapping[str, str] | None = None) -> CommandResult:
        """Run `organ` with `arguments`; the streams of pytest and the handlers of logs stay as they are."""
        saved_arguments, saved_environment = sys.argv, dict(os.environ)
        log = logging.getLogger()
        saved_handlers, saved_level = list(log.handlers), log.level
        out, err = _stream(), _stream()
        sys.argv = ["organ", *map(str, arguments)]
        os.environ[HOME_VARIABLE] = str(self.home)
        os.environ.update(environment or {})
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        else:
            status = 0
        finally:
            sys.argv = saved_arguments
            log.handlers[:] = saved_handlers
            log.setLevel(saved_level)
            os.environ.clear()
            os.environ.update(saved_environment)
        check_command_output(arguments, _text(out), _text(err))
        return CommandResult(status, _text(out), _text(err))

    def done(self, *arguments: object) -> CommandResult:
        """Run it where it must succeed."""
        ended = self(*arguments)
        assert ended.status == 0, (arguments, ended)
        return ended


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    binary = stream.buffer
    assert isinstance(binary, io.BytesIO)
    return os.fsdecode(binary.getvalue())
