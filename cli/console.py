"""Output of commands: tables, text, JSON, progress and hints. Control characters in text are escaped."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click
import msgspec
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from organs.registry.errors import (
    BadHubToken,
    BadQuery,
    BadToken,
    BadValue,
    CatalogError,
    CorruptBlob,
    DiskFull,
    Incomplete,
    MissingBlob,
    NoSuchContributor,
    NoSuchFile,
    NoSuchJob,
    NoSuchSubmission,
    NoSuchToken,
    NotComposedHere,
    NotFound,
    NothingRegistered,
    OrganError,
    SchemaTooNew,
    StoreUnwritable,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


INDENT = "  "
WIDTH_MAX = 100
"""Columns; longer lines are hard to read on any terminal."""


def in_lines(text: str, indent: str = "") -> str:
    """Return text wrapped to the width of the terminal: 80 columns without one, 100 at most."""
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_prose(text: str) -> None:
    """Print text of several lines, indented to tell it from the lines of the command."""
    for line in text.splitlines():
        printable = plain(line.expandtabs(4))
        click.echo((in_lines(printable, INDENT) if sys.stdout.isatty() else INDENT + printable).rstrip())


def print_sentence(text: str) -> None:
    """Print text without control characters, wrapped on a terminal; in a pipe it is one line, for scripts."""
    printable = plain(text)
    click.echo(in_lines(printable) if sys.stdout.isatty() else printable)


GAP = "  "
SHORT_MAX = 14
"""Columns up to this width are never wrapped: types, tensor types, shapes, dates."""
FOLDED_MIN = 20
"""The smallest width of a wrapped column; if it would be less, long texts get their own line."""

NONFINITE_MARK = "(NaN/inf)"
"""Follows the name of an organ or a model with weights that are NaN or infinite."""

_JOINTS = re.compile(r"[^-/_.@:]*[-/_.@:]|[^-/_.@:]+")
"""Places where a long name can be wrapped: after a separator."""


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table of at most `width` columns if possible, each with whether it is of the heading.

    Columns in `right` have numbers: they are aligned to the right and never wrapped.
    """
    natural = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    long = [size > SHORT_MAX and not flush for size, flush in zip(natural, right, strict=True)]
    widths = _fitted(natural, long, width)
    if widths is not None:
        for number, row in enumerate([headings, *rows]):
            yield from ((line, number == 0) for line in _aligned(row, widths, right))
        return
    short = [index for index, is_long in enumerate(long) if not is_long]
    widths, flush_right = [natural[index] for index in short], [right[index] for index in short]
    for number, row in enumerate([headings, *rows]):
        names = GAP.join(cell for cell, is_long in zip(row, long, strict=True) if is_long)
        yield from ((line, number == 0) for line in folded(names, max(width, FOLDED_MIN)))
        numbers = _aligned([row[index] for index in short], widths, flush_right)
        yield from ((GAP + line, number == 0) for line in numbers if line)


