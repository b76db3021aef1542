"""Output of commands: text, JSON, progress, and commands for the user to copy. Control characters are escaped."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from rich.cells import cell_len, chop_cells
from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


F = TypeVar("F", bound=Callable[..., Any])

INDENT = "  "
WIDTH_MAX = 100
"""Columns of a text; longer lines are hard to read on any terminal. Tables use the whole width."""
HANGING_MAX = 9
"""Columns of a mark up to which the lines after the first are indented like the text after it."""
SHORTENED_MIN = 8
"""The smallest width of a shortened text."""
ELLIPSIS = "…"
COMMENT = "  # "
CONTINUES = " \\"
FAILURE = "organ: "
"""The beginning of a message about a failure."""
BAR_WIDTH = 20
"""Characters of the bar of a step."""
PATIENCE_SECONDS = 1.0
"""After this time, a user wants to see that a command works."""

_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""")
_JOINTS = re.compile(r"[^-/_.@:]*[-/_.@:]|[^-/_.@:]+")
"""Places where a long name can be wrapped: after a separator."""
_INVISIBLE = r"\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff"
_CONTROL = re.compile(rf"[\x00-\x1f{_INVISIBLE}]")
_CONTROL_IN_JSON = re.compile(rf"[{_INVISIBLE}]")  # json.dumps escapes the others
_PERCENTAGE = re.compile(r"([0-9]{1,3})% ", re.ASCII)


