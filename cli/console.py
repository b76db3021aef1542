"""Output of commands: tables, text, JSON, progress and hints. Control characters in text are escaped."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
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
    BadName,
    BadQuery,
    BadReply,
    BadSource,
    BadToken,
    BadValue,
    CatalogError,
    CorruptBlob,
    DiskFull,
    Incomplete,
    MissingBlob,
    NoRegistry,
    NoSuchContributor,
    NoSuchFile,
    NoSuchJob,
    NoSuchRun,
    NoSuchSubmission,
    NoSuchToken,
    NotComposedHere,
    NotFound,
    NothingRegistered,
    OrganError,
    SchemaTooNew,
    StoreUnwritable,
    Unreachable,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status


INDENT = "  "
WIDTH_MAX = 100
"""Columns of a text; longer lines are hard to read on any terminal. Tables use the whole width."""


def terminal_width(*, err: bool = False) -> int | None:
    """Return the width of the terminal on stdout, or with `err` on stderr; None for a pipe or a file."""
    console = Console(stderr=err)
    return console.width if console.is_terminal else None


def in_lines(text: str, indent: str = "", hanging: str | None = None) -> str:
    """Return text wrapped between words to the width of the terminal: 80 columns without one, 100 at most.

    The first line begins with `indent`, the others with `hanging`, which is `indent` by default.
    """
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    return wrapped(text, width, indent, hanging)


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> str:
    """Return text in lines of at most `width`, split between words."""
    following = indent if hanging is None else hanging
    room = max(width - cell_len(following), SHORTENED_MIN)
    first, *others = folded(text, room, width - cell_len(indent))
    return "\n".join([indent + first, *(following + line for line in others)])


def print_prose(text: str) -> None:
    """Print text of several lines, indented to tell it from the lines of the command."""
    is_terminal = terminal_width() is not None
    for line in text.splitlines():
        printable = plain(line.expandtabs(4))
        click.echo((in_lines(printable, INDENT) if is_terminal else INDENT + printable).rstrip())


def print_sentence(text: str, mark: str = "", *, err: bool = False) -> None:
    """Print text without control characters after `mark`, such as `warning: `, on stdout or with `err` on stderr.

    On a terminal it is wrapped between words, and the lines after the first are indented like the text after a short
    mark. In a pipe it is one line, for scripts.
    """
    printable, width = plain(text), terminal_width(err=err)
    if width is None:
        click.echo(mark + printable, err=err)
        return
    hanging = " " * cell_len(mark) if cell_len(mark) <= HANGING_MAX else INDENT * 2
    click.echo(wrapped(printable, min(WIDTH_MAX, width), mark, hanging if mark else ""), err=err)


def print_facts(facts: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print labels with their texts; on a terminal a long text is wrapped beside its label."""
    rows = [(plain(label), text) for label, text in facts]
    size = max((cell_len(label) for label, _ in rows), default=0) + len(GAP)
    for label, text in rows:
        printable, width = plain(text), terminal_width(err=err)
        mark = label + " " * (size - cell_len(label))
        line = mark + printable if width is None else wrapped(printable, min(WIDTH_MAX, width), mark, " " * size)
        click.echo(line, err=err)


def print_commands(commands: Sequence[tuple[str, str]]) -> None:
    """Print commands that the user can copy, each with what it does as a comment where there is room."""
    width = terminal_width() or PIPED_WIDTH
    size = max((cell_len(plain(command)) for command, _ in commands), default=0)
    purposes = max((cell_len(purpose) for _, purpose in commands), default=0)
    for command, purpose in commands:
        printable = plain(command)
        if size + purposes + len(COMMENT) <= width:
            click.echo(f"{printable}{' ' * (size - cell_len(printable))}{COMMENT}{plain(purpose)}")
        else:
            for part in [printable] if cell_len(printable) <= width else continued(printable, width):
                click.echo(part)


def one_line(text: str, name: str) -> str:
    """Return text that begins with `name`. On a terminal where it does not fit, the name loses its middle."""
    printable, width = plain(text), terminal_width()
    excess = 0 if width is None else cell_len(printable) - width
    if excess <= 0 or not printable.startswith(plain(name)):
        return printable
    return shortened(plain(name), max(cell_len(plain(name)) - excess, SHORTENED_MIN)) + printable[len(plain(name)) :]