def folded(text: str, width: int) -> list[str]:
    """Return text in lines of at most `width`, split between words, else after `-/_.@:`, else anywhere."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        pieces = [word] if cell_len(word) <= width else _pieces(word, width)
        for number, piece in enumerate(pieces):
            joined = f"{lines[-1]} {piece}" if number == 0 and lines[-1] else lines[-1] + piece
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return [line.rstrip(" ") for line in lines]


def _fitted(natural: Sequence[int], long: Sequence[bool], width: int) -> list[int] | None:
    """Return the width of every column; None if the long ones would be too narrow."""
    widths = list(natural)
    room = (
        width
        - len(GAP) * (len(widths) - 1)
        - sum(size for size, is_long in zip(natural, long, strict=True) if not is_long)
    )
    waiting = sorted((size, index) for index, (size, is_long) in enumerate(zip(natural, long, strict=True)) if is_long)
    while waiting:
        size, index = waiting.pop(0)  # the shortest first: the others get the width that it does not need
        widths[index] = min(size, room // (len(waiting) + 1))
        if widths[index] < min(size, FOLDED_MIN):
            return None
        room -= widths[index]
    return widths


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    cells = [folded(cell, max(size, 1)) for cell, size in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells), default=0)):
        parts = (cell[number] if number < len(cell) else "" for cell in cells)
        yield GAP.join(_padded(*part) for part in zip(parts, widths, right, strict=True)).rstrip()


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _pieces(word: str, width: int) -> Iterator[str]:
    for part in _JOINTS.findall(word):
        yield from chop_cells(part, width)


_INVISIBLE = r"\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff"
_CONTROL = re.compile(rf"[\x00-\x1f{_INVISIBLE}]")
BAR_WIDTH = 20
"""Characters of the bar of a step."""
_PERCENTAGE = re.compile(r"([0-9]{1,3})% ", re.ASCII)
_CONTROL_IN_JSON = re.compile(rf"[{_INVISIBLE}]")  # json.dumps escapes the others

PIPED_WIDTH = 1 << 16
PROJECT = "organ-registry"

Advance = Callable[[int], None]
"""Called with the number of bytes that are done."""

_HINTS: tuple[tuple[type[OrganError], str], ...] = (
    (CorruptBlob, "try: organ verify --read-data --repair, then ingest a file that has the organ"),
    (MissingBlob, "try: organ verify --repair, then ingest a file that has the organ"),
    (DiskFull, "free some space, or choose another place"),
    (StoreUnwritable, "check the owner and the permissions, or choose another place"),
    (BadQuery, "organ search --help and organ models --help list the fields"),
    (Incomplete, "organ ingest adds the missing shards; organ admin remove MODEL --reason TEXT -y removes the model"),
    (NothingRegistered, "nothing is registered yet; try: organ ingest FILE.gguf"),
    (NoSuchJob, "try: organ jobs"),
    (NoSuchContributor, "try: organ contributor list"),
    (NoSuchToken, "try: organ token list"),
    (NoSuchSubmission, "try: organ admin submissions"),
    (NotComposedHere, "try: organ validate FILE.gguf --base MODEL"),
    (NoSuchFile, ""),
    (BadHubToken, "try: hf auth login, or set HF_TOKEN"),
    (NotFound, "try: organ models"),
    (BadValue, ""),  # its message says what to do
    (CatalogError, "check ORGAN_DATABASE_URL, or choose another folder with --home"),
)


def print_error(error: Exception) -> None:
    """Print an error on stderr, and what the user can do about it."""
    click.echo(f"organ: {plain(error)}", err=True)
    if hint := hint_for(error):
        click.echo(f"       {hint}", err=True)


def hint_for(error: Exception) -> str | None:
    """Return what the user can do about an error, or None."""
    if isinstance(error, BadToken) and not isinstance(error, BadHubToken):
        from organs.cli.arguments import anonymous_hint  # with the registry, which not every command needs

        return f"try: organ login URL{anonymous_hint()}"
    extra = getattr(error, "extra", None)
    if extra is not None or isinstance(error, SchemaTooNew):
        return f"try: {install_command(extra)}"
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)


def exit_status(errors: Sequence[OrganError], source_count: int) -> int:
    """Return the exit status for a list of files: 1 if a file failed; for a single file, the status of its error."""
    if not errors:
        return 0
    return errors[0].exit_code if source_count == 1 else OrganError.exit_code


def install_command(extra: str | None = None) -> str:
    """Return the command that installs the program from its folder with `extra`, or a newer version without it.

    The project is on no package index. pip records the folder that it installed from (PEP 610, `direct_url.json`).
    """
    folder = _project_folder()
    requirement = ("." if folder is None else str(folder)) + (f"[{extra}]" if extra else "")
    upgrade = "" if extra else "--upgrade "
    command = f"{shlex.quote(sys.executable)} -m pip install {upgrade}{shlex.quote(requirement)}"
    return command if folder is not None else f"{command} (in the project's folder)"


def _project_folder() -> Path | None:
    """Return the folder that pip installed the program from, if it is still there."""
    try:
        record = json.loads(distribution(PROJECT).read_text("direct_url.json") or "{}")
        url = urlsplit(record["url"]) if "dir_info" in record else None
    except (PackageNotFoundError, ValueError, KeyError):
        return None
    folder = Path(unquote(url.path)) if url is not None and url.scheme == "file" else None
    return folder if folder is not None and (folder / "pyproject.toml").is_file() else None


def plain(text: object) -> str:
    """Return text with control, bidirectional and invisible characters escaped, as a terminal may obey them."""
    return _CONTROL.sub(_escaped, str(text))


def print_json(values: object) -> None:
    """Print an entity or plain values as JSON; NaN and infinities, which JSON lacks, become null."""
    click.echo(_json(values, indent=2))


def print_json_line(values: object) -> None:
    """Print an entity or plain values as one line of JSON."""
    click.echo(_json(values))
    sys.stdout.flush()


def print_path(path: object) -> None:
    """Print a path on its own line: exact bytes for scripts, escaped on a terminal."""
    click.echo(plain(path) if sys.stdout.isatty() else os.fsencode(str(path)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns in `numbers` are aligned to the right.

    On a terminal it has the width of the terminal: long names are wrapped, numbers and short words are not.
    """
    console = Console(highlight=False)
    # In a pipe, nothing is wrapped.
    width = console.width if console.is_terminal else PIPED_WIDTH
    cells = [[plain(cell) for cell in row] for row in rows]
    for line, heading in table_lines(columns, cells, [column in numbers for column in columns], width):
        console.print(Text(line, "bold" if heading else ""), soft_wrap=True)


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
def progress_bar(label: str, total_bytes: int, *, quiet: bool) -> Iterator[ProgressBar]:
    """Show a progress bar on stderr during the block, if stderr is a terminal."""
    from rich.progress import (  # not for commands that show none
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(label, total=total_bytes))


@contextmanager
def status_line(label: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr with the current step of the block, if stderr is a terminal.

    A step that begins with a percentage, such as `35% chimera, loading`, gets a bar.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _step: None
        return
    with console.status(plain(label)) as status:
        yield lambda step: status.update(f"{plain(label)}: {step_text(step)}")


def step_text(step: str) -> str:
    """Return a step for a terminal, with a bar in front of its percentage if it begins with one."""
    match = _PERCENTAGE.match(step)
    if match is None:
        return plain(step)
    filled = BAR_WIDTH * min(int(match[1]), 100) // 100
    return f"{'━' * filled}{'┈' * (BAR_WIDTH - filled)} {plain(step)}"


def _json(values: object, indent: int | None = None) -> str:
    # An escape in JSON is the same value, so control characters are printed as escapes.
    plain_values = _finite(msgspec.to_builtins(values))
    return _CONTROL_IN_JSON.sub(_escaped, json.dumps(plain_values, ensure_ascii=False, indent=indent))


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    if isinstance(values, float) and (values != values or values in (float("inf"), float("-inf"))):
        return None
    return values