def kept_flag(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002  # click's word
    """Return an option without a value that no parameter carries: `is_chosen` tells whether it was given."""

    def keep(context: click.Context, option: click.Parameter, is_chosen: bool) -> None:
        context.meta[f"{__name__}.{option.name}"] = is_chosen

    return click.option(*names, is_flag=True, expose_value=False, callback=keep, help=help)


def output_options(*, json: str = "", quiet: str = "") -> Callable[[F], F]:
    """Add the options --json and -q with these helps. `prints_json` and `is_quiet` tell whether they were given."""

    def decorate(command: F) -> F:
        for help_text, names in ((quiet, ("-q", "--quiet")), (json, ("--json",))):
            if help_text:
                command = kept_flag(*names, help=help_text)(command)
        return command

    return decorate


def prints_json() -> bool:
    """Return whether the running command prints JSON."""
    return is_chosen("json")


def is_quiet() -> bool:
    """Return whether the running command prints only names, or nothing."""
    return is_chosen("quiet")


def is_for_people() -> bool:
    """Return whether the running command prints for people. If not, it shows no progress either."""
    return not (prints_json() or is_quiet())


def is_chosen(option: str) -> bool:
    """Return whether the running command was given an option that is kept by this module."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"{__name__}.{option}"))


def plain(text: object) -> str:
    """Return text with control, bidirectional and invisible characters escaped, as a terminal may obey them."""
    return _CONTROL.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def terminal_width(*, err: bool = False) -> int | None:
    """Return the width of the terminal on stdout, or with `err` on stderr; None for a pipe or a file."""
    console = Console(stderr=err)
    return console.width if console.is_terminal else None


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> str:
    """Return text in lines of at most `width`, split between words.

    The first line begins with `indent`, the others with `hanging`, which is `indent` by default.
    """
    following = indent if hanging is None else hanging
    room = max(width - cell_len(following), SHORTENED_MIN)
    first, *others = folded(text, room, width - cell_len(indent))
    return "\n".join([indent + first, *(following + line for line in others)])


def folded(text: str, width: int, first_width: int | None = None) -> list[str]:
    """Return text in lines of at most `width`, split between words, else after `-/_.@:`, else anywhere.

    The first line has at most `first_width` columns; it is empty if nothing fits there.
    """
    room = width if first_width is None else first_width
    if cell_len(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        pieces = [word]
        if cell_len(word) > width:
            pieces = [piece for part in _JOINTS.findall(word) for piece in chop_cells(part, width)]
        for number, piece in enumerate(pieces):
            joined = f"{lines[-1]} {piece}" if number == 0 and lines[-1] else lines[-1] + piece
            if cell_len(joined) <= room:
                lines[-1] = joined
            else:
                lines.append(piece)
                room = width
    return [line.rstrip(" ") for line in lines]


def shortened(text: str, width: int) -> str:
    """Return text of at most `width`. A sentence loses its end; a name its middle, so that the end of it survives."""
    if cell_len(text) <= width:
        return text
    if width <= cell_len(ELLIPSIS):
        return ELLIPSIS[:width]
    room = width - cell_len(ELLIPSIS)
    tail = "" if " " in text else text[len(text) - len(beginning(text[::-1], room // 2)) :]
    return beginning(text, room - cell_len(tail)) + ELLIPSIS + tail


def beginning(text: str, width: int) -> str:
    """Return the beginning of text, of at most `width` columns."""
    return chop_cells(text, width)[0] if text and width > 0 else ""


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and the number of the others: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(plain, names[:most])) + more


def print_left_out(count: int, how: str) -> None:
    """Print below a list how many rows were left out, if there are some, and how to see them."""
    if count > 0:
        click.echo(f"… and {count} more{how}")


def _print_wrapped(text: object, mark: str, hanging: str, *, err: bool = False) -> None:
    """Print text after `mark`: on a terminal wrapped between words, in a pipe one line, for scripts."""
    printable, width = plain(text), terminal_width(err=err)
    line = mark + printable if width is None else wrapped(printable, min(WIDTH_MAX, width), mark, hanging)
    click.echo(line.rstrip(), err=err)


def print_sentence(text: object, mark: str = "", *, err: bool = False) -> None:
    """Print text without control characters after `mark`, such as `warning: `, on stdout or with `err` on stderr.

    On a terminal it is wrapped between words, and the lines after the first are indented like the text after a short
    mark. In a pipe it is one line.
    """
    _print_wrapped(text, mark, " " * cell_len(mark) if cell_len(mark) <= HANGING_MAX else INDENT * 2, err=err)


def print_remark(text: object, mark: str = "") -> None:
    """Print text like `print_sentence`, but on stderr: what is no result, such as a warning or what to do next."""
    print_sentence(text, mark, err=True)


def print_failure(text: object) -> None:
    """Print on stderr what failed."""
    print_remark(text, FAILURE)


def print_prose(text: str) -> None:
    """Print text of several lines, indented to tell it from the lines of the command."""
    for line in text.splitlines():
        _print_wrapped(line.expandtabs(4), INDENT, INDENT)


def print_facts(facts: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print labels with their texts; on a terminal a long text is wrapped beside its label."""
    rows = [(plain(label), text) for label, text in facts]
    size = max((cell_len(label) for label, _ in rows), default=0) + len(INDENT)
    for label, text in rows:
        _print_wrapped(text, label + " " * (size - cell_len(label)), " " * size, err=err)


def print_path(path: object) -> None:
    """Print a path on its own line: exact bytes for scripts, escaped on a terminal."""
    click.echo(plain(path) if sys.stdout.isatty() else os.fsencode(str(path)))


def print_json(values: object) -> None:
    """Print an entity or plain values as JSON; NaN and infinities, which JSON lacks, become null."""
    click.echo(_json(values, indent=2))


def print_json_line(values: object) -> None:
    """Print an entity or plain values as one line of JSON."""
    click.echo(_json(values))
    sys.stdout.flush()


def _json(values: object, indent: int | None = None) -> str:
    finite = json.loads(json.dumps(msgspec.to_builtins(values, enc_hook=str)), parse_constant=lambda _name: None)
    # An escape in JSON is the same value, so control characters are printed as escapes.
    return _CONTROL_IN_JSON.sub(_escaped, json.dumps(finite, ensure_ascii=False, indent=indent))


def printed_for_programs(result: object, names: Iterable[object] = ()) -> bool:
    """Print an entity or plain values as JSON, or with -q only `names` or paths; return False for people."""
    if prints_json():
        print_json(result)
    elif is_quiet():
        for name in names:
            if isinstance(name, Path):
                print_path(name)
            else:
                click.echo(plain(name))
    return not is_for_people()


def is_attended() -> bool:
    """Return whether a person at the terminal can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask a question on stderr; no answer is a no."""
    return click.confirm(plain(question), default=False, err=True)


def organ_command(*words: str) -> str:
    """Return a command for the user to copy: `organ` with `words`, on the selected registry."""
    context = click.get_current_context(silent=True)
    params = {} if context is None else context.find_root().params
    options = [word for name in ("home", "registry") if params.get(name) for word in (f"--{name}", params[name])]
    return shlex.join(["organ", *options, *words])


def merge_command(base: str, adapter: str) -> str:
    """Return the command that makes a chimera of a model and an adapter."""
    recipe = json.dumps({"base": base, "adapters": [{"from": adapter}]})
    return f"echo {shlex.quote(recipe)} | {organ_command('compose', '-', '--name', 'merged')}"


def again(*options: str, replaces: bool = False) -> str:
    """Return the running command with more options, for the user to copy. `replaces`: instead of earlier ones."""
    words = sys.argv[1:]
    if replaces and options[0] in words:
        place = words.index(options[0])
        del words[place : place + len(options)]
    end = words.index("--") if "--" in words else len(words)
    return shlex.join(["organ", *words[:end], *options, *words[end:]])


def print_commands(commands: Sequence[tuple[str, str]]) -> None:
    """Print commands that the user can copy, each with what it does as a comment where there is room."""
    width = terminal_width()
    size = max((cell_len(plain(command)) for command, _ in commands), default=0)
    purposes = max((cell_len(purpose) for _, purpose in commands), default=0)
    for command, purpose in commands:
        printable = plain(command)
        if width is None or size + purposes + len(COMMENT) <= width:
            click.echo(f"{printable}{' ' * (size - cell_len(printable))}{COMMENT}{plain(purpose)}")
        else:
            for line in [printable] if cell_len(printable) <= width else continued(printable, width):
                click.echo(line)


def print_hint(label: str, command: str, *, err: bool = True) -> None:
    """Print a command that the user can copy, after `label`.

    On a terminal that is too narrow for both, the command has its own line, and a long one continues after backslashes.
    """
    width, line = terminal_width(err=err), f"{plain(label)}: {plain(command)}"
    if width is None or cell_len(line) <= width:
        click.echo(line, err=err)
        return
    click.echo(f"{plain(label)}:", err=err)
    for part in continued(plain(command), width):
        click.echo(part, err=err)


def continued(command: str, width: int) -> list[str]:
    """Return a shell command in indented lines of at most `width`; each but the last ends in a backslash."""
    lines = [""]
    for word in _SHELL_WORD.findall(command):
        joined = f"{lines[-1]} {word}" if lines[-1] else INDENT * len(lines[:2]) + word
        if lines[-1] and cell_len(joined) > width - len(CONTINUES):
            lines[-1] += CONTINUES
            lines.append(INDENT * 2 + word)
        else:
            lines[-1] = joined
    return lines


class ProgressBar:
    """A progress bar on stderr; call it with a number of bytes to advance it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, size_bytes: int) -> None:
        self._progress.advance(self._task, size_bytes)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar during the block, which can print a question there."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


@contextmanager
def progress_bar(label: str, total_bytes: int, *, quiet: bool | None = None) -> Iterator[ProgressBar]:
    """Show a progress bar on stderr during the block, if stderr is a terminal; by default only for people.

    There is none for 0 bytes.
    """
    from rich.progress import (  # not for commands that show none
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    is_hidden = not is_for_people() if quiet is None else quiet
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_WIDTH if console.width < WIDTH_MAX else 2 * BAR_WIDTH),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=is_hidden or not total_bytes or not console.is_terminal,
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(label, total=total_bytes))


@contextmanager
def status_line(label: str, *, quiet: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr with the current step of the block, if it takes longer than a second on a terminal.

    A step that begins with a percentage, such as `35% chimera, loading`, gets a bar. By default only for people.
    """
    console = Console(stderr=True)
    if (not is_for_people() if quiet is None else quiet) or not console.is_terminal:
        yield lambda _step: None
        return
    status = console.status(plain(f"{label} …"))
    timer = threading.Timer(PATIENCE_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda step: status.update(f"{plain(label)}: {step_text(step)}")
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def step_text(step: str) -> str:
    """Return a step for a terminal, with a bar in front of its percentage if it begins with one."""
    match = _PERCENTAGE.match(step)
    if match is None:
        return plain(step)
    filled = BAR_WIDTH * min(int(match[1]), 100) // 100
    return f"{'━' * filled}{'┈' * (BAR_WIDTH - filled)} {plain(step)}"