def shown_name(name: str) -> str:
    """Return a name as part of a sentence: on a terminal, a very long one loses its middle."""
    return plain(name) if terminal_width() is None else shortened(plain(name), NAME_MAX)


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
        if lines[-1] and cell_len(joined) > width - len(_CONTINUES):
            lines[-1] += _CONTINUES
            lines.append(INDENT * 2 + word)
        else:
            lines[-1] = joined
    return lines


_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""")
_CONTINUES = " \\"
HANGING_MAX = 9
"""Columns of a mark up to which the lines after the first are indented like the text after it."""
GAP = "  "
SHORT_MAX = 14
"""Columns up to this width are never shortened: types, tensor types, shapes, dates."""
NAME_MIN = 36
"""The width of a column with long names that comes before columns that can be left out."""
NAME_MAX = 48
"""Columns of a name in a sentence on a terminal."""
SHORTENED_MIN = 8
"""The smallest width of a shortened column."""
DIGEST_MIN = 8
"""Characters of a digest that still name an organ in commands."""
ELLIPSIS = "…"
COMMENT = "  # "
WEIGHT = ".weight"
"""The end of the names of nearly all tensors. A column that does not fit is first shortened by it."""

NONFINITE_MARK = "(NaN/inf)"
"""Follows the name of an organ or a model with weights that are NaN or infinite."""

_JOINTS = re.compile(r"[^-/_.@:]*[-/_.@:]|[^-/_.@:]+")
"""Places where a long name can be wrapped: after a separator."""


@dataclass(slots=True)
class _Column:
    """A column of a table with its cells as texts, below its heading."""

    heading: str
    cells: list[str]
    is_number: bool = False
    is_digest: bool = False
    is_prose: bool = False
    width: int = 0
    natural: int = field(init=False)
    """The width without shortening."""

    def __post_init__(self) -> None:
        self.natural = max(map(cell_len, (self.heading, *self.cells)))

    def without_ending(self, ending: str) -> _Column:
        """Return the same column with cells that do not end in `ending`."""
        return replace(self, cells=[cell.removesuffix(ending) for cell in self.cells])

    @property
    def is_long(self) -> bool:
        """Whether it can be shortened."""
        return self.is_prose or (not self.is_number and not self.is_digest and self.natural > SHORT_MAX)

    @property
    def comfortable(self) -> int:
        """The width that comes before columns that can be left out."""
        if self.is_digest:
            return min(self.natural, max(DIGEST_MIN, cell_len(self.heading)))
        return min(self.natural, NAME_MIN) if self.is_long else self.natural

    @property
    def least(self) -> int:
        return min(self.natural, max(SHORTENED_MIN, cell_len(self.heading))) if self.is_long else self.comfortable


@dataclass(frozen=True, slots=True)
class TableStyle:
    """Which columns of a table are numbers, digests or sentences, and which ones a narrow terminal does without."""

    numbers: Collection[str] = ()
    """Aligned to the right, and never shortened."""
    digests: Collection[str] = ()
    """Their beginning is enough."""
    prose: str | None = None
    """The last column, if it has sentences: these are wrapped, and a row can have several lines."""
    leave_out: Sequence[str] = ()
    """Columns that a narrow terminal does without, the least important first."""


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, style: TableStyle | None = None
) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table of at most `width` columns, each with whether it is the heading.

    A row is one line, except for a column of prose. What does not fit is left out as `style` says, or shortened.
    """
    return _table_lines(_fitted_columns(headings, rows, width, style or TableStyle()), len(rows))


def _fitted_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, style: TableStyle
) -> list[_Column]:
    """Return the columns of a table that fit, with their widths."""
    columns = [
        _Column(heading, cells, heading in style.numbers, heading in style.digests, heading == style.prose)
        for heading, cells in zip(
            headings, map(list, zip(*rows, strict=True)) if rows else [[]] * len(headings), strict=True
        )
    ]
    return _fitted(columns, width, style.leave_out)


def _table_lines(columns: Sequence[_Column], count: int) -> Iterator[tuple[str, bool]]:
    yield _line([column.heading for column in columns], columns), True
    for number in range(count):
        cells = [column.cells[number] for column in columns]
        if not columns[-1].is_prose:
            yield _line(cells, columns), False
            continue
        for part, text in enumerate(folded(cells[-1], max(columns[-1].width, 1))):
            yield _line([*(cells[:-1] if part == 0 else [""] * len(cells[:-1])), text], columns), False


