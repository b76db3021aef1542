"""Commands that take a query."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

_MINUS_TERM = re.compile(r"-[^\W\d_]\w.*|-[^\W\d_][:<>=].*|-\d.*", re.DOTALL)
"""More than a letter, which is an option's; options have no digits, words of models do: `-7b`."""


class QueryCommand(click.Command):
    """A command whose arguments may begin with a minus: `-type:norm` is a term, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        terms = [word for word in args if _MINUS_TERM.fullmatch(word)]
        others = [word for word in args if not _MINUS_TERM.fullmatch(word)]
        return super().parse_args(ctx, [*others, *([] if "--" in others else ["--"]), *terms])


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
