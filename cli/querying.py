"""Commands that take a query."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress

import click

from organs.registry.catalog.search.fields import ALIASES, MODELS, ORGANS

_MINUS_TERM = re.compile(r"-[^\W\d_]\w.*|-[^\W\d_][:<>=].*|-\d.*", re.DOTALL)
"""More than a letter, which is an option's; options have no digits, words of models do: `-7b`."""


_BOUND = re.compile(r"=?-?\d+(?:\.\d+)?[kMG]?")
"""What stands behind a `>` that was meant as a comparison."""


class QueryCommand(click.Command):
    """A command whose arguments may begin with a minus: `-type:norm` is a term, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        terms = [word for word in args if _MINUS_TERM.fullmatch(word)]
        others = [word for word in args if not _MINUS_TERM.fullmatch(word)]
        check_quoted(args)
        return super().parse_args(ctx, [*others, *([] if "--" in others else ["--"]), *terms])


def check_quoted(words: Sequence[str]) -> None:
    """Raise UsageError if the shell took a bound away: of `theta>=35` it leaves `theta` and writes to a file `=35`."""
    fields = [word for word in words if _is_number_field(word)]
    made = _redirected() if fields else None
    if made is not None:
        bound = made if made.startswith("=") else f"={made}"
        raise click.UsageError(
            f"{fields[-1]!r} has no bound: the shell took > for a redirection and made the file {made!r} here. "
            f"Remove it, and quote the query: '{fields[-1]}>{bound}'"
        )
    is_loose = any(word[:1] in "<>=≥≤" for word in words if word)  # the parser says what is wrong with that
    for field in () if is_loose else fields:
        click.echo(f"note: {field} is a word here; a bound needs quotes: '{field}>=35'", err=True)


def _is_number_field(word: str) -> bool:
    name = ALIASES.get(word.lower(), word.lower())
    return any(name in one.fields and one.fields[name].is_numeric for one in (ORGANS, MODELS))


def _redirected() -> str | None:
    """The name of an empty file in this folder that a shell made of a bound such as `>=35`, newest first."""
    with suppress(OSError), os.scandir() as found:
        made = [one for one in found if _BOUND.fullmatch(one.name) and one.is_file() and one.stat().st_size == 0]
        return max(made, key=lambda one: one.stat().st_mtime).name if made else None
    return None


def print_more(command: str, query: str, options: Sequence[str], place: str, total: int | None = None) -> None:
    """On stderr: the command that shows what comes behind a page."""
    given = click.get_current_context().find_root().params
    words = [
        "organ",
        *(word for name in ("home", "registry") if given.get(name) for word in (f"--{name}", given[name])),
        command,
        *options,
        "--after",
        place,
        *([query] if query else []),
    ]
    of = "" if total is None else f" of {total:,}"
    click.echo(f"more{of}: {shlex.join(words)}", err=True)