def shortened(text: str, width: int) -> str:
    """Return text of at most `width`. A sentence loses its end; a name its middle, so that the end of it survives."""
    if cell_len(text) <= width:
        return text
    if width <= cell_len(ELLIPSIS):
        return ELLIPSIS[:width]
    room = width - cell_len(ELLIPSIS)
    tail = "" if " " in text else text[len(text) - len(_beginning(text[::-1], room // 2)) :]
    return _beginning(text, room - cell_len(tail)) + ELLIPSIS + tail


def folded(text: str, width: int, first_width: int | None = None) -> list[str]:
    """Return text in lines of at most `width`, split between words, else after `-/_.@:`, else anywhere.

    The first line has at most `first_width` columns; it is empty if nothing fits there.
    """
    room = width if first_width is None else first_width
    if cell_len(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        pieces = [word] if cell_len(word) <= width else _pieces(word, width)
        for number, piece in enumerate(pieces):
            joined = f"{lines[-1]} {piece}" if number == 0 and lines[-1] else lines[-1] + piece
            if cell_len(joined) <= room:
                lines[-1] = joined
            else:
                lines.append(piece)
                room = width
    return [line.rstrip(" ") for line in lines]


def _fitted(columns: list[_Column], width: int, leave_out: Sequence[str]) -> list[_Column]:
    """Return the columns that fit, with their widths. The first column always stays."""
    if _total(column.natural for column in columns) > width:
        columns = [column.without_ending(WEIGHT) if column.is_long else column for column in columns]
    kept = [column for column in columns if column.heading not in leave_out]
    for heading in reversed(leave_out):
        with_it = [column for column in columns if column in kept or column.heading == heading]
        if _total(column.comfortable for column in with_it) <= width:
            kept = with_it
    while len(kept) > 1 and _total(column.least for column in kept) > width:
        kept.pop()
    _share_room(kept, width)
    return kept


def _share_room(columns: Sequence[_Column], width: int) -> None:
    """Set the widths of columns: numbers and short words as they are, the others as far as there is room."""
    is_narrow = _total(column.natural for column in columns) > width
    for column in columns:
        column.width = column.comfortable if is_narrow and column.is_digest else column.natural
    flexible = sorted((column for column in columns if column.is_long), key=lambda column: column.natural)
    room = width - _total(0 if column.is_long else column.width for column in columns)
    for number, column in enumerate(flexible):  # the shortest first: the others get the width that it does not need
        reserved = sum(other.least for other in flexible[number + 1 :])
        share = max(room // (len(flexible) - number), min(column.comfortable, room - reserved))
        column.width = max(min(column.natural, share), 1)
        room -= column.width
    for column in (column for column in columns if column.is_digest and room > 0):
        wider = min(column.natural, column.width + room)
        room, column.width = room - (wider - column.width), wider


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + len(GAP) * (len(sizes) - 1)


def _line(cells: Sequence[str], columns: Sequence[_Column]) -> str:
    return GAP.join(_padded(cell, column) for cell, column in zip(cells, columns, strict=True)).rstrip()


def _padded(text: str, column: _Column) -> str:
    fits = _beginning(text, column.width) if column.is_digest else shortened(text, column.width)
    space = " " * (column.width - cell_len(fits))
    return space + fits if column.is_number else fits + space


def _beginning(text: str, width: int) -> str:
    return chop_cells(text, width)[0] if text and width > 0 else ""


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
FAILURE = "organ: "
"""The beginning of a message about a failure."""

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
    (NoSuchRun, "try: organ fleet run PLAN"),
    (NoSuchContributor, "try: organ contributor list"),
    (NoSuchToken, "try: organ token list"),
    (NoSuchSubmission, "try: organ admin submissions"),
    (NotComposedHere, "try: organ validate FILE.gguf --base MODEL"),
    (NoSuchFile, ""),
    (BadHubToken, "try: hf auth login, or set HF_TOKEN"),
    (NotFound, "try: organ models"),
    (NoRegistry, "check that the address is that of an organ registry"),
    (BadReply, ""),  # its message says what is wrong
    (Unreachable, "check the address, and that the server runs; try again later"),
    (BadValue, ""),  # its message says what to do
    (CatalogError, "check ORGAN_DATABASE_URL, or choose another folder with --home"),
)


def print_error(error: Exception) -> None:
    """Print an error on stderr, and what the user can do about it."""
    print_failure(str(error))
    if hint := hint_for(error):
        print_sentence(hint, " " * len(FAILURE), err=True)


def print_failure(text: str) -> None:
    """Print on stderr what failed."""
    print_sentence(text, FAILURE, err=True)


def hint_for(error: Exception) -> str | None:
    """Return what the user can do about an error, or None."""
    if isinstance(error, BadToken) and not isinstance(error, BadHubToken):
        from organs.cli.arguments import anonymous_hint  # with the registry, which not every command needs

        return f"try: organ login URL{anonymous_hint()}"
    extra = getattr(error, "extra", None)
    if extra is not None or isinstance(error, SchemaTooNew):
        return f"try: {install_command(extra)}"
    if isinstance(error, BadSource) and isinstance(error.__cause__, FileNotFoundError):
        return "check the path: relative paths begin in the current folder"
    if isinstance(error, BadName) and (hint := _path_hint(sys.argv[1:])) is not None:
        return hint
    if isinstance(error, BadQuery) and error.term == "after":
        return "leave out --after to begin with the first page"
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)


def _path_hint(words: Sequence[str]) -> str | None:
    """Return what to do about a path in the place of a model's name, if one of the arguments `words` is a path."""
    if "--name" in words:
        return None
    for before, word in pairwise(["", *words]):
        is_gguf = word.lower().endswith(".gguf")
        if before in ("-o", "--output") or word.startswith("-"):
            continue
        if os.path.isdir(word) or (is_gguf and os.path.isfile(word)):
            return f"a path is not the name of a registered model: organ ingest {shlex.quote(word)} registers it"
        if (word.startswith((".", "/")) or word.endswith("/") or is_gguf) and not os.path.lexists(word):
            return f"{word}: no such file or folder, and not the name of a registered model"
    return None


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


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Collection[str] = (),
    *,
    digests: Collection[str] = (),
    prose: str | None = None,
    leave_out: Sequence[str] = (),
) -> None:
    """Print a table; `TableStyle` explains the parameters.

    On a terminal each row is one line: columns in `leave_out` are left out if they do not fit, and long names are
    shortened. In a pipe, the table is complete.
    """
    lines, _ = table_text(columns, rows, numbers, digests=digests, prose=prose, leave_out=leave_out)
    print_lines(lines)


def table_text(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Collection[str] = (),
    *,
    digests: Collection[str] = (),
    prose: str | None = None,
    leave_out: Sequence[str] = (),
) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the lines of the table that `print_table` prints, and the headings of the columns that it has."""
    width = terminal_width()
    style = TableStyle(numbers, digests, None if width is None else prose, leave_out)
    cells = [[plain(cell) for cell in row] for row in rows]
    fitted = _fitted_columns(columns, cells, PIPED_WIDTH if width is None else width, style)
    return list(_table_lines(fitted, len(cells))), [column.heading for column in fitted]


def print_lines(lines: Iterable[tuple[str, bool]]) -> None:
    """Print the lines of a table, each with whether it is the heading."""
    console = Console(highlight=False)
    for line, heading in lines:
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
    bar = BarColumn(bar_width=BAR_WIDTH if console.width < WIDTH_MAX else 2 * BAR_WIDTH)
    columns = (TextColumn("{task.description}"), bar, DownloadColumn(), TransferSpeedColumn())
    progress = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(label, total=total_bytes))


@contextmanager
def waiting(label: str, *, quiet: bool = False) -> Iterator[None]:
    """Show `label` with a spinner on stderr during a block without steps, if it takes longer than a second."""
    with _spinner(f"{label} …", quiet=quiet):
        yield


PATIENCE_SECONDS = 1.0
"""After this time, a user wants to see that a command works."""


@contextmanager
def status_line(label: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr with the current step of the block, if it takes longer than a second on a terminal.

    A step that begins with a percentage, such as `35% chimera, loading`, gets a bar.
    """
    with _spinner(f"{label} …", quiet=quiet) as status:
        yield lambda step: None if status is None else status.update(f"{plain(label)}: {step_text(step)}")


@contextmanager
def _spinner(text: str, *, quiet: bool) -> Iterator[Status | None]:
    """Show `text` with a spinner on stderr from PATIENCE_SECONDS on; None without a terminal, or with `quiet`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    status = console.status(plain(text))
    timer = threading.Timer(PATIENCE_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield status
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
